"""The sequencer job over SimKafka: looks, cuts, the engine, the wire codec, crashes between writes."""

import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from chunked import chunk_of
from sim_cuts import Cut, Look
from sim_kafka import SimKafka
from sim_snapshots import Snapshots

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, EngineConfig, State, initial_state, step
from totalorder.sequencer.snapshot import encode_parts
from totalorder.sequencer.state import decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.codec import WireRecord, encode_stamps
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Retire,
    Skip,
    answer_key,
    encode_answer,
    encode_request,
)
from totalorder.sequencer.wire.cuts import CutEncoder
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.signing import RETIRE, Signatures
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.batches import to_batch
from totalorder.streaming.cut.chunk import decode, encode
from totalorder.subscriber.naming import topic_of
from totalorder.subscriber.transport import Partition, Record

LINKS = (Grant, Ended)
KEY_EVERY = 5
"""So many cuts at the most, and there is a key cut."""
MOST_LATE_CUTS = 2
"""Of one number; who reads cuts remembers some more contents of one than that."""
Write = tuple[Partition, bytes | None, bytes, tuple[tuple[str, bytes], ...]]


@dataclass(frozen=True)
class Domain:
    """Fixed settings of a simulated domain."""

    name: str = "d"
    stamps_partitions: int = 2
    shards: int = 1
    min_subscriptions: int = 1
    topic_by: str = "topic"
    keyframe_every: int = 4
    max_part_bytes: int = 600_000
    keys: tuple[str, ...] = ()
    """With which requests must be signed, with any of them; none: need not."""


def identity_of(incarnation: int) -> str:
    """The identity of the checkpoint of an incarnation."""
    return "simulated" if incarnation == 1 else f"recovered-{incarnation}"


