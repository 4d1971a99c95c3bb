"""Retention that is quicker than the job: it stops, or what is lost gets a place in the order that everybody sees."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource
from pyspark.sql import SparkSession
from spark_job import read_cuts, read_log
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings
from totalorder.errors import Error, EventsLost, PreflightFailed, StateError
from totalorder.sequencer.wire.control import Skipped
from totalorder.streaming.checkpoint import read_checkpoint
from totalorder.streaming.recover import recover
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.store import LocalStore
from totalorder.subscriber import Event, Lost, Subscriber

pytestmark = [pytest.mark.broker, pytest.mark.spark]
NewTopic = Callable[..., str]
BOUND_S = 150.0
TRIES = 8


@pytest.fixture
def domain(unique_name: Callable[[str], str]) -> str:
    return unique_name("losses")


class Log:
    """One event topic of one partition, and a short one beside it."""

    def __init__(self, servers: str, admin: KafkaAdminClient, a: str, b: str) -> None:
        self.servers, self.admin, self.a, self.b = servers, admin, a, b
        self.ends = {a: 0, b: 0}

    def publish(self, topic: str, count: int) -> None:
        """Each value is its offset."""
        with kafka_clients.producer(self.servers) as producer:
            for _ in range(count):
                producer.send(topic, value=b"%d" % self.ends[topic], partition=0)
                self.ends[topic] += 1
            producer.flush(30)

    def remove(self, until: int) -> None:
        """As retention does it."""
        self.admin.delete_records({TopicPartition(self.a, 0): until})

    def place(self, event: Event | Lost) -> tuple[str, object]:
        """Whatever was handed out, in few words."""
        if isinstance(event, Lost):
            return event.kafka_topic, (event.first_offset, event.last_offset)
        assert event.value == b"%d" % event.offset
        return event.kafka_topic, event.offset


@pytest.fixture
def log(broker: LocalBroker, kafka_admin: KafkaAdminClient, new_topic: NewTopic) -> Log:
    return Log(broker.bootstrap_servers, kafka_admin, new_topic("a"), new_topic("b"))


def told(settings: Settings) -> list[Skipped]:
    return [answer for answer in read_log(settings).answers if isinstance(answer, Skipped)]


def until_stamped(sequencer: Sequencer, log: Log) -> None:
    """All but what was told as lost."""

    def done() -> bool:
        sequencer.wait(0)
        places = {(topic, offset) for topic, _, offset in read_log(sequencer.settings).events()}
        lost = {(answer.topic, at) for answer in told(sequencer.settings) for at in range(*answer.lost.get(0, (0, 0)))}
        assert not places & lost
        return all({(topic, at) for at in range(end)} <= places | lost for topic, end in log.ends.items())

    wait_until(done, "all that is not lost is stamped", bound_s=BOUND_S)


def received(settings: Settings, log: Log, id_: str, *topics: str) -> list[tuple[str, object]]:
    """All that a subscriber is owed, through the ends of the topics."""
    found: list[tuple[str, object]] = []
    with Subscriber[Event | Lost](
        topics, id=id_, domain=settings.domain, bootstrap_servers=log.servers, on_lost="skip"
    ) as subscriber:
        while {(topic, log.ends[topic] - 1) for topic in topics} - set(found):
            event = subscriber.poll(30)
            assert event is not None, f"only {found} came"
            subscriber.ack(event)
            found.append(log.place(event))
    return found


def judge(settings: Settings) -> None:
    """From stamps and control alone, without any event, the pure engine makes what is on stamps; cuts have no hole."""
    elsewhere = settings.model_copy(update={"checkpoint_dir": f"{settings.checkpoint_dir}-elsewhere"})
    assert recover(elsewhere, check=True).batch == max(read_log(settings).batches())
    cuts = read_cuts(settings)
    assert sorted(cuts) == list(range(1, len(cuts) + 1))
    for one, other in pairwise(cuts[number] for number in sorted(cuts)):
        ends = dict(zip(one.sources, one.ends.tolist(), strict=True))
        begins = dict(zip(other.sources, other.begins.tolist(), strict=True))
        assert {source: begins[source] for source in ends} == ends


def subscribe(settings: Settings, log: Log, id_: str, *topics: str) -> None:
    Subscriber(topics, id=id_, domain=settings.domain, bootstrap_servers=log.servers).close()


def test_what_is_gone_when_the_job_starts_stops_it_or_stands_in_the_order(
    log: Log, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    strict = settings_for(domain, log.servers, tmp_path / "first", topics=(log.a, log.b))
    with Sequencer(strict, spark=spark) as sequencer:
        log.publish(log.a, 3)
        until_stamped(sequencer, log)
        for id_, topics in (("s", (log.a, log.b)), ("r", (log.a,)), ("b", (log.b,)), ("stops", (log.a,))):
            subscribe(strict, log, id_, *topics)
    log.publish(log.a, 7)
    log.publish(log.b, 2)
    log.remove(8)
    with pytest.raises(PreflightFailed, match=r"offsets 3 to 7 were removed before.*on_data_loss = \"record\""):
        Sequencer(strict, spark=spark).start()
    settings = strict.model_copy(update={"on_data_loss": "record"})
    with capture_logs() as logs, Sequencer(settings, spark=spark) as sequencer:
        until_stamped(sequencer, log)
        one, other = received(settings, log, "s", log.a, log.b), received(settings, log, "r", log.a)
        assert received(settings, log, "b", log.b) == [(log.b, 0), (log.b, 1)]
        with (
            pytest.raises(EventsLost, match=rf"{log.a}\[0\]@3 to 7 were removed from Kafka before they were stamped"),
            Subscriber([log.a], id="stops", domain=domain, bootstrap_servers=log.servers) as stops,
        ):
            stops.poll(30)
    assert other == [(log.a, (3, 7)), (log.a, 8), (log.a, 9)]
    assert [each for each in one if each[0] == log.a] == other
    assert sorted(one, key=str) == sorted([*other, (log.b, 0), (log.b, 1)], key=str)
    (answer,) = told(settings)
    assert dict(answer.lost) == {0: (3, 8)}
    said = [(line["event"], line["log_level"]) for line in logs if line["event"] in ("events lost", "loss recorded")]
    assert said == [("events lost", "error"), ("loss recorded", "error")]
    judge(settings)
    anew = settings.model_copy(update={"checkpoint_dir": str(tmp_path / "second")})
    assert recover(anew, settle_s=0.5).batch == max(read_log(settings).batches())
    log.publish(log.a, 2)
    with Sequencer(anew, spark=spark) as sequencer:
        until_stamped(sequencer, log)
        assert received(anew, log, "r", log.a) == [(log.a, 10), (log.a, 11)]
    assert told(anew) == [answer]
    judge(anew)


def test_what_is_removed_while_the_job_runs_stands_in_the_order(
    log: Log, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    """Batches are seconds apart: what comes in between is planned at the next one, and is gone when it is read."""
    settings = settings_for(
        domain, log.servers, tmp_path, topics=(log.a, log.b), on_data_loss="record", trigger_ms=2_000
    )
    with Sequencer(settings, spark=spark) as sequencer:
        subscribe(settings, log, "s", log.a, log.b)
        subscribe(settings, log, "r", log.a, log.b)
        for _ in range(TRIES):
            log.publish(log.a, 6)
            log.remove(log.ends[log.a] - 2)
            log.publish(log.b, 1)
            until_stamped(sequencer, log)
            if any(answer.lost for answer in told(settings)):
                break
        (lost,) = [answer.lost[0] for answer in told(settings) if answer.lost]
        one, other = (received(settings, log, id_, log.a, log.b) for id_ in ("s", "r"))
    assert one == other
    assert (log.a, (lost[0], lost[1] - 1)) in one
    judge(settings)


def test_without_leave_a_loss_while_the_job_runs_ends_it(
    log: Log, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    settings = settings_for(domain, log.servers, tmp_path, topics=(log.a,), trigger_ms=2_000)

    def lose() -> None:
        with Sequencer(settings, spark=spark) as sequencer:
            for _ in range(TRIES):
                log.publish(log.a, 6)
                log.remove(log.ends[log.a])
                wait_until(lambda: sequencer.wait(0) or is_stamped(settings, log), "it goes on or ends", bound_s=60)

    with pytest.raises(StateError, match=r"were removed from Kafka before they were stamped.*on_data_loss"):
        lose()
    assert told(settings) == []


def is_stamped(settings: Settings, log: Log) -> bool:
    """Whether the last event is."""
    return (log.a, 0, log.ends[log.a] - 1) in read_log(settings).events()


@pytest.mark.long
def test_a_batch_that_is_planned_anew_over_a_state_that_was_committed_comes_out_as_if_it_never_was(
    log: Log, kafka_admin: KafkaAdminClient, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    """Spark keeps the state of a task that could write nothing: the next attempt, of another content, begins before it.

    Later processes load what the last attempt left.
    """
    settings = settings_for(
        domain, log.servers, tmp_path / "first", topics=(log.a, log.b), shards=1, on_data_loss="record"
    )
    with Sequencer(settings, spark=spark) as sequencer:
        log.publish(log.a, 3)
        until_stamped(sequencer, log)
    before = read_log(settings)
    limit_stamps(kafka_admin, settings, 1)
    with Sequencer(settings, spark=spark) as sequencer:
        log.publish(log.a, 7)
        log.publish(log.b, 2)
        with pytest.raises(Error, match=r"RecordTooLarge|larger than"):
            sequencer.wait(BOUND_S)
    facts = read_checkpoint(LocalStore(tmp_path / "first"), "here")
    assert facts.planned == facts.committed + 1
    states = [path.name.partition(".")[0] for path in (tmp_path / "first").glob("query/state/0/0/*.changelog")]
    assert max(map(int, states)) == facts.planned + 1, "the state of the batch that was not written is committed"
    assert read_log(settings).batches().keys() == before.batches().keys()
    limit_stamps(kafka_admin, settings, 10**6)
    log.remove(6)
    for count in (2, 3):
        log.publish(log.a, count)
        with Sequencer(settings, spark=spark) as sequencer:
            until_stamped(sequencer, log)
    assert [(answer.topic, answer.lost) for answer in told(settings)] == [(log.a, {0: (3, 6)})]
    assert in_order(settings, log.a) == [0, 1, 2, 6, 7, 8, 9, 10, 11, 12, 13, 14]
    assert in_order(settings, log.b) == [0, 1]
    judge(settings)


def limit_stamps(admin: KafkaAdminClient, settings: Settings, max_bytes: int) -> None:
    configs = {"max.message.bytes": str(max_bytes)}
    admin.alter_configs([ConfigResource("topic", settings.own_topics.stamps, configs)])


def in_order(settings: Settings, topic: str) -> list[int]:
    """The offsets that are stamped, by g."""
    events = read_log(settings).events().items()
    return [offset for (name, _, offset), _ in sorted(events, key=lambda each: each[1][2]) if name == topic]
