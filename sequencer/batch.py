"""One micro-batch as the engine sees it: metadata columns only, never the events' values."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Columns of equal length, rows in any order (Spark's shuffle gives no order).

    `kafka_topic` and `topic` are codes into `kafka_topics` and `topics`; `topic` is -1 for control records and for
    events whose pub/sub topic cannot be told; `control` holds the value of each control record by row number.
    `time_ms` is the batch's own time from the write-ahead log, the same on replay.
    """

    time_ms: int
    kafka_topics: tuple[str, ...]
    topics: tuple[str, ...]
    kafka_topic: Ints
    partition: Ints
    offset: Ints
    timestamp_ms: Ints
    topic: Ints
    crc: Ints
    control: Mapping[int, bytes]

    def __post_init__(self) -> None:
        size = len(self.offset)
        for column in (self.kafka_topic, self.partition, self.timestamp_ms, self.topic, self.crc):
            if len(column) != size:
                raise ValueError("the columns of a batch differ in length")

    def without(self, rows: Collection[int]) -> "Batch":
        """The batch without the rows of these numbers."""
        if not rows:
            return self
        kept = np.delete(np.arange(len(self.offset)), list(rows))
        columns = ("kafka_topic", "partition", "offset", "timestamp_ms", "topic", "crc")
        control = {place: self.control[row] for place, row in enumerate(kept.tolist()) if row in self.control}
        return replace(self, **{name: getattr(self, name)[kept] for name in columns}, control=control)

    @classmethod
    def of(cls, time_ms: int, rows: Iterable[Row]) -> "Batch":
        """Builds a batch from rows."""
        listed = list(rows)
        kafka_topics = tuple(dict.fromkeys(row.kafka_topic for row in listed))
        topics = tuple(dict.fromkeys(row.topic for row in listed if row.control is None and row.topic))
        kafka_code = {name: code for code, name in enumerate(kafka_topics)}
        topic_code = {name: code for code, name in enumerate(topics)}

        def column(values: Iterable[int]) -> Ints:
            return np.fromiter(values, dtype=np.int64, count=len(listed))

        return cls(
            time_ms=time_ms,
            kafka_topics=kafka_topics,
            topics=topics,
            kafka_topic=column(kafka_code[row.kafka_topic] for row in listed),
            partition=column(row.partition for row in listed),
            offset=column(row.offset for row in listed),
            timestamp_ms=column(row.timestamp_ms for row in listed),
            topic=column(topic_code[row.topic] if row.control is None and row.topic else -1 for row in listed),
            crc=column(row.crc for row in listed),
            control={index: row.control for index, row in enumerate(listed) if row.control is not None},
        )
