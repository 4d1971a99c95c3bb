"""How long a fault that may pass is borne: so many seconds, since a slow machine uses up any number of tries."""

import math
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from totalorder.errors import BrokerUnavailable

T = TypeVar("T")

OUTAGE_S = 60.0
"""How long a broker may be away while a job runs, as for the subscribers: a restart of it should not end either."""
_ASK_AGAIN_S = 0.5
_SAY_AGAIN_S = 10.0


class Patience:
    """Begins with the first failure, and is over `bound_s` later; a success ends it before.

    Failures that lie more than `apart_s` apart are of two faults: not every success shows.
    """

    def __init__(self, bound_s: float, *, apart_s: float = math.inf) -> None:
        self.bound_s = bound_s
        self._apart_s = apart_s
        self._first_s: float | None = None
        self._last_s = 0.0

    @property
    def lasts_s(self) -> float:
        """Seconds from the first failure to the last one; 0 when none is borne."""
        return 0.0 if self._first_s is None else self._last_s - self._first_s

    @property
    def left_s(self) -> float:
        """Seconds behind the last failure in which another one is borne."""
        return self.bound_s - self.lasts_s

    @property
    def tried(self) -> bool:
        """Whether a failure is being borne."""
        return self._first_s is not None

    def bears(self, now_s: float) -> bool:
        """Takes note of a failure; False when they have gone on for longer than the bound."""
        if self._first_s is None or now_s - self._last_s > self._apart_s:
            self._first_s = now_s
        self._last_s = now_s
        return self.left_s >= 0

    def end(self) -> None:
        """All is well again."""
        self._first_s = None


class BrokerWatch:
    """Asks the broker, and bears an outage: a log line says so when it begins, every ten seconds, and when it ends."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._patience = Patience(OUTAGE_S)
        self._since_s = self._said_s = 0.0

    @property
    def is_away(self) -> bool:
        """Whether it did not answer when it was asked last."""
        return self._patience.tried

    def answers(self, ask: Callable[[], object]) -> bool:
        """Asks, and says whether there was an answer; raises BrokerUnavailable when there was none for long."""
        if not self.is_away:
            self._since_s = time.monotonic()
        try:
            ask()
        except BrokerUnavailable as error:
            self._bear(error, time.monotonic())
            return False
        if self.is_away:
            self._log.info("the broker answers again", away_s=round(time.monotonic() - self._since_s, 1))
            self._patience.end()
        return True

    def _bear(self, error: BrokerUnavailable, now_s: float) -> None:
        begins = not self.is_away
        if not self._patience.bears(now_s):
            raise error
        if begins or now_s - self._said_s > _SAY_AGAIN_S:
            self._said_s = now_s
            self._log.warning(
                "the broker does not answer",
                reason=error.what,
                away_s=round(now_s - self._since_s, 1),
                gives_up_in_s=round(self._patience.left_s),
            )


def borne(ask: Callable[[], T], bound_s: float, stopping: threading.Event) -> T:
    """What `ask` returns, asked again while no broker answers, for `bound_s` from now, and no longer than until a stop
    is asked for; then raises BrokerUnavailable.
    """
    deadline_s, said = time.monotonic() + bound_s, False
    while True:
        try:
            return ask()
        except BrokerUnavailable as error:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or stopping.wait(min(_ASK_AGAIN_S, left_s)):
                raise
            if not said:
                structlog.get_logger().warning(
                    "the broker does not answer", reason=error.what, gives_up_in_s=round(left_s)
                )
            said = True
