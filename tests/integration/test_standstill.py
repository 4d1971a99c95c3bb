"""A job whose Python or Java is stopped: it says where it stands and what does not answer, goes on when that does, and
ends in time with words, never in silence.
"""

import os
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from spark_process import SequencerProcess
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import is_alive, wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Error
from totalorder.streaming import processes
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.standstill import GOES_ON, STANDS
from totalorder.streaming.watchdog import java_process

pytestmark = [pytest.mark.broker, pytest.mark.spark]
BOUND_S = 150.0
SOURCE, WORKER = "the source's process", "Python worker"


def publish(broker: LocalBroker, topic: str, count: int) -> None:
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        for number in range(count):
            producer.send(topic, value=b"%d" % number)
        producer.flush(60)


def named(name: str) -> list[processes.Process]:
    """The job's processes of this name."""
    java = java_process()
    assert java is not None
    return [one for one in processes.below(java) if one.name == name]


def stop(name: str) -> list[int]:
    """Stops them; their ids."""
    stopped = [one.pid for one in named(name)]
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    return stopped


def words(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in logs if line["event"] in (STANDS, GOES_ON)]


def until(job: Sequencer, condition: Callable[[], bool], what: str) -> None:
    wait_until(lambda: job.wait(0) or condition(), what, bound_s=BOUND_S)
    assert not job.wait(0)


@pytest.mark.parametrize(
    ("name", "step"),
    [pytest.param(SOURCE, "its planning", marks=pytest.mark.long), (WORKER, "a task, which reads, stamps and writes")],
)
def test_a_python_process_that_is_stopped_is_told_and_borne_and_then_named(
    name: str,
    step: str,
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = new_topic("a")
    settings = settings_for(
        unique_name("job"), broker.bootstrap_servers, tmp_path / "c", topics=(topic,), standstill_timeout_s=8
    )
    with capture_logs() as logs:
        job = Sequencer(settings, spark=spark)
        job.start()
        try:
            publish(broker, topic, 10)
            until(job, lambda: job.processed.events == 10, "ten events")
            stopped = stop(name)
            publish(broker, topic, 10)
            until(job, lambda: bool(words(logs)), "a word")
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
            until(job, lambda: job.processed.events == 20, "it is borne")
            wait_until(lambda: job.stands_still_s == 0, "nothing stands", bound_s=BOUND_S)
            stopped = stop(name)
            publish(broker, topic, 10)
            with pytest.raises(Error, match=r"the job stood still for \d+ s in .*behind batch \d+, " + step) as told:
                assert job.wait(BOUND_S)
        finally:
            job.stop()
    # Spark may have ended a worker that it did not need before the words were made.
    named_in_it = {int(pid) for pid in re.findall(rf"{name} (\d+) is stopped", told.value.what)}
    assert named_in_it
    assert named_in_it <= set(stopped)
    stands, goes_on, *_ = words(logs)
    assert (stands["event"], goes_on["event"]) == (STANDS, GOES_ON)
    assert step in stands["where"]
    assert "is stopped" in stands["reason"]
    assert 0 < stands["gives_up_in_s"] <= 4
    assert max(line.get("stood_s", 0) for line in logs if line["event"] == "batches") >= 4
    wait_until(lambda: not any(is_alive(pid) for pid in stopped), "what was stopped is gone", bound_s=BOUND_S)
    with Sequencer(settings, spark=spark) as again:
        until(again, lambda: again.processed.events >= 10, "what was begun runs again")


@pytest.mark.parametrize(
    "when", ["running", *(pytest.param(when, marks=pytest.mark.long) for when in ("starting", "ending"))]
)
def test_a_java_that_is_stopped_ends_the_process_with_words(
    when: str, broker: LocalBroker, new_topic: Callable[..., str], unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    given = {
        "domain": unique_name("job"),
        "bootstrap_servers": broker.bootstrap_servers,
        "topics": new_topic("a"),
        "checkpoint_dir": tmp_path / "c",
        "standstill_timeout_s": 6,
    }
    with SequencerProcess(**given) as job:
        if when != "starting":
            job.until_ready()
        job.until("its Java", lambda: processes.started_by(job.pid, "deploy.SparkSubmit") is not None)
        java = processes.started_by(job.pid, "deploy.SparkSubmit")
        assert java is not None
        os.kill(java, signal.SIGSTOP)
        if when == "ending":
            os.kill(job.pid, signal.SIGTERM)
        assert job.wait() == 1, "".join(job.lines)
        assert not is_alive(java)
        job.kill()
    said = "".join(job.lines)
    assert job.logged(STANDS), said
    assert "totalorder: the job stood still for" in said, said
    assert f"process {java}" in said, said
    assert "and start again" in said, said
    assert "Traceback" not in said
