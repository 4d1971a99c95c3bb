"""How often the brokers are asked, and how it went in the last minute: pure, time is an argument."""

from collections import deque
from dataclasses import dataclass
from threading import Lock

BUSY_SHARE, IDLE_SHARE = 0.10, 0.02
"""Of a core, for the looker's thread: when records come, and when none do."""
WALL_SHARE = 1 / 3
"""Of the time, in which a look may be under way: as far as it is not the network, that is the brokers' work."""
QUIET_S = 1.0
"""When nothing moved for so long, looks come less often."""
IDLE_S, IDLE_WALL_SHARE = 0.010, 1 / 10
"""The period that idle looks grow to, where they cost no more than IDLE_SHARE at it; and the share of the time then."""
_GROWTH = 1.25
_MEMORY = 1 / 16
_FORGETTING = 1.05
_MINUTE_S = 60


class Pace:
    """Seconds from the begin of a look to that of the next."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._cost_s = self._took_s = 0.0
        self._moved_s = 0.0
        self.period_s = least_s

    def after(self, now_s: float, *, moved: bool, cost_s: float, took_s: float) -> float:
        """The period after a look that cost `cost_s` of processor time; `moved`: whether an end did.

        `took_s`: how long it took. Of that the shortest counts, for a while: the others waited for a processor.
        """
        self._cost_s += _MEMORY * (cost_s - self._cost_s)
        self._took_s = min(took_s, _FORGETTING * self._took_s) if self._took_s else took_s
        if moved:
            self._moved_s = now_s
        busy_s = max(self._least_s, self._cost_s / BUSY_SHARE, self._took_s / WALL_SHARE)
        if now_s - self._moved_s < QUIET_S:
            self.period_s = busy_s
        else:
            idle_s = max(busy_s, IDLE_S, self._cost_s / IDLE_SHARE, self._took_s / IDLE_WALL_SHARE)
            self.period_s = min(idle_s, max(busy_s, self.period_s * _GROWTH))
        return self.period_s


@dataclass(frozen=True, kw_only=True)
class LookFigures:
    """Of the looker: `looks`, and those with silent places, since its start; the rest of the last minute.

    `silent_places` are those of the last look. `longest_period_ms` is from the begin of a look to that of the next one;
    with `longest_ms`, how long a look took, it is how far apart two records must be for the looks to order them.
    """

    looks: int
    silent_looks: int
    silent_places: int
    longest_period_ms: float
    longest_ms: float
    processor_share: float


@dataclass(kw_only=True)
class _Second:
    number: int
    period_s: float = 0.0
    duration_s: float = 0.0
    cost_s: float = 0.0


class Minute:
    """Largest values and sums by the second; may be used in several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seconds: deque[_Second] = deque(maxlen=_MINUTE_S)
        self._looks = self._silent_looks = self._silent_places = 0
        self._began_s: float | None = None

    def add_look(self, began_s: float, ended_s: float, silent: int) -> float:
        """A look that counts; returns the seconds since the begin of the look before."""
        with self._lock:
            period_s = 0.0 if self._began_s is None else began_s - self._began_s
            second = self._second(ended_s)
            second.period_s = max(second.period_s, period_s)
            second.duration_s = max(second.duration_s, ended_s - began_s)
            self._looks, self._began_s = self._looks + 1, began_s
            self._silent_looks, self._silent_places = self._silent_looks + bool(silent), silent
            return period_s

    def add_cost(self, now_s: float, cost_s: float) -> None:
        """Processor time that was spent."""
        with self._lock:
            self._second(now_s).cost_s += cost_s

    def _second(self, now_s: float) -> _Second:
        number = int(now_s)
        if not self._seconds or self._seconds[-1].number < number:
            self._seconds.append(_Second(number=number))
        return self._seconds[-1]

    def figures(self, now_s: float) -> LookFigures:
        """As of now: a look that is still awaited counts with its age."""
        with self._lock:
            seconds = [second for second in self._seconds if second.number > now_s - _MINUTE_S]
            waiting_s = 0.0 if self._began_s is None else now_s - self._began_s
            lasted_s = max(1.0, now_s - seconds[0].number) if seconds else 1.0
            return LookFigures(
                looks=self._looks,
                silent_looks=self._silent_looks,
                silent_places=self._silent_places,
                longest_period_ms=1000 * max([waiting_s, *(second.period_s for second in seconds)]),
                longest_ms=1000 * max((second.duration_s for second in seconds), default=0.0),
                processor_share=sum(second.cost_s for second in seconds) / lasted_s,
            )
