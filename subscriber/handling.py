"""What a handler's failure means: the user's choice, without a default that loses. No clock, no I/O."""

from dataclasses import dataclass

from totalorder.errors import HandlerFailed, SettingsError
from totalorder.subscriber.checks import check_count, check_seconds
from totalorder.subscriber.event import Event, Lost, place, told

_MOST_DOUBLINGS = 64


@dataclass(frozen=True, kw_only=True)
class Retry:
    """Try again after `first_s` seconds, then after twice as long each time, `most_s` at most; `times` times, or for
    ever (None). SettingsError for what is no such number.
    """

    times: int | None = None
    first_s: float = 0.1
    most_s: float = 30.0

    def __post_init__(self) -> None:
        if self.times is not None:
            check_count("times", self.times)
        check_seconds("first_s", self.first_s)
        check_seconds("most_s", self.most_s)

    def wait_s(self, failures: int) -> float | None:
        """Seconds to wait after so many failures, 1 or more; None when it is not tried again."""
        if self.times is not None and failures > self.times:
            return None
        return min(self.most_s, self.first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `run` does about failures."""

    retry: Retry | None = None
    park: str | None = None
    """The dead-letter topic, for events that are not tried again."""

    def __post_init__(self) -> None:
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise SettingsError(f"retry is {self.retry!r}", remedy="Give a totalorder.Retry, or leave it out")

    def after(self, event: Event | Lost, error: Exception, attempts: int) -> float | None:
        """Seconds to wait before the next attempt, when the one of this number (1, 2, 3 …) has failed; None to park it.

        Raises HandlerFailed when neither is to be: a notice of a loss is no event that could be parked.
        """
        wait_s = None if self.retry is None else self.retry.wait_s(attempts)
        if wait_s is None and (self.park is None or isinstance(event, Lost)):
            raise HandlerFailed(
                f"the handler failed on {place(event)} at attempt {attempts}: {told(error)}",
                remedy="It is not acknowledged, and comes again to the next Subscriber of this id: mend the handler, "
                "or let run() try again (retry=) or put such events aside (park=)",
            ) from error
        return wait_s
