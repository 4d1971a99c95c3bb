"""Random histories of a domain, as a job that was killed leaves them on Kafka, and the states that it had."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, EngineConfig, initial_state, step
from totalorder.sequencer.recovery import ControlLog, Recovery, StampsLog
from totalorder.sequencer.snapshot import (
    Snapshot,
    SnapshotAssembler,
    SnapshotMark,
    decode_mark,
    encode_mark,
    encode_parts,
)
from totalorder.sequencer.state import State, encode_cold, encode_hot
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import (
    Answer,
    Claim,
    Renew,
    Request,
    Retire,
    Skip,
    Subscribe,
    Unsubscribe,
    encode_claim,
    encode_request,
    signer_of,
)
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source, StampedBatch

Record = tuple[bytes, dict[str, bytes]]
TOPICS = [f"t{number}" for number in range(6)]
KAFKA_TOPICS = [f"k{number}" for number in range(4)]


def config_of(rng: random.Random) -> EngineConfig:
    """Random fixed settings of a domain whose events are named by their keys."""
    partitions = rng.randint(1, 4)
    return EngineConfig(
        domain="d",
        identity="lost",
        stamps_partitions=partitions,
        shards=rng.randint(1, partitions),
        min_subscriptions=rng.choice([1, 1, 2]),
        topic_by="key",
        keyframe_every=rng.choice([1, 3, 64]),
    )


@dataclass
class History:
    """`run` does batches; what they wrote is in `stamps`, `answers` and `control`."""

    rng: random.Random
    config: EngineConfig
    signatures: Signatures | None = None
    """Most requests are signed then."""
    stamps: list[list[Record]] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    control: list[bytes] = field(default_factory=list)
    stamped: list[StampedBatch] = field(default_factory=list)
    told: list[Record] = field(default_factory=list)
    """What is on the state topic."""
    marks: list[SnapshotMark] = field(default_factory=list)
    trimmed: list[int] = field(default_factory=list)
    """How many records retention has removed, by stamps partition."""
    late: tuple[int, ...] = ()
    """Where stamps ended when something was written late, the last time."""
    states: list[State] = field(default_factory=list)
    starts: dict[Source, int] = field(default_factory=dict)
    time_ms: int = 10**6
    cut: int = 0
    handed_over: int = 0
    """Control records that a batch has had."""
    offsets: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    ids: dict[str, str] = field(default_factory=dict)
    generations: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.stamps = [[] for _ in range(self.config.stamps_partitions)]
        self.trimmed = [0] * self.config.stamps_partitions
        self.ids = {name: f"{name}-1" for name in KAFKA_TOPICS}
        self.starts = {Source("k0", "k0-1", 0): 5}
        self.offsets["k0", "k0-1", 0] = 5
        self.states = [initial_state(self._of_shard(shard)) for shard in range(self.config.shards)]

    def _of_shard(self, shard: int) -> EngineConfig:
        return replace(self.config, shard=shard)

    def run(self, batches: int) -> None:
        """So many cuts, each of which is stamped as a whole."""
        for _ in range(batches):
            self.write(self.next_batch(), None)

    def next_batch(self) -> Batch:
        """What comes next, in some slices."""
        rng = self.rng
        self.time_ms += rng.choice([10, 10, 15_000])
        self.cut += 1
        for _ in range(rng.choice([0, 0, 1, 3])):
            self.control.append(self._request())
        rows = [self._event() for _ in range(rng.choice([0, 1, 4, 12]))]
        waiting = self.control[self.handed_over :]
        taken = waiting[: rng.randint(0, len(waiting))]
        rows += [
            Row("d.control", 0, self.handed_over + at, self.time_ms, control=value) for at, value in enumerate(taken)
        ]
        self.handed_over += len(taken)
        slices = sorted(rng.randint(0, 2) for _ in rows)
        rows = [row._replace(slice=slice_) for row, slice_ in zip(rows, slices, strict=True)]
        latest: dict[tuple[str, str, int], int] = {}
        for at, row in enumerate(rows):  # along a partition they never fall
            source = (row.kafka_topic, row.topic_id, row.partition)
            latest[source] = max(latest.get(source, 0), row.slice)
            rows[at] = row._replace(slice=latest[source])
        rng.shuffle(rows)
        return Batch.of(self.time_ms, rows, cut=self.cut, topic_order=tuple(rng.sample(KAFKA_TOPICS, 2)))

    def _event(self) -> Row:
        rng = self.rng
        name, partition = rng.choice(KAFKA_TOPICS), rng.randint(0, 1)
        topic_id = self.ids[name]
        self.offsets[name, topic_id, partition] += rng.choice([0, 0, 3])  # a gap
        offset = self.offsets[name, topic_id, partition]
        self.offsets[name, topic_id, partition] += 1
        topic = rng.choice([*TOPICS, *TOPICS, "", f"rare{rng.randint(0, 30)}"])
        timestamp_ms = self.time_ms + rng.choice([0, -5, 10**9])
        return Row(name, partition, offset, timestamp_ms, topic, rng.randrange(1 << 32), topic_id=topic_id)

    def _request(self) -> bytes:
        rng = self.rng
        if rng.random() < 0.1:
            return rng.choice([b"junk", b"", encode_claim(Claim(incarnation=1, owner="o"))])
        if rng.random() < 0.08:
            return self._retire()
        if rng.random() < 0.08:
            return self._skip()
        id_ = rng.choice("abc")
        generation = self.generations[id_] + rng.choice([1, 1, 1, 0, 2])
        request: Request = Subscribe(
            id=id_,
            generation=generation,
            nonce=rng.choice("nm"),
            topics=tuple(sorted(rng.sample([*TOPICS, "unseen", "seldom"], rng.randint(1, 4)))),
            lease_s=rng.choice([0, 15, 30]),
            stamps_ends={},
        )
        draw = rng.random()
        if draw < 0.2:
            request = Unsubscribe(id=id_, generation=generation, nonce="n")
        elif draw < 0.5:
            request = Renew(id=id_, generation=self.generations[id_], nonce=rng.choice("nm"))
        if draw < 0.2 or draw >= 0.5:
            self.generations[id_] = max(generation, self.generations[id_])
        return self._encoded(request)

    def _encoded(self, request: Request) -> bytes:
        if self.signatures is None or self.rng.random() < 0.2:
            return encode_request(request)
        return encode_request(request, self.signatures.signer(signer_of(request)))

    def _retire(self) -> bytes:
        """Producers may go on writing to the topic."""
        name = self.rng.choice(KAFKA_TOPICS)
        request = Retire(id="job", nonce="n", topic=name, topic_id=self.ids[name], seen={0: 50})
        if self.rng.random() < 0.5:
            self.ids[name] += "+"
        return self._encoded(request)

    def _skip(self) -> bytes:
        """Some offsets are lost; what comes behind them may be stamped before that is told, or after."""
        name, partition = self.rng.choice(KAFKA_TOPICS), self.rng.randint(0, 1)
        begin = self.offsets[name, self.ids[name], partition]
        end = self.offsets[name, self.ids[name], partition] = begin + self.rng.randint(1, 4)
        where = {"topic": name, "topic_id": self.ids[name]}
        return self._encoded(Skip(id="job", nonce="n", **where, partition=partition, begin=begin, end=end))

    def results(self, batch: Batch) -> list[tuple[State, Effects]]:
        """What the engine makes of it, by shard."""
        return [step(state, batch, self.starts, signatures=self.signatures) for state in self.states]

    def write(self, batch: Batch, crash_after: int | None) -> int:
        """Writes all, or only so many records of what the batch gives; answers and each stamps partition keep their
        order. Returns how many there were.
        """
        results = self.results(batch)
        streams: list[list[tuple[int, Answer | Record]]] = [[(-1, one) for _, done in results for one in done.answers]]
        for _, done in results:
            for one in done.stamps:
                parts = encode_stamps(one, self.rng.choice([400, 600_000]))
                streams.append([(one.partition, (part.value, dict(part.headers))) for part in parts])
        size, written = sum(map(len, streams)), 0
        while any(streams) and written != crash_after:
            at, record = self.rng.choice([stream for stream in streams if stream]).pop(0)
            written += 1
            if at < 0:
                self.answers.append(record)  # type: ignore[arg-type]
            else:
                self.stamps[at].append(record)  # type: ignore[arg-type]
        if crash_after is None:
            self.states = [state for state, _ in results]
            self.stamped += [one for _, done in results for one in done.stamps]
        return size

    def run_and_tell(self, batches: int) -> None:
        """So many cuts, or none, and a snapshot behind the last one, where there was a batch."""
        begins = self.stamps_ends
        self.run(batches)
        if not self.states[0].hot.batch:
            return
        streams = [list(encode_parts(state, self.rng.choice([100, 600_000]))) for state in self.states]
        while any(streams):
            wire = self.rng.choice([stream for stream in streams if stream]).pop(0)
            self.told += [(wire.value, dict(wire.headers))] * self.rng.choice([1, 1, 2])
        control = Source("d.control", "id-c", 0)
        mark = SnapshotMark(
            domain=self.config.domain,
            incarnation=self.states[0].cold.config.incarnation,
            batch=self.states[0].hot.batch,
            shards=self.config.shards,
            cut=self.cut,
            ends={**{Source(*at): offset for at, offset in self.offsets.items()}, control: self.handed_over},
            starts=self.starts,
            topic_order=(),
            stamps_begins=begins,
            stamps_ends=self.rng.choice([None, self.stamps_ends]),
            keys=self.signatures.prints if self.signatures else (),
        )
        wire = encode_mark(mark)
        self.told.append((wire.value, dict(wire.headers)))
        self.marks.append(mark)

    def write_late(self) -> None:
        """A job that was replaced writes a batch of the past once more, or a few, or parts of them, as it likes."""
        self.late = self.stamps_ends
        rng, past = self.rng, sorted({one.batch for one in self.stamped})[-8:]
        begin = rng.randint(0, len(past))
        again = past[begin : begin + rng.choice([1, 1, 2, 3])]
        for partition in rng.sample(range(len(self.stamps)), rng.randint(1, len(self.stamps))):
            for one in self.stamped:
                if one.batch in again and one.partition == partition:
                    parts = list(encode_stamps(one, rng.choice([400, 600_000])))
                    for part in parts[: len(parts) - rng.choice([0, 0, 0, 1])]:
                        self.stamps[partition].append((part.value, dict(part.headers)))

    @property
    def stamps_ends(self) -> tuple[int, ...]:
        """Where the stamps partitions end."""
        return tuple(map(len, self.stamps))

    @property
    def stamps_bounds(self) -> dict[int, tuple[int, int]]:
        """Where they begin by now, and end."""
        return dict(enumerate(zip(self.trimmed, self.stamps_ends, strict=True)))

    def trim(self) -> None:
        """Retention removes some of the oldest stamps, in each partition as it likes."""
        for partition, records in enumerate(self.stamps):
            self.trimmed[partition] = self.rng.choice([0, self.rng.randint(0, len(records)), len(records)])

    def gone(self, batch: int) -> bool:
        """Whether a partition has lost some record of a batch behind this one."""
        trimmed = zip(self.stamps, self.trimmed, strict=True)
        return any(int(headers["batch"]) > batch for records, gone in trimmed for _, headers in records[:gone])

    def recovery(
        self, config: EngineConfig | None = None, *, behind: SnapshotMark | None = None
    ) -> tuple[Recovery, StampsLog]:
        """What is recovered from the batches that all partitions have, read in some order."""
        made, log = self._beginning(config or self.config, behind)
        begins = behind.stamps_begins if behind else (0,) * len(self.stamps)
        left = {
            at: list(enumerate(records))[max(self.trimmed[at], begins[at]) :] for at, records in enumerate(self.stamps)
        }
        while any(left.values()):
            at = self.rng.choice([at for at, records in left.items() if records])
            offset, (value, headers) = left[at].pop(0)
            log.add(at, value, headers, offset)
            while (batch := log.take()) is not None:
                made.absorb(batch)
        return made, log

    def _beginning(self, config: EngineConfig, behind: SnapshotMark | None) -> tuple[Recovery, StampsLog]:
        requests = list(enumerate(self.control))
        if behind is None:
            made = Recovery.from_the_first(config, self.starts, ControlLog(requests), self.signatures)
            return made, StampsLog(config.domain, self.config.stamps_partitions)
        snapshot = self.snapshot(behind)
        (goes_on,) = (offset for source, offset in snapshot.mark.ends.items() if source.topic == "d.control")
        made = Recovery.behind(snapshot, config, ControlLog(requests[goes_on:]), self.signatures)
        return made, StampsLog(config.domain, self.config.stamps_partitions, behind=snapshot)

    def snapshot(self, mark: SnapshotMark) -> Snapshot:
        """That of a mark, as it is read."""
        marks = [decode_mark(value, headers, self.config.domain) for value, headers in self.told]
        assembler = SnapshotAssembler(mark=next(found for found in marks if found == mark))
        for value, headers in self.told:
            assembler.add(value, headers)
        return assembler.snapshot()


def canonical(states: Sequence[State]) -> list[tuple[bytes, bytes, object]]:
    """The states' bytes, which are equal for equal states. Ranks that nothing hangs on any more, of topics that came
    and were retired in one batch, are left out.
    """
    found: list[tuple[bytes, bytes, object]] = []
    for state in states:
        cold = state.cold
        names = [topic for rank, topic in enumerate(cold.kafka_topics) if rank not in cold.retired]
        retired = {cold.kafka_topics[rank]: lost for rank, lost in cold.retired.items()}
        sources = [(*cold.kafka_topics[rank], partition) for rank, partition in cold.sources]
        plain = replace(cold, kafka_topics=(), retired={}, sources=())
        found.append((encode_hot(state.hot), encode_cold(plain), (names, sorted(retired.items()), sources)))
    return found
