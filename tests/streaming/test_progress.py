"""Reading a query's progress: each batch once, in order, with its figures."""

import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any, cast
from uuid import UUID

from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.streaming.progress import KEPT, OBSERVED, ProgressReader, behind

TRIGGERS = count()


@dataclass
class Finished:
    """As Java has one; `told` counts how often it was brought over."""

    batch_id: int
    figures: str | None
    trigger: int = field(default_factory=lambda: next(TRIGGERS))
    told: int = 0

    def json(self) -> str:
        self.told += 1
        return json.dumps(
            {
                "id": str(UUID(int=1)),
                "runId": str(UUID(int=2)),
                "name": None,
                "timestamp": f"trigger {self.trigger}",
                "batchId": self.batch_id,
                "batchDuration": self.batch_id,
                "durationMs": {"triggerExecution": self.batch_id},
                "stateOperators": [],
                "sources": [],
                "sink": {"description": "kafka", "numOutputRows": -1},
                "observedMetrics": {OBSERVED: {"figures": self.figures}},
            }
        )


class Query:
    """What Spark keeps of a query: its last batches."""

    def __init__(self, *kept: Finished) -> None:
        self.kept = list(kept)

    @property
    def _jsq(self) -> "Query":
        return self

    def recentProgress(self) -> list[Finished]:  # noqa: N802
        return self.kept

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        return StreamingQueryProgress.fromJson(json.loads(self.kept[-1].json())) if self.kept else None

    def finish(self, *batch_ids: int) -> None:
        self.kept += [Finished(batch_id, json.dumps({"batch": batch_id})) for batch_id in batch_ids]
        del self.kept[:-KEPT]


def read(reader: ProgressReader) -> list[int]:
    return [batch.figures["batch"] for batch in reader.read()]


def test_each_batch_comes_once_and_in_order() -> None:
    query = Query()
    reader = ProgressReader(cast(StreamingQuery, query), dict)
    assert read(reader) == []
    query.finish(7)
    assert read(reader) == [7]
    assert read(reader) == []
    query.finish(8)
    assert read(reader) == [8]
    query.finish(9, 10, 11)
    assert read(reader) == [9, 10, 11]
    query.finish(*range(12, 12 + 2 * KEPT))
    assert read(reader) == list(range(12 + KEPT, 12 + 2 * KEPT))


def test_batches_of_some_seconds_are_all_seen_and_brought_over_once() -> None:
    """While the driver looks at topics it reads nothing, and then it must hear of each batch what that has retired."""
    query = Query()
    reader = ProgressReader(cast(StreamingQuery, query), dict)
    query.finish(*range(50))
    assert read(reader) == list(range(50))
    query.finish(*range(50, KEPT))
    assert read(reader) == list(range(50, KEPT))
    assert max(one.told for one in query.kept) <= 4, "as the last one, to read it, and where what is new ends"
    newest = KEPT - 1, f"trigger {query.kept[-1].trigger}"
    assert len(behind(cast(StreamingQuery, query), None)) == KEPT
    assert behind(cast(StreamingQuery, query), newest) == []


def test_a_trigger_that_found_nothing_has_the_number_of_the_next_batch() -> None:
    query = Query(Finished(1, None))
    reader = ProgressReader(cast(StreamingQuery, query), dict)
    assert read(reader) == []
    query.finish(1)
    assert read(reader) == [1]
    query.kept.append(Finished(2, ""))
    assert read(reader) == []
    query.finish(2, 3)
    assert read(reader) == [2, 3]
    query.kept.append(Finished(4, None))
    query.finish(4)
    assert read(reader) == [4]


def test_figures_and_durations_are_handed_on() -> None:
    reader = ProgressReader(cast(StreamingQuery, Query(Finished(4, '{"batch": 4}'))), lambda: {"longest_ms": 7})
    (batch,) = reader.read()
    assert (batch.planned, batch.figures, batch.durations_ms) == (4, {"batch": 4}, {"triggerExecution": 4})
    assert batch.looks == {"longest_ms": 7}
