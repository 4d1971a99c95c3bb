"""Whether a process still holds its id: what must be read before anything is handed out, or asked, in its name."""

from collections.abc import Callable, Iterator, Mapping

from totalorder.errors import BrokerUnavailable
from totalorder.subscriber.through import through
from totalorder.subscriber.transport import Partition, Transport

_WAIT_S = 0.2
_LOOK_S = 2.0
"""What was not read in this time is read on by a later look, to the same end: where others are answered all the time,
and answers come later than this, there is more behind each new one.
"""
_SLEPT_S = 300.0
"""Far less than grants are kept whole: who looks at them more often than this sees every one."""


class Holding:
    """`pump` reads what has come, and raises Fenced where that tells of another process of the id; `given` counts that
    by partitions.
    """

    def __init__(
        self,
        transport: Transport,
        grants: Partition,
        *,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        pump: Callable[[float], None],
        given: Mapping[Partition, int],
    ) -> None:
        self._transport, self._grants, self._pump, self._given = transport, grants, pump, given
        self._clock, self._wall_clock = clock, wall_clock
        self._awake = clock(), wall_clock()
        self.slept = False
        """Whether another process may have begun unseen."""
        self._looks_back = False
        """Whether positions are read for that."""
        self._begun: dict[Partition, tuple[int, Iterator[None]]] = {}
        """What a former look has not read to its end, and what was promised when that was asked for."""

    def note(self) -> None:
        """What lies long between two calls was a sleep, of the process, its machine, or its application."""
        now = self._clock(), self._wall_clock()
        if max(now[0] - self._awake[0], now[1] - self._awake[1]) > _SLEPT_S:
            self.slept = True
            self._begun.clear()
        self._awake = now

    def look(self, saved: Partition, promised: int) -> int | None:
        """Reads grants to an end behind a promise, which raises Fenced at another process's: the present promise, or
        the one of a look that has not come so far. Returns that; None while Kafka is silent, or has more to be read.

        Behind a long sleep that is not enough: compaction may have taken the other process's grant, and left its
        positions, which are among what is `saved`. There may be many, so that a later call goes on with them.
        """
        deadline = self._clock() + _LOOK_S
        self.note()
        try:
            behind = self._reached(self._grants, promised, deadline)
            if behind is None:
                return None
            self.note()
            if self.slept:
                if not self._looks_back:
                    self._transport.read(saved, self._transport.beginning_offsets([saved])[saved])
                    self._looks_back = True
                if self._reached(saved, promised, deadline) is None:
                    return None
                self._transport.stop(saved)
                self.slept = self._looks_back = False
        except BrokerUnavailable:
            return None
        return behind

    def _reached(self, partition: Partition, promised: int, deadline: float) -> int | None:
        """Reads a partition to an end, and returns what was promised when that was asked for; None where that takes
        longer.
        """
        begun = self._begun.pop(partition, None)
        behind, reading = begun or (
            promised,
            through(self._transport, partition, lambda: self._given[partition], once=True),
        )
        for _ in reading:
            if self._clock() >= deadline:
                self._begun[partition] = behind, reading
                return None
            self._pump(_WAIT_S)
        return behind
