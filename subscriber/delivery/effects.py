"""What the delivery machine wants done; the subscriber library carries it out, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.rows import Rows

Tag = Literal["redelivered"]
"""A former process may have delivered it."""


class Deliveries:
    """Hand these events to the application next, in this order.

    Event r is row r of `rows`, and number `first + r` of this process's deliveries, those of DeliverLost too: 1, 2, 3 …
    `handles[r]` came in with it. `sources` are the event partitions by number, `names` the topics by id. What lies
    through `delivered_through` of π a former process may have delivered. Gates of rows are the clocks that the stamp
    writes for other topics of the subscription (delta-coded: a topic that is left out has not advanced since the
    predecessor in this topic).
    """

    __slots__ = ("delivered_through", "first", "handles", "names", "rows", "sources")

    def __init__(
        self,
        *,
        rows: Rows,
        handles: list[object],
        first: int,
        sources: Sequence[Source],
        names: Mapping[int, str],
        delivered_through: int,
    ) -> None:
        self.rows, self.handles, self.first = rows, handles, first
        self.sources, self.names, self.delivered_through = sources, names, delivered_through

    def __len__(self) -> int:
        return len(self.handles)

    def part(self, start: int, end: int) -> "Deliveries":
        """The events from `start` to before `end`."""
        return Deliveries(
            rows=self.rows.part(start, end),
            handles=self.handles[start:end],
            first=self.first + start,
            sources=self.sources,
            names=self.names,
            delivered_through=self.delivered_through,
        )


class DeliverLost(NamedTuple):
    """Tell the application next that at this place of the order offsets `begin` to before `end` are lost.

    One event that was stamped and that Kafka has no longer: number `n` of its pub/sub topic. Or what was never stamped:
    then `n` is 0, and `topic` is None where these may have been events of any pub/sub topic. Reading went on at
    `found`, which is GONE where the Kafka topic itself is not there any more.
    """

    topic: str | None
    source: Source
    begin: int
    end: int
    n: int
    g: int
    tag: Tag | None
    sequence: int
    found: int


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
class ReadStampsAnew:
    """Read this stamps partition from the first record on that Kafka has by now, with a fresh assembler."""

    partition: int


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


Reads = (
    ReadEvents
    | StopEvents
    | PauseEvents
    | ResumeEvents
    | ReadStamps
    | ReadStampsAnew
    | StopStamps
    | PauseStamps
    | ResumeStamps
)
"""What is to be read, and what not."""
Effect = Deliveries | DeliverLost | Reads | Granted | Switched | Finished
