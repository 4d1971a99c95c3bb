"""What the application gets."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from itertools import chain, repeat
from typing import TYPE_CHECKING, Generic, NamedTuple, Self, cast

from totalorder.errors import Error, PayloadError
from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost, Tag
from totalorder.subscriber.position import Position
from totalorder.subscriber.transport import Record

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

P = TypeVar("P")
_AT_ONCE = 64
"""So many events are made together, of which one alone may be asked for."""
_MOST_ERROR_CHARS = 1_000
"""So much of an error's text is told: it may quote a whole payload."""


class Event(NamedTuple):
    """One event at its place in the order.

    `g` is its index in the domain's one order, `n` its number within `topic`; `entries` are the clocks that its
    timestamp writes for the subscription's other topics. `tag` is "redelivered" when a former process may have
    delivered it without acknowledging it, else None. `sequence` counts this process's deliveries: 1, 2, 3 …
    `topic_id` is Kafka's id of `kafka_topic`: a topic that is deleted and created again has another, and begins with
    offset 0 once more. `position` is what to store beside what was made of the event, to go on behind it; `origin` is
    the beginning of the order that it counts from (None with m = 2, where g is no position).
    """

    topic: str
    kafka_topic: str
    topic_id: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int
    n: int
    g: int
    entries: Mapping[str, int]
    tag: Tag | None
    sequence: int
    origin: Position | None = None

    @property
    def position(self) -> Position:
        """Behind this event in the one order; Error with min_subscriptions = 2, where subscribers have no such one."""
        return position_of(self.origin, self.g)


def position_of(origin: Position | None, g: int) -> Position:
    """The position at g; Error without an order that all follow."""
    if origin is None:
        raise Error(
            "a domain with min_subscriptions = 2 has no positions: what lies before an event in its order may come "
            "behind it",
            remedy="Go by what is saved (ack), or give the domain min_subscriptions = 1",
        )
    return origin.at(g)


def events_of(block: Deliveries, origin: Position | None) -> Iterator[Event]:
    """The events of a block whose handles are Kafka records; positions count from `origin`."""
    starts = range(0, len(block), _AT_ONCE)
    parts = (block.part(start, min(start + _AT_ONCE, len(block))) for start in starts)
    return chain.from_iterable(_made(part, origin) for part in parts)


def _made(block: Deliveries, origin: Position | None) -> Iterator[Event]:
    """By columns, so that Python runs nothing for an event but for its entries: Event(...) alone takes longer."""
    rows, names, through = block.rows, block.names, block.delivered_through
    topics, ns, gs = rows.table[:3].tolist()
    records = cast("list[Record]", block.handles)
    kafka_topics, partitions, offsets, keys, values, headers, times, topic_ids = zip(*records, strict=True)
    fields = zip(
        [names[topic] for topic in topics],
        kafka_topics,
        topic_ids,
        partitions,
        offsets,
        keys,
        values,
        headers,
        times,
        ns,
        gs,
        [{names[other]: least for other, least in gates} for gates in rows.each_gates()],
        ["redelivered" if g <= through else None for g in gs],
        range(block.first, block.first + len(block)),
        repeat(origin, len(block)),
        strict=True,
    )
    return map(tuple.__new__, repeat(Event), fields)


class Lost(NamedTuple):
    """What comes in the place of events that Kafka has no longer, with `on_lost="skip"`; acknowledge it like an event.

    It has no value, key or header. Lost are the offsets from `first_offset` to `last_offset`, both included.

    Either one event that was stamped (retention or a deletion removed it before this subscriber had it): `topic` and
    `n` are the event's. Or what was lost before it was stamped, a gap that all subscribers see at the same `g`: then
    `n` is None, since nobody knows how many events that were (transactions leave offsets that hold none), and `topic`
    is None where keys or headers name topics, since they may have been of any. `tag`, `sequence`, `position` and
    `origin` are as in Event.
    """

    topic: str | None
    kafka_topic: str
    topic_id: str
    partition: int
    first_offset: int
    last_offset: int
    n: int | None
    g: int
    tag: Tag | None
    sequence: int
    origin: Position | None = None

    @property
    def position(self) -> Position:
        """Behind what is lost, in the one order."""
        return position_of(self.origin, self.g)

    @classmethod
    def of(cls, effect: DeliverLost, origin: Position | None) -> "Lost":
        """The notice of a DeliverLost effect."""
        return cls(
            topic=effect.topic,
            kafka_topic=effect.source.topic,
            topic_id=effect.source.topic_id,
            partition=effect.source.partition,
            first_offset=effect.begin,
            last_offset=effect.end - 1,
            n=effect.n or None,
            g=effect.g,
            tag=effect.tag,
            sequence=effect.sequence,
            origin=origin,
        )


class TypedEvent(Event, Generic[P]):
    """An Event of a Subscriber or Reader that has a deserializer."""

    _deserializer: Callable[[Event], P]

    @classmethod
    def of(cls, event: Event, deserializer: Callable[[Event], P]) -> Self:
        """The event with this deserializer."""
        made = cls._make(event)
        made._deserializer = deserializer
        return made

    @cached_property
    def payload(self) -> P:
        """What the deserializer makes of the event, when it is first asked for.

        Raises PayloadError where it fails: then it is asked again the next time, and `value` has the bytes.
        """
        try:
            return self._deserializer(self)
        except Exception as error:
            raise PayloadError(
                f"the payload of {place(self)} cannot be read: {told(error)}",
                remedy="`value` has its bytes; let run() try again (retry=) or put such events aside (park=)",
            ) from error


def with_payload(found: Event | Lost | None, deserializer: Callable[[Event], object]) -> Event | Lost | None:
    """What is handed out: a TypedEvent of an event."""
    return TypedEvent.of(found, deserializer) if isinstance(found, Event) else found


def told(error: BaseException) -> str:
    """An error for people: its kind and what it says, as many words as are good for a line or a record."""
    what = error.what if isinstance(error, Error) else error  # a remedy is for whom an error is raised to
    words = f"{type(error).__name__}: {what}"[:_MOST_ERROR_CHARS]
    return words.encode("utf-8", "replace").decode()  # half a character could be written nowhere


def place(event: Event | Lost) -> str:
    """Where an event lies, for messages."""
    if isinstance(event, Lost):
        return f"what is lost of {event.kafka_topic}[{event.partition}]@{event.first_offset}, g {event.g}"
    return f"{event.topic}#{event.n} ({event.kafka_topic}[{event.partition}]@{event.offset}, g {event.g})"


if TYPE_CHECKING:
    Handed = TypeVar("Handed", bound=Event | Lost, default=Event)
else:
    Handed = TypeVar("Handed")
"""What a Subscriber hands out: a Lost may be among it with `on_lost="skip"` alone."""
