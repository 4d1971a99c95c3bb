"""One micro-batch as the engine sees it: metadata columns only, never the events' values."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.wire.stamps import KafkaTopic

Ints = npt.NDArray[np.int64]


class Row(NamedTuple):
    """One Kafka record, for callers that have rows and not columns."""

    kafka_topic: str
    partition: int
    offset: int
    timestamp_ms: int = 0
    topic: str = ""
    """The pub/sub topic; empty when it cannot be told. Ignored for control records."""
    crc: int = 0
    """crc32 of the value; 0 for a null value."""
    control: bytes | None = None
    """The value, of control records only."""
    slice: int = 0
    """The number of its slice within the batch."""
    topic_id: str = ""
    """Kafka's id of the topic."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Columns of equal length, rows in any order (Spark's shuffle gives no order).

    `kafka_topic` and `topic` are codes into `kafka_topics` and `topics`; `topic` is -1 for control records and for
    events whose pub/sub topic cannot be told; `control` holds the value of each control record by row number.
    `slice` is the number of the record's slice within the batch: what lies between two looks at Kafka's ends. Along a
    partition it never falls. `time_ms` is the batch's own time from the write-ahead log and `cut` the number of the cut
    (1, 2, 3 …) that the batch comes from, both the same on replay. Of equal record times the Kafka topic wins that
    stands earlier in `topic_order`; those that are not in it come after those that are.
    """

    time_ms: int
    cut: int
    topic_order: tuple[str, ...]
    kafka_topics: tuple[KafkaTopic, ...]
    topics: tuple[str, ...]
    kafka_topic: Ints
    partition: Ints
    offset: Ints
    timestamp_ms: Ints
    topic: Ints
    crc: Ints
    slice: Ints
    control: Mapping[int, bytes]

    def __post_init__(self) -> None:
        size = len(self.offset)
        for column in (self.kafka_topic, self.partition, self.timestamp_ms, self.topic, self.crc, self.slice):
            if len(column) != size:
                raise ValueError("the columns of a batch differ in length")
        if len(set(self.topic_order)) < len(self.topic_order):
            raise ValueError("topic_order names a topic twice")

    def without(self, rows: Collection[int]) -> "Batch":
        """The batch without the rows of these numbers."""
        if not rows:
            return self
        kept = np.delete(np.arange(len(self.offset)), list(rows))
        columns = ("kafka_topic", "partition", "offset", "timestamp_ms", "topic", "crc", "slice")
        control = {place: self.control[row] for place, row in enumerate(kept.tolist()) if row in self.control}
        return replace(self, **{name: getattr(self, name)[kept] for name in columns}, control=control)

    @classmethod
    def of(cls, time_ms: int, rows: Iterable[Row], *, cut: int = 1, topic_order: tuple[str, ...] = ()) -> "Batch":
        """Builds a batch from rows; without more said, the first cut's, with one slice and no order of topics."""
        listed = list(rows)
        kafka_topics = tuple(dict.fromkeys(KafkaTopic(row.kafka_topic, row.topic_id) for row in listed))
        topics = tuple(dict.fromkeys(row.topic for row in listed if row.control is None and row.topic))
        kafka_code = {topic: code for code, topic in enumerate(kafka_topics)}
        topic_code = {name: code for code, name in enumerate(topics)}

        def column(values: Iterable[int]) -> Ints:
            return np.fromiter(values, dtype=np.int64, count=len(listed))

        return cls(
            time_ms=time_ms,
            cut=cut,
            topic_order=topic_order,
            kafka_topics=kafka_topics,
            topics=topics,
            kafka_topic=column(kafka_code[KafkaTopic(row.kafka_topic, row.topic_id)] for row in listed),
            partition=column(row.partition for row in listed),
            offset=column(row.offset for row in listed),
            timestamp_ms=column(row.timestamp_ms for row in listed),
            topic=column(topic_code[row.topic] if row.control is None and row.topic else -1 for row in listed),
            crc=column(row.crc for row in listed),
            slice=column(row.slice for row in listed),
            control={index: row.control for index, row in enumerate(listed) if row.control is not None},
        )
