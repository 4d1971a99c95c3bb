"""`totalorder bench job --beside`: what it makes of logs and delays, and how it takes another installation."""

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from waiting import is_alive

from totalorder.bench.job.beside import Job, Measured, batches_of, run, summary, tables
from totalorder.bench.live.progress import WHOLE, BatchTime
from totalorder.bench.outcome import Request, Size
from totalorder.cli.app import main
from totalorder.errors import Error, SettingsError

_READY = json.dumps({"event": "sequencer ready"})


def batch(rows: int, ms: int) -> BatchTime:
    return BatchTime(rows=rows, ms={WHOLE: ms})


def test_batches_are_read_from_the_log_and_other_lines_passed_over() -> None:
    said = {"event": "batch", "events": 90, "controls": 10, "trigger_ms": 45}
    lines = ["starting Spark …", _READY, json.dumps(said), '"batch"', '{"event": "batch", "ev', json.dumps(said)]
    assert batches_of(lines) == [batch(100, 45)] * 2


def test_ratios_are_this_installation_over_the_other() -> None:
    data = summary(
        {
            "this": Measured(
                delays={200: [np.full(9, 0.050), np.full(9, 0.050)]}, small=[batch(1, 30)], backlog=[batch(900, 100)]
            ),
            "other": Measured(delays={200: [np.full(9, 0.100)]}, small=[batch(1, 60)], backlog=[batch(600, 100)]),
        }
    )
    assert data["rates"]["200"]["p50_ms"] == pytest.approx({"this": 50, "other": 100, "ratio": 0.5})
    assert data["backlog_events_per_s"] == pytest.approx({"this": 9_000, "other": 6_000, "ratio": 1.5})
    assert data["trigger_ms"] == pytest.approx({"this": 30, "other": 60, "ratio": 0.5})
    (shown,) = tables(data)
    assert [list(row) for row in shown.rows] == [
        ["p50 at 200 events/s, ms", "50", "100", "0.50"],
        ["p99 at 200 events/s, ms", "50", "100", "0.50"],
        ["backlog, events/s", "9,000", "6,000", "1.50"],
        ["trigger at 200 events/s, ms", "30", "60", "0.50"],
    ]


def _job(tmp_path: Path, code: str) -> Job:
    return Job([sys.executable, "-c", code], tmp_path / "log")


def test_a_job_that_ends_before_it_is_ready_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"has ended: .*no broker"), _job(tmp_path, "raise SystemExit('no broker')"):
        pytest.fail("it was ready")


def test_a_job_is_ended_in_good_order(tmp_path: Path) -> None:
    code = f"""
import signal, sys, threading
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
print({_READY!r}, file=sys.stderr, flush=True)
ended.wait(60)
print("good bye", file=sys.stderr)
"""
    with _job(tmp_path, code) as job:
        job.raise_if_ended()
        assert job.batches() == []
        pid = job._process.pid
    assert not is_alive(pid)
    assert (tmp_path / "log").read_text().splitlines()[-1] == "good bye"


def test_a_python_without_totalorder_is_refused_before_anything_starts(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    bare.chmod(0o755)
    said: list[str] = []
    for python in (bare, tmp_path / "missing"):
        with pytest.raises(SettingsError, match=f"--beside: {python} cannot load"):
            run(Request(size=Size.SMOKE, say=said.append, out=tmp_path, beside=python))
    assert said == []


def test_the_command_takes_the_other_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own handlers
    with pytest.raises(SystemExit) as ended:
        main(["bench", "job", "--smoke", "--beside", "/no/such/python"])
    assert ended.value.code == 2
    assert "--beside: /no/such/python cannot load" in capsys.readouterr().err
