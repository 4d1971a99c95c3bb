"""What the delivery machine wants done; the subscriber library carries it out, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from totalorder.sequencer.stamps import Source

Tag = Literal["redelivered", "lost"]
"""A former process may have delivered it; or Kafka has the event no longer, and this stands in its place."""


class Deliver(NamedTuple):
    """Hand this event to the application next.

    `handle` is what came in with the event, None for one that is lost; `entries` are the clocks that the stamp writes
    for other topics of the subscription (delta-coded: a topic that is left out has not advanced since the predecessor
    in this topic).
    `sequence` counts this process's deliveries: 1, 2, 3 …
    """

    handle: object
    topic: str
    source: Source
    offset: int
    n: int
    g: int
    entries: Mapping[str, int]
    tag: Tag | None
    sequence: int


@dataclass(frozen=True, kw_only=True)
class ReadEvents:
    """Read this event partition from `offset` on, and forget records of it that are still on their way."""

    source: Source
    offset: int


@dataclass(frozen=True, kw_only=True)
class StopEvents:
    """No topic of the subscription needs this event partition any longer."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class PauseEvents:
    """Enough events of this partition wait."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class ResumeEvents:
    """There is room again for events of this partition."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class ReadStamps:
    """Read this stamps partition from `offset` on, with a fresh assembler."""

    partition: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class StopStamps:
    """No topic of the subscription has its stamps here any longer."""

    partition: int


@dataclass(frozen=True, kw_only=True)
class PauseStamps:
    """Enough stamps of this partition wait."""

    partition: int


@dataclass(frozen=True, kw_only=True)
class ResumeStamps:
    """There is room again for stamps of this partition."""

    partition: int


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The request of this process took effect at `g`: it holds the id now, and delivery may begin or go on."""

    generation: int
    g: int
    lease_s: int


@dataclass(frozen=True, kw_only=True)
class Switched:
    """Everything of the former set through `g` is delivered; from here on `topics` is the set in force."""

    g: int
    topics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The subscription is over, and all that it was owed is delivered. `reason`: "unsubscribed" or "expired"."""

    g: int
    reason: str


Effect = (
    Deliver
    | ReadEvents
    | StopEvents
    | PauseEvents
    | ResumeEvents
    | ReadStamps
    | StopStamps
    | PauseStamps
    | ResumeStamps
    | Granted
    | Switched
    | Finished
)
