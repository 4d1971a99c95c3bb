"""What the application gets."""

from collections.abc import Mapping
from typing import NamedTuple

from totalorder.sequencer.delivery_effects import Deliver, Tag
from totalorder.subscriber.transport import Record


class Event(NamedTuple):
    """One event at its place in the order.

    `g` is its index in the domain's one order, `n` its number within `topic`; `entries` are the clocks that its
    timestamp writes for the subscription's other topics. `tag` is "redelivered" when a former process may have
    delivered it without acknowledging it, and "lost" when it stands for one that Kafka has no longer: then there is no
    key, value or header, and the time is -1. `sequence` counts this process's deliveries: 1, 2, 3 …
    `topic_id` is Kafka's id of `kafka_topic`: a topic that is deleted and created again has another, and begins with
    offset 0 once more.
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

    @classmethod
    def of(cls, effect: Deliver) -> "Event":
        """The event of a Deliver effect whose handle is the Kafka record, None for one that is lost."""
        record = effect.handle
        if record is None:
            record = Record(effect.source.topic, effect.source.partition, effect.offset, None, None, (), -1)
        assert isinstance(record, Record)
        return cls(
            topic=effect.topic,
            kafka_topic=effect.source.topic,
            topic_id=effect.source.topic_id,
            partition=effect.source.partition,
            offset=record.offset,
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp_ms=record.timestamp_ms,
            n=effect.n,
            g=effect.g,
            entries=effect.entries,
            tag=effect.tag,
            sequence=effect.sequence,
        )
