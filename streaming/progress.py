"""The figures of the batches that a query has finished.

Read from the query and not by a StreamingQueryListener: pyspark looks class names up in every jar for each event of a
listener, which took more of Java's time than all batches together.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.streaming.processor import FIGURES

OBSERVED = "figures"
"""Name of the observation in the query's plan."""
KEPT = 128
"""Finished batches that Spark keeps, those of some six seconds at the highest rate. Of a longer pause between two reads
some are not seen, and nobody is told which topics they retired.
"""
Trigger = tuple[int, str]
"""Batch and time: one that found nothing has the number of the batch that comes next."""


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """One finished batch that had rows: its number to Spark, the figures under `processor.FIGURES`, Spark's durations,
    and what the source said last of its looks.
    """

    planned: int
    figures: dict[str, Any]
    durations_ms: dict[str, int]
    looks: dict[str, Any]


class ProgressReader:
    """Reads one query's progress, each batch once.

    A trigger that found nothing reports the number of the batch that comes next, so numbers alone do not tell whether a
    batch was seen: the trigger's time belongs to it.
    """

    def __init__(self, query: StreamingQuery, looks: Callable[[], dict[str, Any]]) -> None:
        """`looks` gives the figures of the source's looks."""
        self._query, self._looks = query, looks
        self._seen: Trigger | None = None
        self._next = -1
        """The batch after the last one that was seen, where that one had rows."""

    def read(self) -> Iterator[BatchProgress]:
        """The batches finished since the last call, oldest first."""
        last = self._query.lastProgress
        if last is None or _trigger(last) == self._seen:
            return
        for progress in [last] if last.batchId == self._next else behind(self._query, self._seen):
            self._seen, self._next = _trigger(progress), -1
            for batch in _figures(progress, self._looks):
                self._next = progress.batchId + 1
                yield batch


def behind(query: StreamingQuery, seen: Trigger | None) -> list[StreamingQueryProgress]:
    """What Spark keeps of the query behind one of its triggers, oldest first; all of it where that one is not there.

    Only that is brought over from Java, where pyspark's own `recentProgress` brings all that is kept.
    """
    kept = query._jsq.recentProgress()
    found: list[StreamingQueryProgress] = []
    for at in range(len(kept) - 1, -1, -1):
        progress = StreamingQueryProgress.fromJson(json.loads(kept[at].json()))
        if _trigger(progress) == seen:
            break
        found.append(progress)
    return found[::-1]


def _trigger(progress: StreamingQueryProgress) -> Trigger:
    return progress.batchId, progress.timestamp


def _figures(progress: StreamingQueryProgress, looks: Callable[[], dict[str, Any]]) -> Iterator[BatchProgress]:
    row = progress.observedMetrics.get(OBSERVED)
    text = row.asDict().get(FIGURES) if row is not None else None
    if text:
        durations_ms = dict(progress.durationMs)
        yield BatchProgress(
            planned=progress.batchId, figures=json.loads(text), durations_ms=durations_ms, looks=looks()
        )
