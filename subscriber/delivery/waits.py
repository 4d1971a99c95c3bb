"""What delivery waits for, event by event: of questions a person asks, and not of what is delivered."""

from dataclasses import dataclass
from typing import Literal

from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.events import EventPartition, Events, place
from totalorder.subscriber.delivery.order import Order
from totalorder.subscriber.delivery.sets import Sets
from totalorder.subscriber.delivery.stamps import Stamps

Kind = Literal["grant", "answers", "stamps", "event", "renewal", "broker", "topic", "log", "history", "cuts"]


@dataclass(frozen=True, kw_only=True)
class Wait:
    """Something that does not come.

    `kind` says what: "stamps" (of the event at `offset` of `source`, or through position `g` of the order) from
    partition `stamps_partition` of `<domain>.stamps`; "answers" on `<domain>.grants` through the end of a batch; the
    "event" itself, whose stamp is here; this process's "grant"; the answer to its "renewal"; a "broker"; the end of
    a "log" of the domain's, which tells whether the id is still this process's. While a Subscriber or a Reader is
    made also a "topic" of the domain's; the "history" that it looks into; a cut that names all topics on
    `<domain>.cuts`, for a pattern. What does not apply is None.
    """

    kind: Kind
    topic: str | None = None
    source: Source | None = None
    offset: int | None = None
    stamps_partition: int | None = None
    g: int | None = None

    def __str__(self) -> str:
        event = "" if self.source is None or self.offset is None else place(self.source, self.offset)
        if self.kind == "event":
            return f"event {event} of topic {self.topic!r}, which is stamped (g {self.g})"
        if self.kind == "stamps":
            of = f"event {event} of topic {self.topic!r}" if event else f"the order through g {self.g}"
            return f"the stamps of {of}, in stamps partition {self.stamps_partition}"
        if self.kind == "answers":
            return f"answers on grants, which the stamps in partition {self.stamps_partition} come behind"
        return _SAID[self.kind].format(topic=self.topic)


_SAID = {
    "grant": "the sequencer's grant",
    "renewal": "the sequencer's answer to the renewal of the lease",
    "broker": "a Kafka broker that answers",
    "topic": "the topic {topic}, which the sequencer makes when it first runs",
    "log": "the end of {topic}",
    "history": "what it looks for in {topic}, which is read",
    "cuts": "a record on {topic} that names all topics, which the domain's next batch brings",
}


def waits(sets: Sets, stamps: Stamps, events: Events, order: Order, through: int | None) -> list[Wait]:
    """What delivery waits for: first what the π-least event that is stamped waits for, or what is due at position
    `through` of the order (a change, a loss); then, of each event partition, the first event if it has no stamp.
    """
    found = []
    first = order.first
    if through is not None and (first is None or int(first.g[0]) > through):
        if stamps.complete_g < through:
            found.append(_stamps(stamps, None, None, None, through))
    elif first is not None:
        topic, _, g, number, offset = first.table[:5, 0].tolist()
        source = events.sources[number]
        name = sets.names[topic]
        if events.has_come(number, offset):
            found.append(_stamps(stamps, name, source, offset, g))
        else:
            found.append(Wait(kind="event", topic=name, source=source, offset=offset, g=g))
    unstamped = (_unstamped(sets, stamps, state) for state in events.read.values() if state.handles)
    return found + [wait for wait in unstamped if wait is not None]


def _stamps(stamps: Stamps, topic: str | None, source: Source | None, offset: int | None, g: int) -> Wait:
    """Stamps are known in one partition, and not so far in another."""
    part = min(stamps.of_set or stamps.parts.values(), key=lambda part: (part.complete_g, part.partition))
    return Wait(
        kind="answers" if part.held else "stamps",
        topic=topic,
        source=source,
        offset=offset,
        stamps_partition=part.partition,
        g=g,
    )


def _unstamped(sets: Sets, stamps: Stamps, state: EventPartition) -> Wait | None:
    offset, topic = int(state.held[0, 0]), int(state.held[1, 0])
    if topic not in sets.names or state.owed.next is not None:
        return None  # what is stamped is in the order
    part = stamps.holding(topic)
    return Wait(
        kind="answers" if part.held else "stamps",
        topic=sets.names[topic],
        source=state.source,
        offset=offset,
        stamps_partition=part.partition,
    )
