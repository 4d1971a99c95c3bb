"""Where reading begins and ends, as an application says it."""

from datetime import datetime
from typing import Literal

from totalorder.errors import SettingsError
from totalorder.subscriber.position import Position

Start = Position | datetime | Literal["earliest", "now"]
"""See Reader."""
Until = Position | datetime | Literal["now"] | None
"""See Reader; None: for ever."""


def check_start(value: object, *words: str) -> None:
    """SettingsError for what is neither a position nor a time nor one of the words."""
    _check("start", value, words)


def check_until(value: object) -> None:
    """Likewise for where reading ends."""
    if value is not None:
        _check("until", value, ("now",))


def _check(name: str, value: object, words: tuple[str, ...]) -> None:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise SettingsError(
                f"{name} = {value!r} has no time zone", remedy="Give one, such as datetime.now(timezone.utc)"
            )
    elif not isinstance(value, Position) and not (isinstance(value, str) and value in words):
        raise SettingsError(
            f"{name} = {value!r} is unknown",
            remedy=f"Use {', '.join(map(repr, words))}, a Position (Position.parse reads one) or a datetime",
        )


def check_place(start: object, origin: Position, *, now_ms: int) -> None:
    """SettingsError for a position of another order than that of `origin`, and for a time that is yet to come."""
    if isinstance(start, Position):
        start.check_order(origin)
    if isinstance(start, datetime) and ms_of(start) > now_ms:
        raise SettingsError(f"start = {start} is in the future", remedy='Begin at the present: start="now"')


def ms_of(time: datetime) -> int:
    """Milliseconds since 1970."""
    return round(time.timestamp() * 1000)
