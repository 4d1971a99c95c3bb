"""What a batch opens it closes: a job runs for weeks, at twenty batches a second."""

import os
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from spark_shared import settings_for
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.streaming import processes
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.watchdog import java_process

pytestmark = [pytest.mark.broker, pytest.mark.spark]
WARM, COUNTED = 10, 40
BOUND_S = 150.0


def open_files() -> Counter[str]:
    """Sockets, pipes and files of Java and all processes below it, by what they are."""
    java, found = java_process(), Counter[str]()
    assert java is not None
    for pid in (java, *(one.pid for one in processes.below(java))):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found[os.readlink(entry).partition(":")[0]] += 1
    return found


def run_batches(job: Sequencer, producer: KafkaProducer, topic: str, events: range) -> None:
    """A batch for each event."""
    for number in events:
        producer.send(topic, value=b"%d" % number).get(60)
        wait_until(
            lambda: job.wait(0) or job.processed.events > number,  # noqa: B023
            "its batch",
            bound_s=BOUND_S,
        )


@pytest.mark.long
def test_no_batch_leaves_anything_open(
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = new_topic("a")
    settings = settings_for(unique_name("job"), broker.bootstrap_servers, tmp_path / "c", topics=(topic,))
    with kafka_clients.producer(broker.bootstrap_servers) as producer, Sequencer(settings, spark=spark) as job:
        run_batches(job, producer, topic, range(WARM))
        before = open_files()
        run_batches(job, producer, topic, range(WARM, WARM + COUNTED))
        more = open_files() - before
    assert all(count < COUNTED / 2 for count in more.values()), f"{COUNTED} batches left open: {more}"
