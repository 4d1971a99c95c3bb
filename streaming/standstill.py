"""When a job stands still: it is told after some seconds, again with growing pauses, and ends the job after a bound.

What counts as moving is *anything that changes*: a batch or a task that comes to its end, Java's answer to a question,
a Python process whose main thread has run. So a batch of any size may take any time; and what computes for ever in a
circle is told of nowhere but in the length of its batch.
"""

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from totalorder.errors import Error

STANDS = "the job stands still"
GOES_ON = "the job goes on"
_FIRST_S = 10.0
"""Until the first word; each pause until the next one is twice as long."""
_UNSEEN_S = 5.0
"""Of the time between two sights no more counts: whoever looks was stopped too, maybe with all of the machine."""


@dataclass(frozen=True, kw_only=True)
class Sight:
    """The job at one moment: `where` it is, None when it has nothing to do; `mark` is another one when anything has
    moved; `waits_for` names what does not answer. `may_end`: whether it can be known that nothing moves.
    """

    where: str | None
    mark: Hashable = None
    waits_for: str = ""
    may_end: bool = True


REST = Sight(where=None)


class Standstill:
    """Judges by what is seen, one sight after the other. `bound_s` is how long a standstill is borne."""

    def __init__(self, log: Any, bound_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._log, self._bound_s, self._now_s = log, bound_s, now_s
        self._first_s = min(_FIRST_S, bound_s / 2)
        self._seen = REST
        self._since_s = self._seen_s = now_s()
        self._say_at_s = self._first_s
        self._longest_s = 0.0
        self.lasts_s = 0.0
        """For how long nothing has moved, by the sight that was seen last; 0 as long as there is no word about it."""

    def take_longest_s(self) -> float:
        """The longest standstill that was told since this was asked last; 0 where there was none."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def see(self, sight: Sight) -> Error | None:
        """Takes note of the job as it is now; the error by which it must end when it has stood still for too long."""
        self._since_s += max(0.0, self._now_s() - self._seen_s - _UNSEEN_S)
        self._seen_s = self._now_s()
        if sight.where is None or (sight.where, sight.mark) != (self._seen.where, self._seen.mark):
            self._moved()
        self._seen = sight
        lasts_s = self._now_s() - self._since_s
        if lasts_s < self._first_s:
            return None
        self.lasts_s, self._longest_s = lasts_s, max(self._longest_s, lasts_s)
        if lasts_s >= self._bound_s and sight.may_end:
            return self._error(lasts_s)
        if lasts_s >= self._say_at_s:
            self._say_at_s *= 2
            left = {"gives_up_in_s": round(self._bound_s - lasts_s)} if sight.may_end else {}
            self._log.warning(STANDS, where=sight.where, reason=sight.waits_for, stood_s=round(lasts_s, 1), **left)
        return None

    def _moved(self) -> None:
        if self.lasts_s:
            self._log.info(GOES_ON, stood_s=round(self._now_s() - self._since_s, 1))
        self._since_s, self._say_at_s, self.lasts_s = self._now_s(), self._first_s, 0.0

    def _error(self, lasts_s: float) -> Error:
        return Error(
            f"the job stood still for {lasts_s:.0f} s in {self._seen.where}: {self._seen.waits_for}",
            remedy="Find out what has stopped it, and start again: what was begun runs again, and nothing of it is "
            "lost. A higher standstill_timeout_s bears more",
        )
