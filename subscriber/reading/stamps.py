"""Batch after batch, what all stamps partitions that are read say of one."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from totalorder.errors import BatchesMissing, Contradiction
from totalorder.sequencer.wire.chain import Chain
from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery.effects import (
    Effect,
    PauseStamps,
    ReadStamps,
    ReadStampsAnew,
    ResumeStamps,
    StopStamps,
)
from totalorder.subscriber.delivery.rows import Rows, among, groups
from totalorder.subscriber.reading.choice import Choice

Ints = npt.NDArray[np.int64]
UNKNOWN = -1
"""The batch of a mark behind which the first batch that comes is the next one: nothing is in the log by now."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What all stamps partitions that are read say of a batch: `rows` are those of chosen topics, in the order of π,
    with their event partitions by the place in `sources`.
    """

    batch: int
    time_ms: int
    g: int
    sources: tuple[Source, ...]
    ends: tuple[int, ...]
    rows: Rows


@dataclass(eq=False)
class _Partition:
    """A stamps partition."""

    number: int
    chain: Chain | None
    ahead: deque[StampedBatch]
    rows: int = 0
    """Of the batches ahead."""
    paused: bool = False


class Batches:
    """Takes the batches of each stamps partition in the order of its log, and gives them together.

    `marks` say behind which batch each partition is read: nothing that is wanted lies in them, or before. Of the topics
    chosen the rows behind g `after` are taken. `effects` takes what is to be done, `contradicts` makes the error for
    what cannot be.
    """

    def __init__(
        self,
        domain: str,
        partitions: int,
        choice: Choice,
        marks: Mapping[int, StampsMark],
        *,
        after: int,
        effects: list[Effect],
        contradicts: Callable[[str], Contradiction],
        max_waiting: int,
    ) -> None:
        self._domain, self._count, self._choice, self._effects = domain, partitions, choice, effects
        self._contradicts, self._max_waiting = contradicts, max_waiting
        self._after = after
        self.g = 0
        """Of the last batch that was given."""
        self._behind = max((mark.batch for mark in marks.values()), default=0)
        self._marks = marks
        self.anew: dict[int, int] = {}
        """By stamps partition that is read from its beginning, since its mark is misleading or UNKNOWN, the batch
        behind which it goes on: the mark's, or one that came where that is gone.
        """
        self.names: dict[int, str] = {}
        """Of all chosen topics that were seen."""
        self._ids: dict[str, int] = {}
        self._next_n: dict[int, int] = {}
        self._parts: dict[int, _Partition] = {}
        for number, mark in marks.items():
            chain = None if mark.batch == UNKNOWN else Chain(domain, number, batch=mark.batch, digest=mark.digest)
            self._parts[number] = _Partition(number, chain, deque())
            self._effects.append(ReadStamps(partition=number, offset=mark.offset))

    # --- in -----------------------------------------------------------------------------------------------------------

    def admit(self, batch: StampedBatch) -> None:
        """The next complete batch of its partition."""
        part = self._parts.get(batch.partition)
        if part is None:
            return
        if (batch.domain, batch.partitions) != (self._domain, self._count):
            raise self._contradicts(
                f"batch {batch.batch} was made with domain, stamps_partitions = {batch.domain, batch.partitions}, and "
                f"they are {self._domain, self._count}"
            )
        if part.chain is None:
            self.anew[part.number] = batch.batch - 1
            part.chain = Chain(self._domain, part.number, batch=batch.batch - 1, digest="")
            self._behind = max(self._behind, batch.batch - 1)
        try:
            if not part.chain.admit(batch):
                return
        except BatchesMissing:
            # What a replaced process of the job has written late may have misled the search for the place to begin.
            if part.number not in self.anew:
                self._rewind(part)
            elif batch.g <= self._after:  # nothing that is wanted lies in it, or before
                self._pass(part, batch)
            else:
                raise
            return
        part.ahead.append(batch)
        part.rows += len(batch.rows)

    def _rewind(self, part: _Partition) -> None:
        self.anew[part.number] = self._marks[part.number].batch
        self._effects.append(ReadStampsAnew(partition=part.number))
        part.paused = False

    def _pass(self, part: _Partition, batch: StampedBatch) -> None:
        """Reading goes on behind this batch, in all partitions."""
        assert part.chain is not None
        part.chain.go_on_behind(batch.batch, batch.digest)
        self.anew[part.number] = batch.batch
        self._behind = max(self._behind, batch.batch)

    # --- out ----------------------------------------------------------------------------------------------------------

    def take(self, answers_g: int) -> Whole | None:
        """The next batch that all partitions have told of, where all answers through its end are known too."""
        for part in self._parts.values():
            while part.ahead and part.ahead[0].batch <= self._behind:
                self._pop(part)
        fronts = [part.ahead[0] for part in self._parts.values() if part.ahead]
        if len(fronts) < max(1, len(self._parts)) or fronts[0].control_g > answers_g:
            return None
        self._check_same(fronts)
        for part in self._parts.values():
            self._pop(part)
        rows = self._in_order([self._chosen(batch) for batch in fronts])
        assert fronts[0].batch > self._behind, f"batch {fronts[0].batch} is given behind {self._behind}"
        first, before, self._behind = fronts[0], self.g, fronts[0].batch
        if len(rows) and not before < int(rows.g[0]) <= int(rows.g[-1]) <= first.g:
            raise self._contradicts(f"batch {first.batch} ends at g {first.g} behind {before}, and stamps another one")
        self.g = first.g
        rows = rows.part(int(np.searchsorted(rows.g, self._after, side="right")), len(rows))
        return Whole(
            batch=first.batch, time_ms=first.time_ms, g=first.g, sources=first.sources, ends=first.ends, rows=rows
        )

    def _pop(self, part: _Partition) -> None:
        part.rows -= len(part.ahead.popleft().rows)
        assert part.rows >= 0, f"stamps partition {part.number} has given more rows than it held"

    def _check_same(self, fronts: list[StampedBatch]) -> None:
        frames = [(one.batch, one.time_ms, one.cut, one.g, one.control_g, one.sources, one.ends) for one in fronts]
        for one, frame in zip(fronts, frames, strict=True):
            if frame != frames[0]:
                raise self._contradicts(
                    f"stamps partitions {fronts[0].partition} and {one.partition} tell of batch {fronts[0].batch} "
                    f"that it ends at g {fronts[0].g}, of {one.batch} at {one.g}, or other offsets"
                )

    def _chosen(self, batch: StampedBatch) -> Rows:
        """The batch's rows of chosen topics; their numbers follow each other."""
        ids = self._choice.ids(batch.names)
        for topic in ids:
            name = batch.names[topic]
            if self.names.setdefault(topic, name) != name or self._ids.setdefault(name, topic) != topic:
                raise self._contradicts(f"batch {batch.batch} has another number for topic {name!r}: {topic}")
        at = np.flatnonzero(among(batch.rows.topic, ids)) if ids else np.zeros(0, np.int64)
        rows = batch.rows
        table = np.zeros((7, len(at)), dtype=np.int64)
        columns = (rows.topic, rows.n, rows.g, rows.source, rows.offset, rows.crc)
        for line, column in zip(table, columns, strict=False):
            line[:] = column[at]
        for topic, places in groups(table[0]) if len(at) else ():
            self._count_on(topic, table[1][places], batch)
        return Rows(table, np.zeros(len(at) + 1, np.int64), np.zeros((2, 0), np.int64))

    def _count_on(self, topic: int, n: Ints, batch: StampedBatch) -> None:
        expected = self._next_n.get(topic, int(n[0]))
        wrong = np.flatnonzero(n != expected + np.arange(len(n)))
        if len(wrong):
            raise self._contradicts(
                f"event {n[wrong[0]]} of {self.names[topic]!r} in batch {batch.batch} follows "
                f"{expected + int(wrong[0]) - 1}"
            )
        self._next_n[topic] = int(n[-1]) + 1

    def _in_order(self, parts: list[Rows]) -> Rows:
        rows = Rows.joined([part for part in parts if len(part)])
        order = np.argsort(rows.g, kind="stable")
        rows = rows.take(order) if len(parts) > 1 or bool((np.diff(rows.g) < 0).any()) else rows
        if bool((np.diff(rows.g) <= 0).any()):
            raise self._contradicts(f"one position is stamped twice, between g {rows.g[0]} and {rows.g[-1]}")
        return rows

    # --- how much -----------------------------------------------------------------------------------------------------

    @property
    def held(self) -> int:
        """Rows of batches that are not complete yet."""
        return sum(part.rows for part in self._parts.values())

    @property
    def paused(self) -> set[int]:
        """Partitions of which enough waits."""
        return {part.number for part in self._parts.values() if part.paused}

    def regulate(self, waiting: int) -> None:
        """So many rows wait for their events: pauses partitions of which enough waits, reads on where half is gone."""
        for part in self._parts.values():
            load = waiting + part.rows
            # The one that others wait for goes on.
            if load >= self._max_waiting and not part.paused and (part.ahead or waiting):
                part.paused = True
                self._effects.append(PauseStamps(partition=part.number))
            elif part.paused and load <= self._max_waiting // 2:
                part.paused = False
                self._effects.append(ResumeStamps(partition=part.number))

    def check_whole(self, waiting: int) -> None:
        """Dear (sequencer/wire/invariants.py): so many rows wait for their events."""
        for part in self._parts.values():
            numbers = [batch.batch for batch in part.ahead]
            assert numbers == sorted(set(numbers)), f"stamps partition {part.number} holds batches out of order"
            rows = sum(len(batch.rows) for batch in part.ahead)
            assert rows == part.rows, f"stamps partition {part.number} holds {rows} rows, and counts {part.rows}"
            load = waiting + part.rows
            assert not part.paused or load > self._max_waiting // 2, f"{part.number} is paused, and {load} rows wait"
        assert self._ids == {name: topic for topic, name in self.names.items()}, "names and numbers of topics differ"

    def stop(self) -> None:
        """No more stamps are wanted."""
        for number in self._parts:
            self._effects.append(StopStamps(partition=number))
        self._parts.clear()