@dataclass
class SimSequencer:
    """`look` notes the ends; `run` makes a batch of what has come, or, killed after a part of its output, repeats it.

    A batch takes whole slices. Of one that alone is too much it takes a part, and the next batch begins with the rest.
    """

    kafka: SimKafka
    domain: Domain
    event_topics: list[str]
    rng: random.Random
    time_ms: int = 1_000_000
    incarnation: int = 1
    identity: str = "simulated"
    """Of the checkpoint."""
    claimed_at: int = -1
    """Where on control its claim stands; the first one made none."""
    states: list[State] = field(default_factory=list)
    offsets: dict[Partition, int] = field(default_factory=dict)
    starts: dict[Source, int] = field(default_factory=dict)
    """Where event partitions begin that had lost their first records before they were read."""
    batches: list[Cut] = field(default_factory=list)
    """The cut of every batch that is over, the n-th at place n - 1; some had nothing that is stamped."""
    topic_order: tuple[str, ...] = ()
    looks: list[Look] = field(default_factory=list)
    """Those that have something that is in no batch yet."""
    remembered: list[Look] = field(default_factory=list)
    """All of them, but for those that a process had in memory when it died."""
    meanwhile: Callable[[], None] = lambda: None
    """What others do while a look is under way."""
    answers: list[Grant | Ended] = field(default_factory=list)
    """All that changed a subscription, whatever became of the log of grants."""
    ids: dict[str, str] = field(default_factory=dict)
    """Kafka's ids of the event topics that are read."""
    planned: Cut | None = None
    """The write-ahead log: a batch that was begun and is not over runs again as it was."""
    answered: list[Answer] = field(default_factory=list)
    """Every answer of a batch that is over, in order."""
    recuts: bool = False
    """Whether each run cuts its parts in its own way."""
    late_cuts: bool = False
    """Whether cuts that never ran may come behind those that did."""
    packs: bool = False
    """Whether records come to the engine in chunks, as in the job."""
    saves: bool = False
    """Whether state goes through bytes: the hot part at each batch, the cold one when the engine says so."""
    minds_losses: bool = False
    """Whether it looks for events that are gone before they were read."""
    records_losses: bool = False
    """Whether it goes on then, and records them; else it stands still."""
    former: list[list[list[Write]]] = field(default_factory=list)
    """The output of the last batches as streams, for a process that was replaced and still writes."""
    begun_behind: int = 0
    """How often a recovery has begun with a snapshot."""
    published: dict[int, dict[Source, int]] = field(default_factory=dict)
    """By number, where each cut ends as it was made public last."""

    def __post_init__(self) -> None:
        self.names = DomainTopics(domain=self.domain.name)
        for name in (self.names.control, self.names.grants, self.names.cuts):
            self.kafka.create(name, 1)
        for name in (self.names.stamps, self.names.positions, self.names.receipts):
            self.kafka.create(name, self.domain.stamps_partitions)
        keys = self.domain.keys
        self.signatures = Signatures(keys=keys, domain=self.domain.name) if keys else None
        self._signer = self.signatures.signer(RETIRE) if self.signatures is not None else None
        self._encoder = CutEncoder(key_every=KEY_EVERY)
        self._published: Cut | None = None
        self._late_cuts: list[tuple[Cut, WireRecord]] = []
        """Of processes that died before their cuts were in the write-ahead log."""
        self.snapshots = Snapshots(self)
        self.go_on_with([initial_state(self.config(shard)) for shard in range(self.domain.shards)])

    def config(self, shard: int) -> EngineConfig:
        """What is fixed for a shard."""
        return EngineConfig(
            domain=self.domain.name,
            identity=self.identity,
            incarnation=self.incarnation,
            stamps_partitions=self.domain.stamps_partitions,
            shards=self.domain.shards,
            shard=shard,
            min_subscriptions=self.domain.min_subscriptions,
            topic_by=self.domain.topic_by,
            keyframe_every=self.domain.keyframe_every,
        )

    def go_on_with(self, states: Sequence[State]) -> None:
        """These are the shards' states, in memory and saved."""
        self.states = list(states)
        self._saved = [(encode_hot(state.hot), encode_cold(state.cold)) for state in states]

    def restart(self) -> None:
        """A new process begins with what the one before it saved. What that had only looked at, nobody knows."""
        self.forget(self.looks)
        self.looks.clear()
        self._encoder, self._published = CutEncoder(key_every=KEY_EVERY), None
        self.snapshots.restart()
        if self.saves:
            self.states = [State(hot=decode_hot(hot), cold=decode_cold(cold)) for hot, cold in self._saved]

    def forget(self, looks: Sequence[Look]) -> None:
        """No batch has what these looks told apart."""
        self.remembered = [look for look in self.remembered if look not in looks]

    def write_late(self) -> None:
        """A process that was replaced writes some of a former batch once more."""
        for stream in self.rng.choice(self.former) if self.former else ():
            if self.rng.random() < 0.6:
                begin = self.rng.randrange(len(stream))
                for partition, key, value, headers in stream[begin : begin + self.rng.randint(1, 6)]:
                    self.kafka.append(partition, key=key, value=value, headers=headers, timestamp_ms=self.time_ms)

    def retire(self) -> None:
        """Asks for the end of each topic that Kafka has no longer, and reads what has its name now."""
        for topic in self.event_topics:
            former, present = self.ids.get(topic, ""), self.kafka.ids.get(topic, "")
            if former != present:
                self.ids[topic] = present
            if former not in ("", present):
                ends = [end for look in self.remembered for end in look.ends.items()]
                seen: dict[int, int] = {}
                for partition, end in ends:
                    if (partition.topic, partition.topic_id) == (topic, former):
                        seen[partition.number] = max(end, seen.get(partition.number, 0))
                request = Retire(id="job", nonce="n", topic=topic, topic_id=former, seen=seen)
                self.kafka.append(Partition(self.names.control, 0), value=encode_request(request, self._signer))

    # --- cuts ---------------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Asks for the end of one partition after the other. A look at which nothing had moved tells nothing."""
        asked, ends = {}, {}
        topics = [self.names.control, *self.event_topics]
        partitions = [
            Partition(topic, number, self.kafka.ids[topic])
            for topic in topics
            for number in range(self.kafka.topics.get(topic, 0))
        ]
        for partition in partitions:
            if partition not in self.offsets:
                self.offsets[partition] = begin = self.kafka.begin(partition)
                self.starts |= {partition.source: begin} if begin else {}
        for partition in self.rng.sample(partitions, len(partitions)):
            self.meanwhile()
            asked[partition], ends[partition] = self.kafka.moment, self.kafka.end(partition)
        if not self.remembered or self.remembered[-1].ends != ends:
            self.looks.append(Look(ends, asked, self.kafka.moment))
            self.remembered.append(self.looks[-1])

    def stray(self, limit: int) -> None:
        """A process plans a batch and dies before that is in the write-ahead log. Its cut is public, now or later."""
        if self.planned is not None:
            return
        self.look()
        offsets, looks = dict(self.offsets), list(self.looks)
        cut = self._plan(limit)
        self.offsets, self.looks = offsets, looks
        if cut is not None:
            record = self._encoded(cut)
            if self.late_cuts and len(self._late_cuts) < MOST_LATE_CUTS and self.rng.random() < 0.5:
                self._late_cuts.append((cut, record))
            else:
                self._send_cut(record)
            self.restart()

    def _publish(self, cut: Cut) -> None:
        """Makes it public, once in a process's life."""
        if self._published is not cut:
            self._published, public = cut, cut.public(self.kafka, self.domain.name, self.incarnation)
            self.published[cut.number] = dict(zip(public.sources, public.ends.tolist(), strict=True))
            self._send_cut(self._encoded(cut))
        while self._late_cuts and self.rng.random() < 0.5:
            late, record = self._late_cuts.pop(0)
            # Where both end alike nothing shows which of them the next one goes on from.
            if late.number < cut.number or late.ends_elsewhere(cut):
                self._send_cut(record)

    def _encoded(self, cut: Cut) -> WireRecord:
        public = cut.public(self.kafka, self.domain.name, self.incarnation)
        return self._encoder.encode(public, now_s=self.time_ms / 1000)

    def _send_cut(self, record: WireRecord) -> None:
        cuts = Partition(self.names.cuts, 0)
        self.kafka.append(cuts, value=record.value, headers=record.headers, timestamp_ms=self.time_ms)

    def _losses(self) -> dict[Partition, tuple[int, int]]:
        """What is gone of each event partition, from where the next batch would begin."""
        partitions = [
            Partition(topic, number, self.kafka.ids[topic])
            for topic in self.event_topics
            for number in range(self.kafka.topics.get(topic, 0))
        ]
        found = {partition: (self.offsets[partition], self.kafka.begin(partition)) for partition in partitions}
        return {partition: (first, end) for partition, (first, end) in found.items() if end > first}

    def _pass_over(self, lost: Mapping[Partition, tuple[int, int]]) -> Cut | None:
        """A batch of control alone, which tells of it, and passes over it; or the process dies in between."""
        control = Partition(self.names.control, 0, self.kafka.ids[self.names.control])
        for (topic, number, topic_id), (begin, end) in lost.items():
            request = Skip(id="job", nonce="n", topic=topic, topic_id=topic_id, partition=number, begin=begin, end=end)
            self.kafka.append(Partition(self.names.control, 0), value=encode_request(request, self._signer))
        if self.rng.random() < 0.3:
            return None
        begins, end = dict(self.offsets), self.kafka.end(control)
        found = list(self._records(control, self.offsets[control], end))
        self.offsets |= {control: end} | {partition: behind for partition, (_, behind) in lost.items()}
        return Cut(len(self.batches) + 1, self.time_ms, self.topic_order, [found], begins, [dict(self.offsets)])

    def _plan(self, limit: int) -> Cut | None:
        begins, ends, slices = dict(self.offsets), list[dict[Partition, int]](), list[list[Record]]()
        whole = []
        while self.looks:
            found, room = self._slice(self.looks[0]), limit - sum(map(len, slices))
            if len(found) > room:
                if not slices:
                    slices.append(self._part(found, room))
                    ends.append(dict(self.offsets))
                break
            slices.append(found)
            whole.append(self.looks.pop(0))
            self.offsets |= self._had(whole[-1])
            ends.append(dict(self.offsets))
        if self.offsets == begins:
            return None
        return Cut(len(self.batches) + 1, self.time_ms, self.topic_order, slices, begins, ends, tuple(whole))

    def _had(self, look: Look) -> dict[Partition, int]:
        """How far the look saw, in topics that are still there."""
        return {partition: end for partition, end in look.ends.items() if self.kafka.has(partition)}

    def _slice(self, look: Look) -> list[Record]:
        """What it has and no batch yet."""
        return [record for at, end in self._had(look).items() for record in self._records(at, self.offsets[at], end)]

    def _records(self, partition: Partition, begin: int, end: int) -> Iterator[Record]:
        records = self.kafka.records(partition, begin, end - begin)
        return (record for record in records if record.offset < end)

    def _part(self, records: list[Record], size: int) -> list[Record]:
        """So many of a slice's records, of each partition the first ones."""
        left: dict[Partition, list[Record]] = {}
        for record in records:
            left.setdefault(record.at, []).append(record)
        part = []
        for _ in range(size):
            partition = self.rng.choice([partition for partition, queue in left.items() if queue])
            part.append(left[partition].pop(0))
            self.offsets[partition] = part[-1].offset + 1
        return part

    # --- batches ------------------------------------------------------------------------------------------------------

    def run(self, *, limit: int = 10**9, crash_after: int | None = None) -> bool:
        """One batch of at most `limit` records, if there is one; with `crash_after`, only that many writes of it."""
        if self.planned is None:
            self.look()
            lost = self._losses() if self.minds_losses else {}
            if lost:
                self.restart()  # a process that meets a loss is over
                if not self.records_losses:
                    return False
            self.planned = self._pass_over(lost) if lost else self._plan(limit)
            if self.planned is None:
                return False
        cut = self.planned
        self._publish(cut)
        results = self.results(cut)
        streams = [stream for after, effects in results for stream in self._writes(after, effects) if stream]
        writes = self._interleaved(streams)
        for partition, key, value, headers in writes[:crash_after]:
            self.kafka.append(partition, key=key, value=value, headers=headers, timestamp_ms=cut.time_ms)
        if crash_after is not None:
            if self.rng.random() < 0.5:
                self.restart()
            return True
        self.commit(cut, results)
        self.former = [*self.former[-4:], streams]
        return True

    def results(self, cut: Cut) -> list[tuple[State, Effects]]:
        """What the engine makes of a batch, by shard. Without records it is not asked."""
        if not any(cut.slices):
            return [(state, Effects()) for state in self.states]
        batch = self.batch(cut)
        return [
            step(state, batch, self.starts, signatures=self.signatures, claimed_at=self.claimed_at)
            for state in self.states
        ]

    def batch(self, cut: Cut) -> Batch:
        """A cut's records as the engine takes them, in any order."""
        rows = [self._row(record, slice_) for slice_, records in enumerate(cut.slices) for record in records]
        self.rng.shuffle(rows)
        if not self.packs:
            return Batch.of(cut.time_ms, rows, cut=cut.number, topic_order=cut.topic_order)
        size = self.rng.randint(1, len(rows))
        chunks = [
            decode(encode(chunk_of(rows[at : at + size], cut=cut.number, topic_order=cut.topic_order)))
            for at in range(0, len(rows), size)
        ]
        control, topic_by = self.names.control, self.domain.topic_by
        return to_batch(chunks, time_ms=cut.time_ms, control_topic=control, topic_by=topic_by)

    def commit(self, cut: Cut, results: Sequence[tuple[State, Effects]]) -> None:
        """The batch is over."""
        self.states = [state for state, _ in results]
        self.batches.append(cut)
        self.answered += chain.from_iterable(effects.answers for _, effects in results)
        self.answers += [answer for _, effects in results for answer in effects.answers if isinstance(answer, LINKS)]
        self.planned = None
        self.snapshots.note(cut.number, self.states[0].hot.batch, results[0][1].asked_at)
        if self.saves:
            self._saved = [
                (encode_hot(state.hot), encode_cold(state.cold) if effects.cold_changed else cold)
                for (state, effects), (_, cold) in zip(results, self._saved, strict=True)
            ]

    def take_over(self, states: Sequence[State], offsets: Mapping[Partition, int], claimed_at: int) -> None:
        """The job of the next incarnation begins with these states behind these offsets; of `planned` nothing is left.
        Its claim is there.
        """
        self.incarnation, self.identity = self.incarnation + 1, identity_of(self.incarnation + 1)
        self.claimed_at = claimed_at
        self.domain = replace(self.domain, shards=len(states))
        colds = [replace(state.cold, config=self.config(shard)) for shard, state in enumerate(states)]
        self.go_on_with([replace(state, cold=cold) for state, cold in zip(states, colds, strict=True)])
        self.offsets |= offsets
        self.planned = None
        self.restart()

    def _row(self, record: Record, slice_: int) -> Row:
        control = record.topic == self.names.control
        return Row(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            "" if control else topic_of(record, self.domain.topic_by) or "",
            zlib.crc32(record.value) if record.value is not None else 0,
            (record.value or b"") if control else None,
            slice_,
            record.topic_id,
        )

    def _writes(self, after: State, effects: Effects) -> list[list[Write]]:
        """Streams of writes, each of which keeps its order; with the state behind the batch if it is asked for."""
        streams: list[list[Write]] = [
            [(Partition(self.names.grants, 0), answer_key(a), encode_answer(a), ()) for a in effects.answers]
        ]
        for stamped in effects.stamps:
            at = Partition(self.names.stamps, stamped.partition)
            most = self.rng.choice([900, 1_500, 600_000]) if self.recuts else self.domain.max_part_bytes
            parts = encode_stamps(stamped, most)
            streams.append([(at, None, part.value, part.headers) for part in parts])
        if effects.asked_at is not None and self.names.state in self.kafka.topics:
            at, most = Partition(self.names.state, 0), self.rng.choice([200, 600_000])
            streams.append([(at, None, part.value, part.headers) for part in encode_parts(after, most)])
        return streams

    def _interleaved(self, outputs: Sequence[Sequence[Write]]) -> list[Write]:
        streams = [list(stream) for stream in outputs]
        writes = []
        while streams:
            stream = self.rng.choice(streams)
            writes.append(stream.pop(0))
            if not stream:
                streams.remove(stream)
        return writes
