"""What Spark tells of the batches of a query."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.errors import Error
from totalorder.streaming.failures import error_from
from totalorder.streaming.processor import FIGURES
from totalorder.streaming.progress import OBSERVED, Trigger, behind

_LOOK_S = 0.25
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
"""Spark's names for the parts of a trigger, in their order."""
WHOLE = "triggerExecution"


@dataclass(frozen=True, kw_only=True)
class BatchTime:
    """One batch: how many records it read, and the milliseconds of its parts under Spark's names."""

    rows: int
    ms: Mapping[str, int]


class BatchTimes:
    """The batches of one query that had rows, oldest first. Spark keeps few: look often."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen: Trigger | None = None
        self._found: dict[int, BatchTime] = {}

    def look(self) -> list[BatchTime]:
        """All until now; Error when the query has failed."""
        for progress in behind(self._query, self._seen):
            self._seen = progress.batchId, progress.timestamp
            if rows := records_of(progress):
                self._found[progress.batchId] = BatchTime(rows=rows, ms=dict(progress.durationMs))
        if not self._query.isActive:
            raise error_from(str(self._query.exception()))
        return [self._found[batch] for batch in sorted(self._found)]

    def until_read(self, rows: int, timeout_s: float) -> list[BatchTime]:
        """All, as soon as they have read so many rows; Error when the time is over."""
        deadline = time.monotonic() + timeout_s
        found = self.look()
        while sum(batch.rows for batch in found) < rows:
            if time.monotonic() > deadline:
                raise Error(f"a backlog of {rows} events took more than {timeout_s:g} s", remedy="Take a smaller size")
            time.sleep(_LOOK_S)
            found = self.look()
        return found


def records_of(progress: StreamingQueryProgress) -> int:
    """Kafka records of one trigger. The job counts them itself, since its rows may be packed: several in each."""
    row = progress.observedMetrics.get(OBSERVED)
    figures = row.asDict().get(FIGURES) if row is not None else None
    if not figures:
        return progress.numInputRows
    counts = json.loads(figures)
    return int(sum(counts[name] for name in ("events", "controls", "unroutable")))


def whole_batches(batches: Sequence[BatchTime]) -> list[BatchTime]:
    """Without the first, in which things are loaded and compiled, and without the remnants at the end."""
    largest = max(batch.rows for batch in batches)
    return [batch for batch in batches[1:] if batch.rows > largest / 2]


def events_per_s(batches: Sequence[BatchTime]) -> float:
    """Rows of these batches over the time that they took, from trigger to trigger."""
    return 1_000 * sum(batch.rows for batch in batches) / sum(batch.ms[WHOLE] for batch in batches)


def parts_ms(batches: Sequence[BatchTime]) -> dict[str, float]:
    """Median of each part over the batches, and of what none of the parts says."""
    found = {part: median(batch.ms.get(part, 0) for batch in batches) for part in (WHOLE, *PARTS)}
    rest = median(batch.ms[WHOLE] - sum(batch.ms.get(part, 0) for part in PARTS) for batch in batches)
    return found | {"rest": rest}


def stages_and_tasks(spark: SparkSession, query: StreamingQuery) -> tuple[int, int]:
    """Of the query's newest batch that Spark still knows; 0 and 0 for none."""
    tracker = spark.sparkContext.statusTracker()
    known = tracker.getJobIdsForGroup(str(query.runId))
    job = tracker.getJobInfo(max(known)) if known else None
    stages = [tracker.getStageInfo(stage) for stage in job.stageIds] if job is not None else []
    return len(stages), sum(stage.numTasks for stage in stages if stage is not None)


def state_bytes(checkpoint: Path) -> int:
    """What the newest batch wrote of state: the last change log of every shard."""
    shards = (checkpoint / "query" / "state" / "0").iterdir()
    logs = [sorted(shard.glob("*.changelog"), key=lambda path: path.stat().st_mtime_ns) for shard in shards]
    return sum(found[-1].stat().st_size for found in logs if found)
