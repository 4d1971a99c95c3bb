"""Spark's Python processes: the job is ready when a worker has answered, one that is slow is waited for, and one that
was killed, the source's or a stamping one, is made anew.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from spark_job import by_engine, read_log
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.streaming.checkpoint import RECORD
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.runner import READY, Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark]
AGAIN = "starting the query again"
SOURCE = "python_streaming_source_runner"
DAEMON = "totalorder.streaming.daemon"
BOUND_S = 150.0
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


def children(parents: Collection[int], command: str) -> list[int]:
    """Ids of the processes that these have started, with this in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in parents and command in (folder / "cmdline").read_text():
                found.append(int(folder.name))
    return found


def java() -> int:
    return int(SparkContext._gateway.proc.pid)  # type: ignore[union-attr]


def source_processes() -> list[int]:
    """Those in which sources of queries live."""
    return children([java()], SOURCE)


def stamping_workers() -> list[int]:
    """Those that run tasks: they are forked from a daemon."""
    return children(children([java()], DAEMON), DAEMON)


@pytest.mark.parametrize("processes", [source_processes, pytest.param(stamping_workers, marks=pytest.mark.long)])
def test_a_killed_python_process_is_borne_and_the_order_goes_on(
    processes: Callable[[], list[int]],
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topics = (new_topic("a"), new_topic("b"))
    settings = settings_for(unique_name("job"), broker.bootstrap_servers, tmp_path / "c", topics=topics)

    def publish(count: int) -> None:
        with kafka_clients.producer(broker.bootstrap_servers) as producer:
            for number in range(count):
                producer.send(topics[number % 2], value=b"%d" % number)
            producer.flush(60)

    def until(job: Sequencer, events: int) -> None:
        wait_until(lambda: job.wait(0) or job.processed.events >= events, f"{events} events", bound_s=BOUND_S)
        assert not job.wait(0)
        assert job.processed.events == events

    with Sequencer(settings, spark=spark) as job, capture_logs() as logs:
        publish(10)
        until(job, 10)
        killed = processes()
        assert killed
        publish(10)
        for pid in killed:
            os.kill(pid, signal.SIGKILL)  # in whatever step of a batch it is
        until(job, 20)
        assert not set(processes()) & set(killed)
    assert not [line for line in logs if "MicroBatchExecution" in line.get("line", "")], "it is told in one line"
    again = [line["event"] for line in logs].count(AGAIN)
    assert again == 1 or (again == 0 and processes is stamping_workers), "an idle worker is replaced without a word"
    record = DomainRecord.decode((tmp_path / "c" / RECORD).read_text(encoding="utf-8"), "here")
    log = read_log(settings)
    assert len(log.events()) == 20
    assert {(one.batch, one.partition): one.digest for one in log.stamped} == {
        (one.batch, one.partition): one.digest for one in by_engine(settings, record, log)[1]
    }
