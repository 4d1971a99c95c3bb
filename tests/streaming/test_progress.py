"""Reading a query's progress: each batch once, in order, with its figures."""

import json
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import Row
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.streaming.progress import KEPT, OBSERVED, ProgressReader

TRIGGERS = count()


def finished(batch_id: int, figures: str | None) -> SimpleNamespace:
    observed = {OBSERVED: Row(figures=figures)}
    durations = {"triggerExecution": batch_id}
    return SimpleNamespace(
        batchId=batch_id,
        timestamp=f"trigger {next(TRIGGERS)}",
        observedMetrics=observed,
        durationMs=durations,
    )


@dataclass
class Query:
    """What Spark keeps of a query: its last batches."""

    recentProgress: list[Any] = field(default_factory=list)  # noqa: N815

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        return self.recentProgress[-1] if self.recentProgress else None

    def finish(self, *batch_ids: int) -> None:
        self.recentProgress += [finished(batch_id, json.dumps({"batch": batch_id})) for batch_id in batch_ids]
        del self.recentProgress[:-KEPT]


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


def test_a_trigger_that_found_nothing_has_the_number_of_the_next_batch() -> None:
    query = Query([finished(1, None)])
    reader = ProgressReader(cast(StreamingQuery, query), dict)
    assert read(reader) == []
    query.finish(1)
    assert read(reader) == [1]
    query.recentProgress.append(finished(2, ""))
    assert read(reader) == []
    query.finish(2, 3)
    assert read(reader) == [2, 3]
    query.recentProgress.append(finished(4, None))
    query.finish(4)
    assert read(reader) == [4]


def test_figures_and_durations_are_handed_on() -> None:
    reader = ProgressReader(cast(StreamingQuery, Query([finished(4, '{"batch": 4}')])), lambda: {"longest_ms": 7})
    (batch,) = reader.read()
    assert (batch.planned, batch.figures, batch.durations_ms) == (4, {"batch": 4}, {"triggerExecution": 4})
    assert batch.looks == {"longest_ms": 7}
