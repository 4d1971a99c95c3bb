"""Chunks of the source from rows, by hand."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from totalorder.sequencer.batch import Row
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.batches import CHUNK, TIME_MS
from totalorder.streaming.cut.chunk import Chunk, encode


def chunk_of(rows: Sequence[Row], *, cut: int = 1, topic_order: tuple[str, ...] = ()) -> Chunk:
    """One chunk of rows in any order, with pub/sub topics by name wherever a row has one."""
    ordered = sorted(rows, key=lambda row: (_source(row), row.offset))
    sources = list(dict.fromkeys(map(_source, ordered)))
    names = list(dict.fromkeys(row.topic for row in ordered if row.control is None and row.topic))

    def column(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(list(values), dtype=np.int64)

    place = {source: at for at, source in enumerate(sources)}
    return Chunk(
        cut=cut,
        topic_order=topic_order,
        sources=tuple(sources),
        names=tuple(names),
        source=column(place[_source(row)] for row in ordered),
        offset=column(row.offset for row in ordered),
        timestamp_ms=column(row.timestamp_ms for row in ordered),
        crc=column(row.crc for row in ordered),
        slice=column(row.slice for row in ordered),
        topic=column(names.index(row.topic) if row.control is None and row.topic else -1 for row in ordered),
        control={at: row.control for at, row in enumerate(ordered) if row.control is not None},
    )


def _source(row: Row) -> Source:
    return Source(row.kafka_topic, row.topic_id, row.partition)


def frame_of(chunks: Sequence[Chunk], time_ms: int = 1000) -> pd.DataFrame:
    """Chunks as Spark hands them to the stateful group."""
    return pd.DataFrame({CHUNK: [encode(chunk) for chunk in chunks], TIME_MS: np.full(len(chunks), time_ms)})
