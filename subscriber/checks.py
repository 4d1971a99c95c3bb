"""What a Subscriber is given, looked at before anything is asked of a broker."""

import re
from collections.abc import Iterable
from numbers import Real

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.limits import MAX_LEASE_S, MAX_TOPICS_PER_SUBSCRIPTION
from totalorder.sequencer.wire.names import DomainTopics, valid_id, valid_topic
from totalorder.subscriber.position_store import PositionStore
from totalorder.subscriber.reading.choice import Choice


def check_name(subscriber_id: object, domain: object) -> None:
    """Raises SettingsError for what can name no subscriber or no domain."""
    if not isinstance(domain, str):
        raise SettingsError(f"domain {domain!r} is not a usable name", remedy="Give it as text")
    DomainTopics(domain=domain)
    if not valid_id(subscriber_id):
        raise SettingsError(
            f"subscriber id {subscriber_id!r} is not usable", remedy="Use 1 to 128 of A-Z a-z 0-9 . _ : @ -"
        )


def check_lease(lease_s: object) -> None:
    """Raises SettingsError for a lease that the sequencer would refuse."""
    _check_whole("lease_s", lease_s)
    if not isinstance(lease_s, int) or not 0 <= lease_s <= MAX_LEASE_S:
        raise SettingsError(f"lease_s = {lease_s} is not 0 (never ends) to {MAX_LEASE_S}")


def check_deserializer(deserializer: object) -> None:
    """Raises SettingsError for what is no function; None is none."""
    if deserializer is not None and not callable(deserializer):
        raise SettingsError(
            f"deserializer is {deserializer!r}",
            remedy="Give a function of an Event, such as totalorder.payloads.json",
        )


def check_positions(positions: object) -> None:
    """Raises SettingsError for what is no store; None is none."""
    if positions is not None and not isinstance(positions, PositionStore):
        raise SettingsError(f"positions is {positions!r}", remedy="Give a store, such as SqlitePositions(path)")


def check_callback(name: str, callback: object) -> None:
    """Raises SettingsError for what is no function; None is none."""
    if callback is not None and not callable(callback):
        raise SettingsError(f"{name} is {callback!r}", remedy="Give a function of what it is told")


def check_count(name: str, value: object) -> None:
    """Raises SettingsError for what is no whole number from 1 on."""
    _check_whole(name, value)
    if not isinstance(value, int) or value < 1:
        raise SettingsError(f"{name} = {value} must be at least 1")


def check_seconds(name: str, value: object, *, zero: bool = False) -> None:
    """Raises SettingsError for what is no time: a number of more than 0, or with `zero` of 0 too."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise SettingsError(f"{name} = {value!r} is no number", remedy="Give seconds")
    if not (value >= 0 if zero else value > 0):
        raise SettingsError(f"{name} = {value} must be {'at least' if zero else 'more than'} 0")


def check_timeout(timeout_s: object) -> None:
    """Raises SettingsError for what is no time to wait: any number of seconds, of which less than 0 is 0."""
    # A float is known at once; an abstract class takes as long as handing out an event.
    if not isinstance(timeout_s, (float, Real)) or timeout_s != timeout_s:
        raise SettingsError(f"timeout_s = {timeout_s!r} is no number", remedy="Give seconds")


def check_choice(name: str, value: object, *choices: str) -> None:
    """Raises SettingsError for what is none of the choices."""
    if value not in choices:
        raise SettingsError(f"{name} = {value!r} is unknown", remedy=f"Use {' or '.join(map(repr, choices))}")


def checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """The topics sorted and once each; SettingsError when the sequencer would refuse them."""
    if isinstance(topics, str) or not isinstance(topics, Iterable):
        raise SettingsError(f"topics is {topics!r}", remedy="Give a list of names")
    given = set(topics)
    for name in given:
        if not valid_topic(name):
            raise SettingsError(f"{name!r} cannot name a topic", remedy="Use 1 to 255 characters")
    if not 0 < len(given) <= MAX_TOPICS_PER_SUBSCRIPTION:
        raise SettingsError(f"{len(given)} topics; a subscription holds 1 to {MAX_TOPICS_PER_SUBSCRIPTION}")
    return tuple(sorted(given))


def checked_choice(who: str, topics: Iterable[str] | None, pattern: str | None) -> Choice:
    """Topics by their names or by a pattern, as somebody was given them; SettingsError for both, or neither."""
    if (topics is None) == (pattern is None):
        given = "neither was" if topics is None else "both were"
        raise SettingsError(f"{who} wants topics or a pattern, and {given} given", remedy="Give one of them")
    if topics is not None:
        return Choice(checked_topics(topics))
    if not isinstance(pattern, str):
        raise SettingsError(f"pattern = {pattern!r} is no regular expression", remedy="Give it as a str")
    try:
        return Choice(pattern=pattern)
    except re.error as error:
        raise SettingsError(f"pattern = {pattern!r} is no regular expression: {error}") from None


def _check_whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingsError(f"{name} = {value!r} is no whole number")
