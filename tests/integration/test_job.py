"""The job on a real broker and real Spark: one session, one broker, a domain for each test."""

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ConfigResource
from pyspark.sql import SparkSession
from spark_job import by_engine, read_log
from spark_process import uncommit
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable, Error, PreflightFailed, StateError
from totalorder.sequencer.wire.control import Grant, Rejection, Subscribe, encode_request
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES
from totalorder.streaming.checkpoint import LOCK, RECORD
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.spark]
NewTopic = Callable[..., str]
BOUND_S = 150.0


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers, max_request_size=2_000_000) as made:
        yield made


@pytest.fixture
def domain(unique_name: Callable[[str], str]) -> str:
    return unique_name("job")


def subscribe(id_: str, topics: list[str], generation: int = 1) -> bytes:
    return encode_request(
        Subscribe(id=id_, generation=generation, nonce="n", topics=tuple(topics), lease_s=0, stamps_ends={})
    )


def until_processed(sequencer: Sequencer, *, events: int, controls: int = 0) -> None:
    def done() -> bool:
        sequencer.wait(0)
        return sequencer.processed.events >= events and sequencer.processed.controls >= controls

    wait_until(done, f"{events} events and {controls} control records processed", bound_s=BOUND_S)
    assert (sequencer.processed.events, sequencer.processed.controls) == (events, controls)


def record_of(settings: Settings) -> DomainRecord:
    return DomainRecord.decode((Path(settings.checkpoint_dir) / RECORD).read_text(encoding="utf-8"), "here")


def assert_by_engine(settings: Settings) -> None:
    log = read_log(settings)
    answers, stamped = by_engine(settings, record_of(settings), log)
    assert sorted(log.answers, key=lambda answer: answer.g) == answers
    assert {(one.batch, one.partition): one.digest for one in log.stamped} == {
        (one.batch, one.partition): one.digest for one in stamped
    }


def test_stamps_and_grants_are_the_engines(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    a, b = new_topic("a", partitions=2), new_topic("b")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(a, b))
    control = settings.own_topics.control
    with Sequencer(settings, spark=spark) as sequencer:
        requests = [subscribe("s", [a, b]), b"no request", b"", None, b"x" * (MAX_CONTROL_BYTES + 5)]
        for request in requests:
            producer.send(control, key=b"s", value=request, partition=0)
        for number in range(40):
            producer.send(a, value=b"%d" % number, partition=number % 2)
            producer.send(b, key=b"k", value=None if number % 3 else b"", timestamp_ms=number * 10**6)
        producer.flush()
        until_processed(sequencer, events=80, controls=5)
        producer.send(control, key=b"s", value=subscribe("s", [b], generation=2), partition=0)
        for number in range(10):
            producer.send(b, value=b"%d" % number)
        producer.flush()
        until_processed(sequencer, events=90, controls=6)
    log = read_log(settings)
    answers = {answer.offset: answer for answer in log.answers}
    assert record_of(settings).claim == 0  # the claim gets no answer, and no place in the order
    assert [type(answers.get(offset)) for offset in range(7)] == [type(None), Grant, *[Rejection] * 4, Grant]
    assert len(log.events()) == 90
    assert sorted(g for _, _, g in log.events().values()) == sorted(
        set(range(1, 97)) - {answer.g for answer in log.answers}
    )
    assert_by_engine(settings)


def test_settings_of_spark_that_the_first_run_fixed_stay_as_they_were(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("a")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(topic,), shards=2)
    streaming = "org.apache.spark.sql.execution.streaming"
    other = {
        "spark.sql.shuffle.partitions": "5",
        "spark.sql.streaming.stateStore.providerClass": f"{streaming}.state.HDFSBackedStateStoreProvider",
    }
    for given in ({}, other):
        with Sequencer(settings.model_copy(update={"spark": given}), spark=spark) as sequencer:
            for _ in range(2):
                producer.send(topic, value=b"v").get(30)
            until_processed(sequencer, events=2)
    assert [offset for _, _, offset in sorted(read_log(settings).events())] == [0, 1, 2, 3]
    assert_by_engine(settings)


