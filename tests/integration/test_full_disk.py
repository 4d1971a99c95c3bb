"""Disks that are full: under the checkpoint, and under the broker."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from small_disk import Full, NotMounted, small_disk
from spark_job import by_engine, read_log
from spark_shared import settings_for
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable, EnvironmentProblem, Error
from totalorder.streaming.checkpoint import RECORD
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.runner import Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark]
BOUND_S = 150.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small one, with nothing in it."""
    with ExitStack() as stack:
        try:
            mounted = stack.enter_context(small_disk(tmp_path / "disk", megabytes=256))
        except NotMounted as error:
            pytest.skip(f"no disk can be mounted: {error}")
        yield mounted


def publish(servers: str, topics: tuple[str, ...], count: int) -> None:
    with kafka_clients.producer(servers) as producer:
        for number in range(count):
            producer.send(topics[number % len(topics)], value=b"%d" % number)
        producer.flush(60)


def until(job: Sequencer, events: int) -> None:
    wait_until(lambda: job.wait(0) or job.processed.events >= events, f"{events} events", bound_s=BOUND_S)
    assert not job.wait(0)


def until_on_full_disk(full: Full, what: str, condition: Callable[[], bool]) -> None:
    """Waits while the disk stays full, whatever others take away."""

    def met() -> bool:
        full.fill()
        return condition()

    wait_until(met, what, bound_s=BOUND_S)


def check(settings: Settings, events: int) -> None:
    """All that was published is stamped, as the engine alone would have done it."""
    text = (Path(settings.checkpoint_dir) / RECORD).read_text(encoding="utf-8")
    log = read_log(settings)
    assert len(log.events()) == events
    assert {(one.batch, one.partition): one.digest for one in log.stamped} == {
        (one.batch, one.partition): one.digest for one in by_engine(settings, DomainRecord.decode(text, "here"), log)[1]
    }


@pytest.mark.long
def test_a_full_disk_under_the_checkpoint_ends_the_job_and_the_order_goes_on_when_there_is_room(
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    disk: Path,
) -> None:
    servers, topics = broker.bootstrap_servers, (new_topic("a"), new_topic("b"))
    settings = settings_for(unique_name("full"), servers, disk / "checkpoint", topics=topics)

    def check_told(error: Error) -> None:
        assert f"MB under {settings.checkpoint_dir}" in str(error)
        assert "start again" in str(error)

    with Sequencer(settings, spark=spark) as job:
        publish(servers, topics, 10)
        until(job, 10)
        with Full(disk) as full:
            publish(servers, topics, 10)
            with pytest.raises(Error, match="a disk is full") as told:
                until_on_full_disk(full, "the job has ended", lambda: job.wait(0))
            check_told(told.value)
            publish(servers, topics, 10)
            with pytest.raises(Error, match="a disk is full") as told, Sequencer(settings, spark=spark) as again:
                until_on_full_disk(full, "the job has ended again", lambda: again.wait(0))
            check_told(told.value)
    with Sequencer(settings, spark=spark) as job:
        publish(servers, topics, 10)
        wait_until(lambda: len(read_log(settings).events()) == 40, "all is stamped", bound_s=BOUND_S)
        assert not job.wait(0)
    check(settings, 40)


@pytest.mark.long
def test_a_full_disk_under_the_broker_is_an_outage_until_there_is_room(
    spark: SparkSession, unique_name: Callable[[str], str], disk: Path, tmp_path: Path
) -> None:
    with LocalBroker(data_dir=disk / "broker") as broker:
        servers = broker.bootstrap_servers
        with kafka_clients.admin(servers) as admin:
            admin.create_topics({"a": {"num_partitions": 2}})
            admin.wait_for_topics(["a"])
        settings = settings_for(unique_name("full"), servers, tmp_path / "checkpoint", topics=("a",))
        with Sequencer(settings, spark=spark) as job, kafka_clients.producer(servers) as producer:
            producer.send("a", value=b"before").get(60)
            until(job, 1)
            with Full(disk) as full:
                late = producer.send("a", value=b"on a full disk")
                until_on_full_disk(full, "Kafka has ended itself", lambda: not broker.running)
                assert f"The disk under {broker.data_dir} is full" in broker.log_tail()
                with pytest.raises((BrokerUnavailable, EnvironmentProblem), match=r"broker (is full|cannot)"):
                    broker.start()
            broker.start()
            late.get(60)
            producer.send("a", value=b"behind").get(60)
            until(job, 3)
        check(settings, 3)
