"""From chunks to the engine's batch."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.wire.numbering import numbered
from totalorder.sequencer.wire.stamps import KafkaTopic
from totalorder.streaming.cut.chunk import Chunk

Ints = npt.NDArray[np.int64]
_T = TypeVar("_T", bound=Hashable)
CHUNK, TIME_MS = "chunk", "time_ms"
"""Spark's columns: a chunk, and beside it the batch's own time."""


def to_batch(chunks: Sequence[Chunk], *, time_ms: int, control_topic: str, topic_by: str) -> Batch:
    """One batch of all its chunks, in whatever order they come; StateError where they are of different cuts."""
    first = chunks[0]
    if any((chunk.cut, chunk.topic_order) != (first.cut, first.topic_order) for chunk in chunks):
        raise StateError("records of two cuts came in one batch", remedy="Start the job again: the batch is read anew")
    sources, source = _joined((chunk.sources, chunk.source) for chunk in chunks)
    kafka_topics, of_source = _joined(
        [([KafkaTopic(name, topic_id) for name, topic_id, _ in sources], np.arange(len(sources), dtype=np.int64))]
    )
    kafka_topic = of_source[source]
    if topic_by == "topic":
        topics = list(dict.fromkeys(name for name, _ in kafka_topics if name != control_topic))
        place = {name: code for code, name in enumerate(topics)}
        topic = _each(place.get(name, -1) for name, _ in kafka_topics)[kafka_topic]
    else:
        topics, topic = _joined((chunk.names, chunk.topic) for chunk in chunks)
    return Batch(
        time_ms=time_ms,
        cut=first.cut,
        topic_order=first.topic_order,
        kafka_topics=tuple(kafka_topics),
        topics=tuple(topics),
        kafka_topic=kafka_topic,
        partition=_each(partition for _, _, partition in sources)[source],
        offset=_column(chunks, lambda chunk: chunk.offset),
        timestamp_ms=_column(chunks, lambda chunk: chunk.timestamp_ms),
        slice=_column(chunks, lambda chunk: chunk.slice),
        topic=topic,
        crc=_column(chunks, lambda chunk: chunk.crc),
        control=_control(chunks),
    )


def _joined(parts: Iterable[tuple[Iterable[_T], Ints]]) -> tuple[list[_T], Ints]:
    """Columns that count each in a table of its own, as one that counts in one table of what occurs; -1 stays."""
    table: dict[_T, int] = {}
    columns = [np.zeros(0, dtype=np.int64)]
    for listed, column in parts:
        places = [table.setdefault(each, len(table)) for each in listed]
        columns.append(np.array([*places, -1], dtype=np.int64)[column])
    joined = np.concatenate(columns)
    told = joined >= 0
    used, joined[told] = numbered(joined[told], size=len(table))
    every = list(table)
    return [every[place] for place in used.tolist()], joined


def _each(values: Iterable[int]) -> Ints:
    return np.array(list(values), dtype=np.int64)


def _column(chunks: Sequence[Chunk], of: Callable[[Chunk], Ints]) -> Ints:
    return np.concatenate([of(chunk) for chunk in chunks])


def _control(chunks: Sequence[Chunk]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    before = 0
    for chunk in chunks:
        found |= {before + row: value for row, value in chunk.control.items()}
        before += len(chunk.offset)
    return found