def test_topics_by_key_on_two_shards_with_events_that_name_none(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("all", partitions=3)
    more = {"topics": (topic,), "topic_by": "key", "shards": 2, "stamps_partitions": 4, "min_subscriptions": 2}
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, **more)
    with Sequencer(settings, spark=spark) as sequencer:
        for id_ in ("s", "t"):
            request = subscribe(id_, ["k0", "k1", "größe"])
            producer.send(settings.own_topics.control, key=id_.encode(), value=request, partition=0)
        producer.flush()
        until_processed(sequencer, events=0, controls=2)
        keys = [b"k0", b"k1", "größe".encode(), None, b"", b"\xff", b"x" * 256]
        for number in range(70):
            producer.send(topic, key=keys[number % 7], value=b"v", partition=number % 3)
        producer.flush()
        wait_until(lambda: sequencer.processed.unroutable == 40, "40 events without a topic counted", bound_s=BOUND_S)
        until_processed(sequencer, events=30, controls=2)
    events = read_log(settings).events()
    assert sorted({topic for topic, _, _ in events.values()}) == ["größe", "k0", "k1"]
    assert [n for name, n, _ in sorted(events.values()) if name == "k0"] == list(range(1, 11))


def test_a_restart_of_the_broker_is_borne(spark: SparkSession, domain: str, tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path / "broker") as own:
        with kafka_clients.admin(own.bootstrap_servers) as admin:
            admin.create_topics({"a": {"num_partitions": 1}})
        more = {"topics": (), "topic_pattern": "a|b", "topic_poll_s": 0.2, "broker_timeout_s": 3}
        settings = settings_for(domain, own.bootstrap_servers, tmp_path / "checkpoint", **more)
        with capture_logs() as logs, Sequencer(settings, spark=spark) as sequencer:
            own.kill()
            wait_until(lambda: sequencer.broker_is_away, "the broker missed", bound_s=BOUND_S)
            own.start()
            with kafka_clients.admin(own.bootstrap_servers) as admin:
                admin.create_topics({"b": {"num_partitions": 1}})
            with kafka_clients.producer(own.bootstrap_servers) as producer:
                for topic in ("a", "b"):
                    producer.send(topic, value=b"after").get(60)
            until_processed(sequencer, events=2)
            wait_until(lambda: "the broker answers again" in [line["event"] for line in logs], "its end is told")
        said = [line["event"] for line in logs]
        assert said.index("the broker does not answer") < said.index("the broker answers again")


def test_an_event_without_a_topic_can_stop_the_job(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("all")
    settings = settings_for(
        domain, broker.bootstrap_servers, tmp_path, topics=(topic,), topic_by="header:kind", unroutable="fail"
    )
    producer.send(topic, value=b"v", headers=[("kind", b"k")])
    producer.send(topic, value=b"v").get(30)
    message = f"1 events name no pub/sub topic .*{topic}.0.@1"
    with pytest.raises(Error, match=message), Sequencer(settings, spark=spark) as sequencer:
        assert sequencer.wait(BOUND_S)


def test_aborted_transactions_are_never_counted(
    broker: LocalBroker, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("a")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(topic,))
    publisher = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": domain})
    publisher.init_transactions(60)
    for kept in (True, False, True):
        publisher.begin_transaction()
        for _ in range(3):
            publisher.produce(topic, value=b"v")
        publisher.flush(60)
        publisher.commit_transaction(60) if kept else publisher.abort_transaction(60)
    with Sequencer(settings, spark=spark) as sequencer:
        until_processed(sequencer, events=6)
    offsets = {offset: n for (_, _, offset), (_, n, _) in read_log(settings).events().items()}
    assert offsets == {0: 1, 1: 2, 2: 3, 8: 4, 9: 5, 10: 6}


def test_begins_at_the_latest_offset_while_a_transaction_is_open(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("orders")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(topic,), starting_offsets="latest")
    producer.send(topic, value=b"before").get(10)
    transactional: Producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": topic, "linger.ms": 0}
    )
    transactional.init_transactions(30)
    transactional.begin_transaction()
    transactional.produce(topic, value=b"undecided", partition=0)
    transactional.flush(30)
    producer.send(topic, value=b"behind it").get(10)  # readable no earlier than that one is
    with Sequencer(settings, spark=spark) as sequencer:
        producer.send(settings.own_topics.control, key=b"s", value=subscribe("s", [topic]), partition=0)
        until_processed(sequencer, events=0, controls=1)
        assert [*record_of(settings).starts.values()] == [1]
    with Sequencer(settings, spark=spark) as sequencer:
        transactional.commit_transaction(30)
        until_processed(sequencer, events=2)
    assert sorted(read_log(settings).events()) == [(topic, 0, 1), (topic, 0, 2)]
    assert_by_engine(settings)


