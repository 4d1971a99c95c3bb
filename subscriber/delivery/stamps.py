"""The stamps partitions: which are read from where, how far stamps are complete, and what batches say that is owed."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.numbering import spans
from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, StampedBatch, StampRows
from totalorder.subscriber.delivery.effects import Effect, PauseStamps, ReadStamps, ResumeStamps, StopStamps
from totalorder.subscriber.delivery.partition import BatchMark, StampsPartition
from totalorder.subscriber.delivery.rows import Rows, among, counts, groups
from totalorder.subscriber.delivery.sets import Sets

Ints = npt.NDArray[np.int64]


class Stamps:
    """All stamps partitions that the subscription has read; `effects` takes what is to be done."""

    def __init__(self, domain: str, sets: Sets, effects: list[Effect], *, max_waiting: int) -> None:
        self._domain, self._sets, self._effects, self._max_waiting = domain, sets, effects, max_waiting
        self.parts: dict[int, StampsPartition] = {}
        self.of_set: list[StampsPartition] = []
        """Those that hold the stamps of the set in force."""
        self._marks: dict[int, tuple[StampsPartition, BatchMark]] = {}
        """By number, those of batches with rows that are not acknowledged."""
        self._marked = 0

    def begin(self, number: int, mark: StampsMark) -> None:
        """Reads a partition from a mark on, unless it is read."""
        part = self.parts.get(number)
        if part is None:
            self.parts[number] = StampsPartition(self._domain, number, mark)
        elif part.reading:
            return
        else:
            part.read_again(mark)
        self._effects.append(ReadStamps(partition=number, offset=mark.offset))

    def forget_dropped(self, needed: set[int]) -> None:
        """Reads no longer what no set needs any more."""
        for number in self.parts.keys() - needed:
            if self.parts[number].reading:
                self.parts[number].stop()
                self._effects.append(StopStamps(partition=number))

    def forget_retired(self, topics: set[KafkaTopic]) -> None:
        """Nothing more of these is stamped, whoever held them: no frontier of theirs is asked for any more."""
        for part in self.parts.values():
            for source in [source for source in part.frontier if source.kafka_topic in topics]:
                del part.frontier[source]

    def set_changed(self) -> None:
        """Another set is in force."""
        self.of_set = [self.parts[number] for number in self._sets.partitions_of(self._sets.topics)]

    def release(self, answers_g: int, number_of: Callable[[Source], int]) -> Iterator[tuple[int, int, Rows]]:
        """What is owed of every batch up to whose end all answers are known, in the order of g: the partition, the
        batch, and its rows. `number_of` gives an event partition's number.
        """
        for part in self.parts.values():
            moved = False
            while released := part.release(answers_g):
                batch, mark = released
                rows = self._owed(batch, number_of)
                if len(rows):
                    self._mark(part, mark, rows)
                yield part.partition, batch.batch, rows
                part.complete(batch)
                for other in self.parts.values():
                    other.learn(batch)
                moved = True
            if moved:
                self.regulate(part)

    def _mark(self, part: StampsPartition, mark: BatchMark, rows: Rows) -> None:
        self._marked += 1
        self._marks[self._marked] = part, mark
        rows.mark[:] = self._marked
        mark.outstanding = len(rows)
        part.waiting += len(rows)

    def _owed(self, batch: StampedBatch, number_of: Callable[[Source], int]) -> Rows:
        rows = batch.rows
        wanted = np.flatnonzero(among(rows.topic, self._sets.names))
        if not len(wanted):
            return Rows.empty()
        g, parts, before = rows.g[wanted], [], -1.0
        for through, topics in self._sets.intervals():
            within = wanted[(g > before) & (g <= through)]
            if len(within):
                parts.append(self._of(rows, within, topics))
            before = through
        owed = Rows.joined([part for part in parts if len(part)])
        if len(owed):
            for place, at in groups(owed.source.copy()):
                owed.source[at] = number_of(batch.sources[place])
        return owed

    def _of(self, rows: StampRows, at: Ints, topics: Mapping[int, str]) -> Rows:
        """Those of the rows at `at` that are new to one set, with `source` as in the batch."""
        new = [at[:0]]
        topic = rows.topic[at]
        bounds = np.flatnonzero(topic[1:] != topic[:-1]) + 1
        for start, end in pairwise([0, *bounds.tolist(), len(at)]):
            if int(topic[start]) in topics:
                places = at[start:end]
                new.append(places[self._sets.count(int(topic[start]), rows.n[places], rows.g[places])])
        found = np.concatenate(new)
        found = found[np.argsort(rows.g[found], kind="stable")]
        columns = (rows.topic, rows.n, rows.g, rows.source, rows.offset, rows.crc)
        table = np.zeros((7, len(found)), dtype=np.int64)
        for line, column in zip(table, columns, strict=False):
            line[:] = column[found]
        return Rows(table, *_gates(rows, found, topics))

    # --- how far ------------------------------------------------------------------------------------------------------

    @property
    def complete_g(self) -> int:
        """π is known through here for the set in force."""
        return min((part.complete_g for part in self.of_set), default=2**63 - 1)

    @property
    def known_g(self) -> int:
        """Nothing is known of π behind here."""
        return max((part.complete_g for part in self.parts.values()), default=0)

    @property
    def read_batch(self) -> int:
        """All that is read is complete through this batch."""
        return min((part.complete_batch for part in self.parts.values() if part.reading), default=0)

    @property
    def read_g(self) -> int:
        """And through this position."""
        return min((part.complete_g for part in self.parts.values() if part.reading), default=0)

    @property
    def frontiers(self) -> list[dict[Source, int]]:
        """Of all that is read: through which offsets of event partitions stamps are known."""
        return [part.frontier for part in self.parts.values() if part.reading]

    def holding(self, topic: int) -> StampsPartition:
        """The partition with the stamps of a topic id."""
        return self.parts[stamps_partition(self._sets.names[topic], self._sets.stamps_partitions)]

    # --- what comes out -----------------------------------------------------------------------------------------------

    def deliver(self, marks: Ints) -> None:
        """Rows with these marks are delivered."""
        for number, count in counts(marks):
            part, _ = self._marks[number]
            part.waiting -= count
            assert part.waiting >= 0, f"{part.name} has delivered more rows than waited"
            self.regulate(part)

    def acknowledge(self, marks: Ints) -> None:
        """Rows with these marks are acknowledged."""
        for number, count in counts(marks):
            _, mark = self._marks[number]
            mark.outstanding -= count
            assert mark.outstanding >= 0, f"more rows of batch {mark.batch} are acknowledged than it has"
            if not mark.outstanding:
                del self._marks[number]

    def check_whole(self, undelivered: Ints, unacknowledged: Ints) -> None:
        """Dear (sequencer/wire/invariants.py): marks of rows that are not delivered; and not acknowledged."""
        waiting: Counter[int] = Counter()
        for number, count in counts(undelivered):
            waiting[self._marks[number][0].partition] += count
        for part in self.parts.values():
            part.check_whole(self._max_waiting)
            told = f"{waiting[part.partition]} rows of {part.name} are in the order, and {part.waiting} are counted"
            assert waiting[part.partition] == part.waiting, told
        outstanding = {number: mark.outstanding for number, (_, mark) in self._marks.items()}
        assert dict(counts(unacknowledged)) == outstanding, "rows that are not acknowledged are miscounted by batches"
        of_set = {part.partition for part in self.of_set}
        assert of_set == self._sets.partitions_of(self._sets.topics), "the set has stamps in other partitions"
        assert all(part.reading for part in self.of_set), "a stamps partition of the set in force is not read"

    def regulate(self, part: StampsPartition) -> None:
        """Pauses a partition of which enough waits, and reads on where half of that is gone."""
        load = part.waiting + part.held_rows
        if load >= self._max_waiting and not part.paused and part.reading:
            part.paused = True
            self._effects.append(PauseStamps(partition=part.partition))
        elif load <= self._max_waiting // 2 and part.paused:
            part.paused = False
            self._effects.append(ResumeStamps(partition=part.partition))


def _gates(rows: StampRows, at: Ints, topics: Mapping[int, str]) -> tuple[Ints, Ints]:
    """`starts` and `gates` of Rows: the entries for other topics of a set, of the rows at `at`."""
    begins = rows.entry_start[at]
    lengths = rows.entry_start[at + 1] - begins
    places = spans(begins, lengths)
    topic = rows.entry_topic[places]
    kept = among(topic, topics) & (topic != np.repeat(rows.topic[at], lengths))
    if not kept.all():
        lengths = np.bincount(np.repeat(np.arange(len(at)), lengths)[kept], minlength=len(at))
        places, topic = places[kept], topic[kept]
    starts = np.zeros(len(at) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts, np.stack((topic, rows.entry_n[places]))
