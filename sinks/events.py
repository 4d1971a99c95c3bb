"""What the lineage job reads of the stamped events themselves: times, checksums, and values where they are kept."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)

from totalorder.sequencer.wire.stamps import Source
from totalorder.sinks import pieces
from totalorder.sinks.decode import PLACE, event_ranges, matched, with_reads
from totalorder.sinks.settings import LineageSettings
from totalorder.sinks.source import read_range
from totalorder.streaming.preflight import TopicFacts

_HEAD_BYTES = 200
"""About what place, time and checksum of an event have in memory."""
_NAMED_PLACE = ("kafka_topic", "partition", "offset")
"""The columns of PLACE that Spark's source has."""
Ranges = dict[Source, tuple[int, int]]


class EventLog:
    """The event topics, read by ranges of offsets."""

    def __init__(
        self,
        spark: SparkSession,
        settings: LineageSettings,
        facts: Callable[[Iterable[str]], Mapping[str, TopicFacts]],
    ) -> None:
        """`facts` asks the broker for those of the topics that exist."""
        self._spark, self._settings, self._facts = spark, settings, facts

    def filled(self, events: pa.Table) -> Iterator[pa.Table]:
        """The rows in order, with time, checksum and value filled in, in parts that may be in memory at once.

        What Kafka no longer has stays null; so does what was in a topic that was deleted, whatever one of its name has.
        """
        large, parts = [], list(self._in_parts(event_ranges(events)))
        offsets = sum(end - first for ranges in parts for first, end in ranges.values())
        for ranges in parts:
            heads = self._heads(ranges, pieces.AT_ONCE_BYTES // offsets)
            events = with_reads(events, heads.drop_columns("bytes"))
            large.append(heads.filter(pc.greater(heads.column("bytes"), 0)).select([*PLACE, "bytes"]))
        sizes = _sizes(events, large)
        for start, end in pieces.runs(sizes, pieces.AT_ONCE_BYTES):
            part = events.slice(start, end - start)
            places = part.select(list(PLACE)).filter(pa.array(sizes[start:end] > 0))
            yield with_reads(part, self._values(places)) if len(places) else part

    def _heads(self, ranges: Ranges, most_bytes: int) -> pa.Table:
        """All but the values of more than `most_bytes`; of those `bytes` says what they have."""
        size = F.coalesce(F.octet_length("value"), F.lit(0)).cast("bigint")
        is_large = (size > most_bytes) & F.lit(self._settings.payload)
        value = F.when(F.lit(self._settings.payload) & ~is_large, F.col("value"))
        columns = (
            F.col("timestamp").alias("event_time"),
            F.coalesce(F.crc32("value"), F.lit(0)).alias("read_crc32"),
            value.alias("payload"),
            F.when(is_large, size).otherwise(0).alias("bytes"),
        )
        return self._read(ranges, lambda found: found.select(*_NAMED_PLACE, *columns))

    def _values(self, places: pa.Table) -> pa.Table:
        wanted = F.broadcast(self._spark.createDataFrame(places.select(list(_NAMED_PLACE))))

        def values(found: DataFrame) -> DataFrame:
            chosen = found.join(wanted, list(_NAMED_PLACE), "left_semi")
            return chosen.select(*_NAMED_PLACE, F.col("value").alias("payload"))

        parts = [self._read(ranges, values) for ranges in self._in_parts(event_ranges(places))]
        none = places.slice(0, 0).append_column("payload", pa.array([], pa.binary()))
        return pa.concat_tables([none, *(part.select(none.column_names) for part in parts)])

    def _read(self, ranges: Ranges, shaped: Callable[[DataFrame], DataFrame]) -> pa.Table:
        """What is read of the ranges, of which no two have topics of one name, in `_NAMED_PLACE` and what `shaped` asks
        for beside it; with topic_id.
        """
        by_name = {(topic, partition): ends for (topic, _, partition), ends in ranges.items()}
        found = read_range(self._spark, self._settings, by_name).withColumnRenamed("topic", "kafka_topic")
        return _of_topics(shaped(found).toArrow(), self._still_same(ranges))

    def _still_same(self, ranges: Ranges) -> dict[str, str]:
        """The ids of the topics that are still there: Spark reads by name, and another may have had it by then."""
        asked = {source.topic: source.topic_id for source in ranges}
        facts = self._facts(asked)
        return {name: topic_id for name, topic_id in asked.items() if _is_there(name, topic_id, facts)}

    def _in_parts(self, ranges: Mapping[Source, tuple[int, int]]) -> Iterator[Ranges]:
        """What Kafka still has of the ranges, cut into parts of which the heads may be in memory at once."""
        facts = self._facts({source.topic for source in ranges})
        present = {source: kept for source, asked in ranges.items() for kept in _still_there(source, asked, facts)}
        return _cut(present, pieces.AT_ONCE_BYTES // _HEAD_BYTES)


def _sizes(events: pa.Table, large: list[pa.Table]) -> npt.NDArray[np.int64]:
    """Of each row the bytes of its value, 0 where that is there already or wanted by nobody."""
    if not any(map(len, large)):
        return np.zeros(len(events), np.int64)
    sizes = matched(events, pa.concat_tables(large)).column("bytes")
    found: npt.NDArray[np.int64] = pc.fill_null(sizes, 0).to_numpy()
    return found


def _cut(ranges: Ranges, most: int) -> Iterator[Ranges]:
    """Ranges that have `most` offsets together, or fewer."""
    part: Ranges = {}
    room = most
    for source, (first, end) in ranges.items():
        while first < end:
            until = min(end, first + room)
            part[source] = first, until
            room -= until - first
            first = until
            if not room:
                yield part
                part, room = {}, most
    if part:
        yield part


def _of_topics(found: pa.Table, ids: Mapping[str, str]) -> pa.Table:
    """The rows of these topics, with their ids."""
    names = pa.array(list(ids), pa.string())
    found = found.filter(pc.is_in(found.column("kafka_topic"), value_set=names))
    place = pc.index_in(found.column("kafka_topic"), value_set=names)
    return found.append_column("topic_id", pa.array(list(ids.values()), pa.string()).take(place.combine_chunks()))


def _still_there(source: Source, asked: tuple[int, int], facts: Mapping[str, TopicFacts]) -> Iterator[tuple[int, int]]:
    topic, topic_id, partition = source
    if _is_there(topic, topic_id, facts) and partition in facts[topic].earliest:
        first, end = max(asked[0], facts[topic].earliest[partition]), min(asked[1], facts[topic].latest[partition])
        if first < end:
            yield first, end


def _is_there(topic: str, topic_id: str, facts: Mapping[str, TopicFacts]) -> bool:
    """Whether Kafka has the topic itself, and not one that was created anew under its name."""
    return topic in facts and facts[topic].topic_id == topic_id