def told(logs: Sequence[Mapping[str, Any]], what: str) -> list[str]:
    """The topics of the lines that say so."""
    return [line["topic"] for line in logs if line["event"] == what]


def test_topics_and_partitions_come(
    broker: LocalBroker,
    kafka_admin: KafkaAdminClient,
    producer: KafkaProducer,
    spark: SparkSession,
    new_topic: NewTopic,
    domain: str,
    tmp_path: Path,
) -> None:
    first = new_topic(f"{domain}.e")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topic_pattern=f"{domain}[.](e|s).*")
    with capture_logs() as logs, Sequencer(settings, spark=spark) as sequencer:
        producer.send(first, value=b"1").get(30)
        until_processed(sequencer, events=1)
        refused = new_topic(f"{domain}.e", cleanup_policy="compact")
        second = new_topic(f"{domain}.e", partitions=2)
        for partition in (0, 1):
            producer.send(second, value=b"2", partition=partition).get(30)
        until_processed(sequencer, events=3)
        kafka_admin.create_partitions({first: 2})
        with kafka_clients.producer(broker.bootstrap_servers) as fresh:  # the other does not know the partition yet
            fresh.send(first, value=b"4", partition=1).get(30)
        until_processed(sequencer, events=4)
        assert record_of(settings).event_topics == {first, second}
        resource = ConfigResource("topic", second, {"cleanup.policy": "compact,delete"})
        kafka_admin.alter_configs([resource])
        wait_until(
            lambda: told(logs, "topic compacted") == [second],
            "the topic that became compacted is named",
            bound_s=BOUND_S,
        )
    assert told(logs, "topic refused") == [refused], "once, however often topics are looked at"
    with pytest.raises(PreflightFailed, match=f"topic {second} has cleanup.policy=compact,delete"):
        Sequencer(settings, spark=spark).start()
    kafka_admin.alter_configs([ConfigResource("topic", second, {"cleanup.policy": "delete"})])
    with contextlib.closing(Topics(settings)) as topics:
        wait_until(lambda: topics.policies([second]) == {second: "delete"}, "it is as before")
    with capture_logs() as logs, Sequencer(settings, spark=spark) as sequencer:
        producer.send(first, value=b"5", partition=0).get(30)
        until_processed(sequencer, events=1)
    assert told(logs, "topic refused") == [refused], "and it keeps no job from starting"
    kafka_admin.delete_topics([refused])
    assert_by_engine(settings)


def test_checkpoints_that_are_refused(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("a")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path / "one", topics=(topic,))
    lost = settings.model_copy(update={"checkpoint_dir": str(tmp_path / "two")})
    for number in range(2):
        with Sequencer(settings, spark=spark) as sequencer:
            if not number:
                with pytest.raises(PreflightFailed, match="belongs to another checkpoint"):
                    Sequencer(lost, spark=spark).start()
            producer.send(topic, value=b"%d" % number).get(30)
            until_processed(sequencer, events=1)
    other = settings.model_copy(update={"domain": f"{domain}-other"})
    with pytest.raises(PreflightFailed, match=r"domain is .* and the checkpoint was made with"):
        Sequencer(other, spark=spark).start()
    with pytest.raises(PreflightFailed, match="clocks would start at 1 over existing stamps"):
        Sequencer(lost, spark=spark).start()


