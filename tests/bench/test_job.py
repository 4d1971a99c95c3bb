"""What `totalorder bench job` makes of what it saw."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyspark.sql import Row

from totalorder.bench.job.command import SLOWEST, Measured, delays_between, percentiles_ms, summary, tables
from totalorder.bench.live.progress import (
    PARTS,
    BatchTime,
    events_per_s,
    parts_ms,
    records_of,
    state_bytes,
    whole_batches,
)


def batch(rows: int, whole_ms: int, **parts_ms: int) -> BatchTime:
    return BatchTime(rows=rows, ms={"triggerExecution": whole_ms, **parts_ms})


def test_a_batch_has_the_records_that_the_job_counted_and_else_its_rows() -> None:
    figures = json.dumps({"batch": 7, "events": 90, "controls": 6, "unroutable": 4, "g_last": 96})
    observed: list[dict[str, Row]] = [{"figures": Row(figures=figures)}, {"figures": Row(figures=None)}, {}]
    triggers = [SimpleNamespace(observedMetrics=each, numInputRows=3) for each in observed]
    assert [records_of(trigger) for trigger in triggers] == [100, 3, 3]  # type: ignore[arg-type]


def test_neither_the_first_batch_nor_a_remnant_counts() -> None:
    first, whole, other, remnant = batch(1_000, 9_000), batch(1_000, 100), batch(900, 100), batch(3, 200)
    assert whole_batches([first, whole, other, remnant]) == [whole, other]


def test_speed_is_all_rows_over_all_time() -> None:
    assert events_per_s([batch(1_000, 100), batch(3_000, 300), batch(1_000, 600)]) == 5_000


def test_parts_are_medians_and_the_rest_is_what_no_part_says() -> None:
    found = parts_ms([batch(1, 100, addBatch=60, walCommit=10), batch(1, 50, addBatch=50), batch(1, 90, addBatch=70)])
    assert (found["triggerExecution"], found["addBatch"], found["walCommit"], found["rest"]) == (90, 60, 0, 20)
    assert set(found) == {"triggerExecution", "rest", *PARTS}


def test_a_delay_belongs_to_the_phase_in_which_its_event_was_sent() -> None:
    rows = np.array([[1.0, 1.5], [2.0, 9.0], [3.0, 3.25]])
    assert delays_between(rows, 1.0, 3.0).tolist() == [0.5, 7.0]


def test_percentiles_are_of_all_rounds_together() -> None:
    p50, p99 = percentiles_ms([np.full(60, 0.010), np.full(39, 0.020), np.full(1, 5.0)])
    assert p50 == pytest.approx(10)
    assert 20 <= p99 < 5_000


def test_the_state_of_a_batch_is_the_newest_change_log_of_every_shard(tmp_path: Path) -> None:
    for shard, sizes in (("0", (9_000, 400)), ("1", (30,))):
        folder = tmp_path / "query" / "state" / "0" / shard
        folder.mkdir(parents=True)
        for number, size in enumerate(sizes, 1):
            (folder / f"{number}.changelog").write_bytes(bytes(size))
        (folder / "7.zip").write_bytes(bytes(50_000))
    (tmp_path / "query" / "state" / "0" / "_metadata").mkdir()
    assert state_bytes(tmp_path) == 430


def measured(*, batch_ms: int, delay_s: float) -> Measured:
    return Measured(
        backlog=[batch(1_000, batch_ms)],
        small=[batch(10, batch_ms // 10)],
        delays={SLOWEST: [np.full(100, delay_s)], 1_000: [np.full(100, 2 * delay_s)]},
        stages=1,
        tasks=4,
        state_bytes=410,
    )


def test_ratios_are_the_job_over_each_copy() -> None:
    data = summary(
        {
            "copy": measured(batch_ms=100, delay_s=0.1),
            "tuned": measured(batch_ms=50, delay_s=0.05),
            "job": measured(batch_ms=200, delay_s=0.3),
        }
    )
    assert (data["throughput_ratio"], data["tuned_throughput_ratio"]) == (pytest.approx(0.5), pytest.approx(0.25))
    assert (data["p50_ratio"], data["tuned_p50_ratio"]) == (pytest.approx(3), pytest.approx(6))
    assert (data["p50_ms"], data["copy_p50_ms"], data["tuned_p50_ms"]) == pytest.approx((300, 100, 50))
    assert data["rates"]["1000"]["p99_ms"] == pytest.approx(600)
    assert data["phases"]["job_backlog"]["triggerExecution"] == 200
    shown = tables(data)
    assert all(len(row) == len(table.columns) for table in shown for row in table.rows)
    assert list(shown[1].rows[0]) == ["200", "100", "50", "300", "3.00", "6.00"]
