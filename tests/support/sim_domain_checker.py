"""Judges what the job of a finished world wrote to the domain's own topics, by the records of its batches."""

from collections.abc import Mapping, Sequence

import numpy as np
from sim_cuts import read_cuts, taken
from sim_sequencer import SimSequencer
from sim_truth import Item, Told, Truth, passed_over

from totalorder.sequencer.pi import Records, misplaced, ranked
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renewed,
    Repeated,
    Retired,
    Skipped,
    decode_answer,
)
from totalorder.sequencer.wire.cuts import Cut as PublicCut
from totalorder.sequencer.wire.stamps import KafkaTopic, StampedBatch
from totalorder.subscriber.transport import Partition, Record


class DomainChecker:
    """`check` raises AssertionError where something was written that is not true."""

    def __init__(self, sequencer: SimSequencer, truth: Truth) -> None:
        self.sequencer, self.truth = sequencer, truth
        self.kafka, self.names, self.domain = sequencer.kafka, sequencer.names, sequencer.domain
        self.stamped: dict[int, dict[int, StampedBatch]] = {}
        """By batch and stamps partition what is on stamps."""
        self._digests: dict[tuple[int, int], str] = {}
        """By stamps partition and batch."""
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        """The numbers by which stamps and grants call pub/sub topics."""

    def check(self) -> None:
        """Grants, stamps, cuts, and the order."""
        self._check_answers()
        self._check_stamps()
        self._check_cuts()
        self._check_looks()

    def _check_answers(self) -> None:
        """Grants holds the answers that the requests deserve, and nothing else."""
        told = {each.g: each for each in self.truth.told}
        found = [_told(answer) for answer in self.sequencer.answered]
        assert found == self.truth.told, _first_difference(found, self.truth.told)
        for record in self.kafka.ever(Partition(self.names.grants, 0)):
            assert record.value is not None
            answer = decode_answer(record.value)
            assert _told(answer) == told[answer.g], f"{answer} is not {told[answer.g]}"
            if isinstance(answer, Grant):
                self._check_bounds(answer)
                self._check_settings(answer)

    def _check_bounds(self, grant: Grant) -> None:
        """An event of a partition that the grant names lies behind it if and only if its offset is not below."""
        for item in self.truth.items:
            least = grant.next_offsets.get(item.partition.source)
            if item.topic in grant.topics and item.g > grant.g:
                assert (least or 0) <= item.offset, f"{grant} begins behind {item}"
            elif item.topic and item.g < grant.g and least is not None:
                assert item.offset < least, f"{grant} begins before {item}"

    def _check_settings(self, grant: Grant) -> None:
        """What a subscriber knows of the domain, and of its topics' numbers, it has from there."""
        domain, told = self.domain, (grant.stamps_partitions, grant.min_subscriptions, grant.topic_by)
        assert told == (domain.stamps_partitions, domain.min_subscriptions, domain.topic_by), f"{grant}: {domain}"
        assert grant.ids.keys() == {*grant.topics, *grant.former}, f"{grant} has no number of a topic"
        self._check_numbers(grant.ids)

    def _check_numbers(self, numbers: Mapping[str, int]) -> None:
        """A number is of one topic, for ever."""
        for name, number in numbers.items():
            found = self._numbers.setdefault(name, number), self._names.setdefault(number, name)
            assert found == (number, name), f"{name} is number {number}, and by another record {found}"

    def _check_stamps(self) -> None:
        """Every attempt of every batch in every stamps partition says the same, and what is true."""
        rows: dict[tuple[int, int], list[Item]] = {}
        for item in self.truth.items:
            if item.topic:
                rows.setdefault((item.batch, self.truth.partition_of(item.topic)), []).append(item)
        for number in range(self.domain.stamps_partitions):
            assembler, through = StampsAssembler(domain=self.domain.name, partition=number), 0
            for record in self.kafka.ever(Partition(self.names.stamps, number)):
                headers = {name: value for name, value in record.headers if value is not None}
                batch = assembler.add(record.value, headers, offset=record.offset)
                if batch is not None:
                    assert batch.batch <= through + 1, f"batch {through + 1} is left out of stamps[{number}]"
                    through = max(through, batch.batch)
                    self.stamped.setdefault(batch.batch, {})[number] = batch
                    self._check_batch(batch, rows.get((batch.batch, number), []))
            assert through == len(self.truth.batches), f"stamps[{number}] ends with batch {through}"

    def _check_batch(self, batch: StampedBatch, items: Sequence[Item]) -> None:
        true = self.truth.batches[batch.batch - 1]
        assert (batch.cut, batch.time_ms, batch.g) == (true.cut, true.time_ms, true.g), f"{batch} is not {true}"
        assert batch.control_g == true.control_g, f"{batch} has another frontier of grants than {true}"
        digest = self._digests.setdefault((batch.partition, batch.batch), batch.digest)
        before = self._digests.get((batch.partition, batch.batch - 1), batch.previous_digest)
        assert (batch.previous_digest, batch.digest) == (before, digest), f"the chain of digests breaks at {batch}"
        self._check_numbers({name: number for number, name in batch.names.items()})
        assert batch.next_offsets.keys() == true.ends.keys(), f"{batch} is not {true}"
        for source, end in batch.next_offsets.items():
            assert true.stamped_ends.get(source, 0) <= end <= true.ends[source], f"{source} ends at {end}"
        names, by_g = batch.names, {item.g: item for item in items}
        assert sorted(batch.rows.g.tolist()) == sorted(by_g), f"batch {batch.batch} stamps other events"
        for row, g in enumerate(batch.rows.g.tolist()):
            item, source = by_g[g], batch.sources[int(batch.rows.source[row])]
            found = (names[int(batch.rows.topic[row])], int(batch.rows.n[row]), source, int(batch.rows.offset[row]))
            assert found == (item.topic, item.n, *item.place), f"g {g} is stamped as {found}, and is {item}"
            entries = {names[topic]: n for topic, n in batch.rows.entries(row).items()}
            assert item.must.items() <= entries.items() <= item.may.items(), f"{item} has entries {entries}"

    def _check_cuts(self) -> None:
        """Cuts, events and stamps alone give what each batch took, and π, to everybody who reads them."""
        log = self.kafka.ever(Partition(self.names.cuts, 0))
        cuts, _ = read_cuts(log, self.domain.name)
        for batch in self.sequencer.batches:
            found = _places(self._taken(cuts[batch.number]))
            assert found == _places(batch.slices), f"cut {batch.number} takes something else than its batch"
        later, _ = read_cuts(log[len(log) // 2 :], self.domain.name)
        # Each cut at which reading began, also anew behind old ones that came late, may be one that never ran.
        for number in (one for one in later if one - 1 in later):
            assert later[number].same_as(cuts[number]), f"cut {number} is another to who begins to read in the middle"
        self._check_order(cuts)

    def _check_order(self, cuts: Mapping[int, PublicCut]) -> None:
        ranks: Mapping[KafkaTopic, int] = {}
        retired = self.truth.retired
        for number, parts in sorted(self.stamped.items()):
            batch = list(parts.values())
            ranks = ranked(ranks, batch[0])
            cut = cuts[batch[0].cut]
            # Of a topic that was retired nothing counts; in the batch itself what came before does.
            gone = {topic for topic, at in retired.items() if at < number or (at == number and topic not in ranks)}
            wrong = misplaced(cut, self._records(cut, gone), batch, ranks)
            assert wrong is None, f"stamps of batch {number} put {wrong} in this order, and π does not"

    def _taken(self, cut: PublicCut) -> list[list[Record]]:
        """The records of a cut, without those that its own requests pass over."""
        slices = taken(cut, self.kafka.ever)
        control = (record for records in slices for record in records if record.topic == self.names.control)
        passed = passed_over(control, self.domain)
        return [
            [record for record in records if record.offset >= passed.get(record.at.source, 0)] for records in slices
        ]

    def _records(self, cut: PublicCut, gone: set[KafkaTopic]) -> Records:
        place = {source: at for at, source in enumerate(cut.sources)}
        columns = [
            (place[record.at.source], record.offset, record.timestamp_ms)
            for records in self._taken(cut)
            for record in records
            if record.topic != self.names.control and KafkaTopic(record.topic, record.topic_id) not in gone
        ]
        source, offset, timestamp_ms = np.array(columns, dtype=np.int64).reshape(-1, 3).T
        return Records(source=source, offset=offset, timestamp_ms=timestamp_ms)

    def _check_looks(self) -> None:
        """What was written after a look that already had another record never comes before it, whatever clocks say."""
        items = [(item.g, item.partition, self.kafka.written[item.partition, item.offset]) for item in self.truth.items]
        for look in self.sequencer.remembered:
            had = (g for g, partition, at in items if at <= look.asked.get(partition, -1))
            after = (g for g, _, at in items if at > look.end)
            assert max(had, default=0) < min(after, default=10**9), (
                f"a look told them apart, and π inverts them: {look}"
            )


def _places(slices: Sequence[Sequence[Record]]) -> list[list[tuple[Partition, int]]]:
    """A look at which only what is gone by now had moved leaves an empty slice. One of two equal cuts may lack it."""
    return [sorted((record.at, record.offset) for record in records) for records in slices if records]


def _told(answer: Answer) -> Told:
    """An answer as sim_truth says it."""
    said: object = None
    if isinstance(answer, Grant):
        clock = tuple(sorted(answer.clock.items()))
        return Told(
            "Grant",
            answer.id,
            answer.generation,
            answer.nonce,
            answer.g,
            answer.offset,
            answer.batch,
            answer.topics,
            answer.former,
            clock,
            (answer.continuous, answer.lease_s, tuple(sorted(answer.stamps_ends.items()))),
        )
    if isinstance(answer, Retired):
        said = (KafkaTopic(answer.topic, answer.topic_id), tuple(answer.lost.items()))
        return Told("Retired", answer.id, 0, answer.nonce, answer.g, answer.offset, answer.batch, said=said)
    if isinstance(answer, Skipped):
        said = (answer.topic, answer.topic_id, tuple(answer.lost.items()))
        return Told("Skipped", answer.id, 0, answer.nonce, answer.g, answer.offset, answer.batch, said=said)
    if isinstance(answer, Renewed):
        said = answer.expires_ms
    elif isinstance(answer, Repeated):
        said = answer.answered_g
    elif isinstance(answer, Ended):
        said = answer.reason
    assert isinstance(answer, Renewed | Repeated | Ended | Rejection)
    clock = tuple(sorted(answer.clock.items())) if isinstance(answer, Ended) else ()
    kind = type(answer).__name__
    return Told(
        kind, answer.id, answer.generation, answer.nonce, answer.g, answer.offset, answer.batch, clock=clock, said=said
    )


def _first_difference(found: Sequence[object], true: Sequence[object]) -> str:
    for one, other in zip(found, true, strict=False):
        if one != other:
            return f"answered was {one}, and should be {other}"
    return f"{len(found)} answers, and there should be {len(true)}"
