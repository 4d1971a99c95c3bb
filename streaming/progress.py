"""The figures of the batches that a query has finished.

Read from the query and not by a StreamingQueryListener: pyspark looks class names up in every jar for each event of a
listener, which took more of Java's time than all batches together.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.streaming.processor import FIGURES

OBSERVED = "figures"
"""Name of the observation in the query's plan."""
KEPT = 64
"""Finished batches that Spark keeps; those of a longer pause between two reads are not seen."""


@dataclass(frozen=True, kw_only=True)
class BatchProgress:
    """One finished batch that had rows: the figures under `processor.FIGURES`, and Spark's durations."""

    figures: dict[str, Any]
    durations_ms: dict[str, int]
    rows_per_s: float


class ProgressReader:
    """Reads one query's progress, each batch once."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = -1

    def read(self) -> Iterator[BatchProgress]:
        """The batches finished since the last call, oldest first."""
        last = self._query.lastProgress
        if last is None or last.batchId <= self._seen:
            return
        batches = [last] if last.batchId == self._seen + 1 else self._query.recentProgress
        for progress in batches:
            if progress.batchId > self._seen:
                self._seen = progress.batchId
                yield from _figures(progress)


def _figures(progress: StreamingQueryProgress) -> Iterator[BatchProgress]:
    row = progress.observedMetrics.get(OBSERVED)
    text = row.asDict().get(FIGURES) if row is not None else None
    if text:
        yield BatchProgress(
            figures=json.loads(text), durations_ms=dict(progress.durationMs), rows_per_s=progress.processedRowsPerSecond
        )