def test_a_deleted_topic_of_receipts_is_borne_and_made_again(
    broker: LocalBroker,
    kafka_admin: KafkaAdminClient,
    producer: KafkaProducer,
    spark: SparkSession,
    new_topic: NewTopic,
    domain: str,
    tmp_path: Path,
) -> None:
    topic = new_topic("a")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(topic,))
    receipts = settings.own_topics.receipts
    with Sequencer(settings, spark=spark) as sequencer:
        kafka_admin.delete_topics([receipts])
        wait_until(lambda: receipts not in kafka_admin.list_topics(), "the topic deleted", bound_s=BOUND_S)
        sequencer._look()
        producer.send(topic, value=b"v").get(30)
        until_processed(sequencer, events=1)
    for _ in range(2):  # the second start finds it
        with Sequencer(settings, spark=spark):
            assert receipts in kafka_admin.list_topics()


def _lose_all(state: Path) -> None:
    shutil.rmtree(state)


def _lose_files(state: Path) -> None:
    for path in (state / "0" / "0").rglob("*"):
        if path.is_file():
            path.unlink()


def _cut_newest_change(state: Path) -> None:
    changes = sorted((state / "0" / "0").rglob("[0-9]*.changelog"), key=lambda path: path.stat().st_mtime_ns)
    changes[-1].write_bytes(changes[-1].read_bytes()[:20])


def stamp_three_batches(settings: Settings, spark: SparkSession, producer: KafkaProducer) -> None:
    """One event in each, of the one topic."""
    (topic,) = settings.topics
    with Sequencer(settings, spark=spark) as sequencer:
        for number in range(3):
            producer.send(topic, value=b"v").get(30)
            until_processed(sequencer, events=number + 1)


@pytest.mark.parametrize("damage", [_lose_all, _lose_files, _cut_newest_change])
def test_lost_state_is_refused_and_nothing_more_is_stamped(
    damage: Callable[[Path], None],
    broker: LocalBroker,
    producer: KafkaProducer,
    spark: SparkSession,
    new_topic: NewTopic,
    domain: str,
    tmp_path: Path,
) -> None:
    topic = new_topic("a")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(topic,))
    stamp_three_batches(settings, spark, producer)
    forget_loaded_state(spark)
    damage(tmp_path / "query" / "state")
    producer.send(topic, value=b"more").get(30)
    with pytest.raises(StateError, match="`totalorder recover`"), Sequencer(settings, spark=spark) as sequencer:
        assert sequencer.wait(BOUND_S)
    assert len(read_log(settings).events()) == 3


def test_a_checkpoint_that_is_behind_is_refused_at_every_start_and_left_as_it_is(
    broker: LocalBroker, producer: KafkaProducer, spark: SparkSession, new_topic: NewTopic, domain: str, tmp_path: Path
) -> None:
    topic = new_topic("a")
    settings = settings_for(domain, broker.bootstrap_servers, tmp_path, topics=(topic,))
    stamp_three_batches(settings, spark, producer)
    producer.send(topic, value=b"more").get(30)
    for lose in (roll_back, uncommit, roll_back):
        lose(tmp_path)
        before = checkpoint_files(tmp_path)
        for _ in range(2):
            with pytest.raises(PreflightFailed, match=r"has batch 3 on .*stamps.* ends before it: it is an old copy"):
                Sequencer(settings, spark=spark).start()
        assert checkpoint_files(tmp_path) == before
    assert len(read_log(settings).events()) == 3


def checkpoint_files(checkpoint: Path) -> dict[str, bytes]:
    """All that lies in it but for the lock, which says who looked last."""
    found = {str(path.relative_to(checkpoint)): path for path in checkpoint.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in found.items() if name != LOCK}


def roll_back(checkpoint: Path) -> None:
    """Takes the newest planned batch out of Spark's logs, with all its files."""
    query = checkpoint / "query"
    newest = max(int(path.name) for path in (query / "offsets").iterdir() if path.name.isdecimal())
    for log in (query / "offsets", query / "commits"):
        for path in (log / str(newest), log / f".{newest}.crc"):
            path.unlink(missing_ok=True)


def forget_loaded_state(spark: SparkSession) -> None:
    """What a new process does: Spark keeps the last state of each store open."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


def test_an_absent_broker_is_named_in_time(tmp_path: Path, domain: str) -> None:
    settings = settings_for(domain, "127.0.0.1:1", tmp_path, topics=("a",), broker_timeout_s=1)
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1"):
        Sequencer(settings).start()
