"""A job that runs tells its state now and then, and its domain is recovered from that when stamps have expired."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession
from spark_job import read_log
from spark_process import START_BOUND_S
from spark_shared import settings_for
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings
from totalorder.errors import StateError
from totalorder.sequencer.wire.control import Subscribe, encode_request
from totalorder.streaming import past, snapshots
from totalorder.streaming.recover import recover
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.snapshots import Snapshots

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


def publish(producer: KafkaProducer, topic: str, numbers: range) -> None:
    for number in numbers:
        producer.send(topic, value=b"%d" % number, partition=number % 2)
    producer.flush()


def expire(admin: KafkaAdminClient, settings: Settings) -> None:
    """Retention removes all that there is on stamps and cuts."""
    names = settings.own_topics
    partitions = [TopicPartition(names.stamps, number) for number in range(settings.stamps_partitions)]
    with kafka_clients.consumer(settings.bootstrap_servers) as consumer:
        admin.delete_records(consumer.end_offsets([*partitions, TopicPartition(names.cuts, 0)]))


def test_a_running_job_tells_its_state_and_is_recovered_from_that(
    broker: LocalBroker,
    spark: SparkSession,
    kafka_admin: KafkaAdminClient,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "FIRST_S", 0.0)
    monkeypatch.setattr(snapshots, "EVERY_S", 1.0)
    topic = new_topic("a", partitions=2)
    settings = settings_for(
        unique_name("told"), broker.bootstrap_servers, tmp_path / "state", topics=(topic,), shards=2
    )
    names = settings.own_topics

    def reached() -> int:
        return max((one.g for one in read_log(settings).stamped), default=0)

    def is_told(g: int) -> bool:
        """Whether there is a snapshot behind this position, alone: what was older is gone."""
        stamped = read_log(settings).stamped
        newest = max((one.batch for one in stamped if one.g >= g), default=0)
        return bool(newest) and [mark.batch for mark in past.marks(settings, 9)] == [newest]

    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        with Sequencer(settings, spark=spark), monkeypatch.context() as patched:
            publish(producer, topic, range(10))
            wait_until(lambda: is_told(10), "the state is told", bound_s=START_BOUND_S)
            request = Subscribe(id="r", generation=1, nonce="n", topics=(topic,), lease_s=0, stamps_ends={})
            producer.send(names.control, value=encode_request(request), partition=0)
            publish(producer, topic, range(10, 20))
            wait_until(lambda: is_told(21), "the state is told again", bound_s=START_BOUND_S)
            (mark,) = past.marks(settings, 9)
            assert mark.stamps_ends is not None
            assert (mark.shards, mark.topic_order) == (2, settings.topic_order)
            again = settings.model_copy(update={"checkpoint_dir": str(tmp_path / "again"), "shards": 1})
            expire(kafka_admin, settings)
            report = recover(again, check=True)
            assert (report.snapshot, report.batch, report.g, report.subscriptions) == (mark.batch, mark.batch, 21, 1)
            patched.setattr(Snapshots, "is_due", False)
            publish(producer, topic, range(20, 24))
            wait_until(lambda: reached() == 25, "events behind the snapshot are stamped", bound_s=START_BOUND_S)
        report = recover(again, settle_s=0.2)
        assert (report.snapshot, report.g, report.subscriptions) == (mark.batch, 25, 1)
        assert report.batch > mark.batch
        with Sequencer(again, spark=spark):
            publish(producer, topic, range(24, 30))
            wait_until(lambda: is_told(31), "the recovered job tells its state", bound_s=START_BOUND_S)
        events = read_log(settings).events()
        assert sorted(n for _, n, _ in events.values()) == list(range(21, 31))

        kafka_admin.delete_records({TopicPartition(names.state, 0): -1})  # to the end
        expire(kafka_admin, settings)
        with pytest.raises(StateError, match="has no cuts"):
            recover(again.model_copy(update={"checkpoint_dir": str(tmp_path / "third")}), check=True)
