"""The event partitions of a Reader: what of them has come, and which offsets of them are stamped and chosen."""

from collections.abc import Callable, Collection, Iterator

import numpy as np
import numpy.typing as npt

from totalorder.errors import Contradiction
from totalorder.sequencer.wire.stamps import KafkaTopic, Source
from totalorder.subscriber.delivery.effects import Effect, PauseEvents, ReadEvents, ResumeEvents, StopEvents
from totalorder.subscriber.delivery.events import NONE, EventBlock, EventPartition, by_source, place, source_name
from totalorder.subscriber.delivery.owed import Owed
from totalorder.subscriber.delivery.rows import Rows, groups
from totalorder.subscriber.reading.stamps import Whole

Ints = npt.NDArray[np.int64]
_OFFSET_TOPIC_G = [4, 0, 2]
"""Lines of Rows.table."""


class Sources:
    """All event partitions that were seen with a chosen event, by number; each is read from its first one on."""

    def __init__(
        self, effects: list[Effect], contradicts: Callable[[str], Contradiction], *, max_buffered: int
    ) -> None:
        self._effects, self._contradicts, self._max_buffered = effects, contradicts, max_buffered
        self.sources: list[Source] = []
        self._states: list[EventPartition] = []
        self._numbers: dict[Source, int] = {}
        self._known_to: dict[Source, int] = {}
        """Through before which offset stamps are known."""
        self._closed: set[KafkaTopic] = set()
        """Topics of which nothing more is stamped."""
        self._over: set[Source] = set()
        """Those of them that are read no longer."""

    @property
    def held(self) -> int:
        """How many events wait."""
        return sum(len(state.handles) for state in self._states)

    # --- stamps -------------------------------------------------------------------------------------------------------

    def owe(self, whole: Whole) -> Rows:
        """The batch's rows, with event partitions by their numbers here. Sees to it that these are read."""
        rows = whole.rows
        if len(rows):
            for at, rows_of_it in groups(rows.source.copy()):
                number = self._number(whole.sources[at], int(rows.offset[rows_of_it][0]))
                rows.source[rows_of_it] = number
                self._owe(number, rows.table[_OFFSET_TOPIC_G][:, rows_of_it], whole.ends[at])
        for source, end in zip(whole.sources, whole.ends, strict=True):
            if source in self._numbers:
                self._known_to[source] = end
                self._let_go(self._states[self._numbers[source]])
        return rows

    def _number(self, source: Source, offset: int) -> int:
        number = self._numbers.get(source)
        if number is None:
            number = self._numbers[source] = len(self.sources)
            self.sources.append(source)
            self._states.append(EventPartition(source, offset, offset, Owed()))
            self._effects.append(ReadEvents(source=source, offset=offset))
        return number

    def _owe(self, number: int, stamped: Ints, end: int) -> None:
        state, source = self._states[number], self.sources[number]
        offsets = stamped[0]
        disorder = state.owed.add(stamped)
        if disorder is not None or offsets[0] < self._known_to.get(source, 0) or offsets[-1] >= end:
            raise self._contradicts(
                f"{place(source, int(offsets[0]))} to {offsets[-1]} are stamped twice, against the order of offsets, "
                f"or outside their batch, which ends at {end}"
            )
        if source in self._over:
            raise self._contradicts(f"{place(source, int(offsets[0]))} is stamped, and its topic was retired before")

    def _let_go(self, state: EventPartition) -> None:
        """Forgets what has come and is stamped by now, but not chosen."""
        if state.handles:
            offsets = state.held[0]
            state.keep((offsets >= self._known_to[state.source]) | state.owed.has(offsets))
            self._resume(state)

    # --- events -------------------------------------------------------------------------------------------------------

    def take(self, source: Source, block: EventBlock) -> bool:
        """The next records of a partition; False when none of them was awaited."""
        number = self._numbers.get(source)
        if number is None or source in self._over or not block.offsets:
            return False
        state = self._states[number]
        offsets = np.array(block.offsets, dtype=np.int64)
        wanted = (offsets >= state.received_to) & ((offsets >= self._known_to.get(source, 0)) | state.owed.has(offsets))
        state.received_to = max(state.received_to, int(offsets[-1]) + 1)
        handles = block.handles if wanted.all() else [block.handles[at] for at in np.flatnonzero(wanted).tolist()]
        if handles:
            held = np.zeros((3, len(handles)), dtype=np.int64)
            held[0], held[2] = offsets[wanted], np.array(block.crcs, dtype=np.int64)[wanted]
            state.hold(held, handles)
            if len(state.handles) >= self._max_buffered and not state.paused:
                state.paused = True
                self._effects.append(PauseEvents(source=source))
        return True

    def gone(self, source: Source, offset: int) -> bool:
        """Kafka has nothing below `offset` of a partition any longer; False when that is nothing new."""
        number = self._numbers.get(source)
        if number is None or offset <= self._states[number].received_to:
            return False
        self._states[number].received_to = offset
        return True

    def _resume(self, state: EventPartition) -> None:
        if state.paused and len(state.handles) <= self._max_buffered // 2:
            state.paused = False
            self._effects.append(ResumeEvents(source=state.source))

    # --- what comes out -----------------------------------------------------------------------------------------------

    def has_come(self, number: int, offset: int) -> bool:
        """See delivery.events.Events."""
        return offset < self._states[number].received_to

    def statuses(self, rows: Rows) -> npt.NDArray[np.int8]:
        """See delivery.events.Events."""
        found = np.zeros(len(rows), dtype=np.int8)
        for number, at in groups(rows.source):
            found[at] = self._states[number].statuses(rows.offset[at])
        return found

    def release(self, rows: Rows, here: npt.NDArray[np.bool_]) -> list[object]:
        """The events of rows, where they are `here`, are delivered now: their handles, None where they are lost."""
        found: list[object] = [None] * len(rows)
        for number, at in groups(rows.source):
            state = self._states[number]
            places = np.arange(len(rows))[at]
            came = places[here[at]]
            self._compare(rows, came, state)
            state.owed.deliver(len(places))
            state.owed.acknowledge(len(places))
            for place_, handle in zip(came.tolist(), state.release(len(came)), strict=True):
                found[place_] = handle
            self._resume(state)
            self._stop_closed(state)
        return found

    def _compare(self, rows: Rows, came: Ints, state: EventPartition) -> None:
        held = state.held[:, : len(came)]
        assert np.array_equal(held[0], rows.offset[came]), "those that wait first are those that are delivered"
        wrong = np.flatnonzero(held[2] != rows.crc[came])
        if len(wrong):
            offset, crc, stamped = int(held[0, wrong[0]]), int(held[2, wrong[0]]), int(rows.crc[came[wrong[0]]])
            raise self._contradicts(
                f"{place(state.source, offset)} has a value with crc32 {crc:08x}; its stamp says {stamped:08x}"
            )

    def unstamped(self) -> Iterator[tuple[Source, int]]:
        """Of each partition the first event that has come, where no stamp of any that waits is known."""
        for state in self._states:
            if state.handles and state.owed.next is None:
                yield state.source, int(state.held[0, 0])

    def received_to(self, source: Source) -> int:
        """Behind the last offset of which it is known whether it came."""
        return self._states[self._numbers[source]].received_to

    def found_behind(self, number: int, offset: int) -> int:
        """See delivery.events.Events."""
        return self._states[number].found_behind(offset)

    def check_whole(self, rows: Rows) -> None:
        """Dear (sequencer/wire/invariants.py): rows are those that are in line."""
        in_line = by_source(rows)
        for number, (source, state) in enumerate(zip(self.sources, self._states, strict=True)):
            name, stamped, owed = source_name(source), in_line.get(number, NONE), state.owed.pending
            if source in self._over:
                assert not state.handles, f"{name} is read no longer, and holds events"
                continue
            state.check_whole(self._max_buffered)
            assert np.array_equal(stamped, owed[:, : stamped.shape[1]]), f"{name} owes other events than are in line"
            let_go = (state.held[0] < self._known_to.get(source, 0)) & ~state.owed.has(state.held[0])
            assert not let_go.any(), f"{name} holds an event that is not chosen"

    # --- topics that leave --------------------------------------------------------------------------------------------

    def close(self, topics: Collection[KafkaTopic]) -> None:
        """Nothing more of these topics is stamped."""
        self._closed.update(topics)
        for state in self._states:
            self._stop_closed(state)

    def _stop_closed(self, state: EventPartition) -> None:
        if state.source.kafka_topic in self._closed and state.owed.next is None:
            self._stop(state)

    def stop(self) -> None:
        """All is delivered that is wanted."""
        for state in self._states:
            self._stop(state)

    def _stop(self, state: EventPartition) -> None:
        if state.source not in self._over:
            self._over.add(state.source)
            state.release(len(state.handles))
            self._effects.append(StopEvents(source=state.source))
