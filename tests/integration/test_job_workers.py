"""Spark's Python workers at a start: the job is ready when one has answered, and one that is slow is waited for."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_shared import settings_for
from structlog.testing import capture_logs

from totalorder.broker import LocalBroker
from totalorder.streaming.runner import READY, Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark]
AGAIN = "starting the query again"
# Spark gives a worker 10 s. The state's worker of the first query is slower, once.
SLOW_ONCE = """#!/bin/sh
case "$*" in
*transform_with_state_driver_worker*) if [ -e {once} ]; then rm {once}; exec sleep 12; fi ;;
esac
exec {python} "$@"
"""


def test_ready_is_said_when_a_worker_has_answered_and_a_slow_one_is_borne(
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = settings_for(unique_name("job"), broker.bootstrap_servers, tmp_path / "c", topics=(new_topic("a"),))
    with Sequencer(settings, spark=spark):
        pass
    once, python = tmp_path / "once", tmp_path / "python"
    once.touch()
    python.write_text(SLOW_ONCE.format(once=once, python=sys.executable))
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    with capture_logs() as logs, Sequencer(settings, spark=spark):  # nothing is there to do: no batch starts a worker
        assert not once.exists()
    assert [line["event"] for line in logs if line["event"] in (READY, AGAIN)] == [AGAIN, READY]
