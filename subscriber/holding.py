"""Whether a process still holds its id: what must be read before anything is handed out, or asked, in its name."""

from collections.abc import Callable, Mapping

from totalorder.errors import BrokerUnavailable
from totalorder.subscriber.through import through
from totalorder.subscriber.transport import Partition, Transport

_WAIT_S = 0.2
_LOOK_S = 2.0
"""What was not read in this time is read on by a later look."""
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

    def note(self) -> None:
        """What lies long between two calls was a sleep, of the process, its machine, or its application."""
        now = self._clock(), self._wall_clock()
        self.slept |= max(now[0] - self._awake[0], now[1] - self._awake[1]) > _SLEPT_S
        self._awake = now

    def look(self, saved: Partition) -> bool:
        """Reads grants to their present end, which raises Fenced at another process's; False while Kafka is silent.

        Behind a long sleep that is not enough: compaction may have taken the other process's grant, and left its
        positions, which are among what is `saved`. There may be many, so that a later call goes on with them.
        """
        deadline = self._clock() + _LOOK_S
        try:
            if not self._reaches_end(self._grants, deadline):
                return False
            self.note()
            if self.slept:
                if not self._looks_back:
                    self._transport.read(saved, self._transport.beginning_offsets([saved])[saved])
                    self._looks_back = True
                if not self._reaches_end(saved, deadline):
                    return False
                self._transport.stop(saved)
                self.slept = self._looks_back = False
        except BrokerUnavailable:
            return False
        return True

    def _reaches_end(self, partition: Partition, deadline: float) -> bool:
        """Reads a partition to its end; False where that takes longer."""
        for _ in through(self._transport, partition, lambda: self._given[partition], once=True):
            if self._clock() >= deadline:
                return False
            self._pump(_WAIT_S)
        return True
