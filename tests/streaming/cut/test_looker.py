"""The looker on a real broker: its looks are what kafka-python's own client tells, and faults of brokers are borne."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
from cut_world import CODECS, Place, World
from frozen import frozen
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import NewPartitions, OffsetSpec
from secure_broker import PASSWORD, USER, SecureBroker
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, Error, SettingsError, StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.ends import Look
from totalorder.streaming.cut.looker import Looker
from totalorder.streaming.cut.questions import Questions, TopicGone

pytestmark = pytest.mark.broker
PATIENCE_MS = 300


@pytest.fixture
def own() -> Iterator[LocalBroker]:
    """A broker that a test may freeze and restart."""
    with LocalBroker() as broker:
        yield broker


@pytest.fixture
def questions(broker: LocalBroker) -> Iterator[Questions]:
    asked = Questions(broker.bootstrap_servers, {}, timeout_s=30)
    yield asked
    asked.close()


@contextmanager
def looking(
    servers: str, sources: list[Source], kafka: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Any]:
    """A looker that watches these, with its looks as `looks`."""
    looks: list[Look] = []
    options: dict[str, Any] = {"on_look": looks.append, "look_patience_ms": PATIENCE_MS} | settings
    looker = Looker(servers, kafka or {}, **options)
    looker.watch(sources)
    looker.start()
    try:
        yield looker, looks
    finally:
        begun_s = time.monotonic()
        looker.stop()
        assert time.monotonic() - begun_s < 5
        count = len(looks)
        assert not looker._thread.is_alive()
        assert len(looks) == count


def sources_of(questions: Questions, *names: str) -> list[Source]:
    topics = questions.topics(names)
    return [Source(name, topics[name].topic_id, part) for name in names for part in range(len(topics[name].leaders))]


def publish(servers: str, counts: Mapping[tuple[str, int], int]) -> None:
    with kafka_clients.producer(servers) as producer:
        for (topic, partition), count in counts.items():
            for _ in range(count):
                producer.send(topic, b"x", partition=partition)
        producer.flush(timeout=60)


def told_by_kafka_python(admin: KafkaAdminClient, sources: list[Source]) -> list[int]:
    wanted = {TopicPartition(source.topic, source.partition): OffsetSpec.LATEST for source in sources}
    told = admin.list_partition_offsets(wanted, "read_committed")
    return [told[TopicPartition(source.topic, source.partition)].offset for source in sources]


def ends_become(looker: Looker, ends: list[int]) -> None:
    def is_so() -> bool:
        look = looker.newest()
        return look is not None and not look.silent and look.ends.tolist() == ends

    wait_until(is_so, f"a look with ends {ends[:20]}")


# --- ends -------------------------------------------------------------------------------------------------------------


def test_looks_are_what_kafka_pythons_admin_tells(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, questions: Questions, new_topic: Callable[..., str]
) -> None:
    chance = random.Random(17)
    sources = sources_of(questions, *(new_topic("look", partitions=count) for count in (1, 3, 17)))
    chance.shuffle(sources)
    with looking(broker.bootstrap_servers, sources) as (looker, looks):
        for _ in range(3):
            counts = {(source.topic, source.partition): chance.randrange(9) for source in sources}
            publish(broker.bootstrap_servers, counts)
            ends = told_by_kafka_python(kafka_admin, sources)
            ends_become(looker, ends)
            assert questions.ends([(source.topic, source.partition) for source in sources]).tolist() == ends
        for before, after in pairwise(looks):
            assert before.began_s <= before.ended_s <= after.began_s
            assert (before.ends <= after.ends).all()
            assert (before.ends is after.ends) == (before.ends.tolist() == after.ends.tolist())
    assert looker.figures().looks == len(looks)


def test_what_is_published_after_an_acknowledgement_and_a_look_is_not_in_the_looks_before(
    broker: LocalBroker, questions: Questions, new_topic: Callable[..., str]
) -> None:
    """The guarantee of looks: a child that comes a look after its parent's acknowledgement is in none before it."""
    parents, children = sources = sources_of(questions, new_topic("parents"), new_topic("children"))
    with (
        looking(broker.bootstrap_servers, sources) as (looker, looks),
        kafka_clients.producer(broker.bootstrap_servers) as producer,
    ):
        ends_become(looker, [0, 0])
        for _ in range(20):
            producer.send(parents.topic, b"x").get(timeout=30)
            begun = len(looks) + 2  # the look that begins after the acknowledgement, at the latest
            wait_until(lambda: len(looks) >= begun, "two looks more")  # noqa: B023
            producer.send(children.topic, b"x").get(timeout=30)
        ends_become(looker, [20, 20])
    for look in looks:
        assert look.ends[0] >= look.ends[1]
        assert look.ends[1] == look.ends[0] or look.ends[0] == look.ends[1] + 1


def test_an_open_transaction_holds_the_end(
    broker: LocalBroker, questions: Questions, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("open")
    servers = broker.bootstrap_servers
    publish(servers, {(topic, 0): 2})
    with (
        looking(servers, sources_of(questions, topic)) as (looker, looks),
        kafka_clients.producer(servers, transactional_id=topic) as producer,
    ):
        ends_become(looker, [2])
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"x").get(timeout=30)
        publish(servers, {(topic, 0): 3})
        seen = len(looks)
        wait_until(lambda: len(looks) > seen + 5, "more looks")
        assert looks[-1].ends.tolist() == [2]
        assert questions.ends([(topic, 0)]).tolist() == [2]
        producer.commit_transaction()
        ends_become(looker, [7])


def test_a_thousand_partitions(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, questions: Questions, new_topic: Callable[..., str]
) -> None:
    sources = sources_of(questions, new_topic("wide", partitions=1000))
    with looking(broker.bootstrap_servers, sources) as (looker, _):
        chance = random.Random(1)
        publish(broker.bootstrap_servers, {(sources[0].topic, chance.randrange(1000)): 3 for _ in range(50)})
        ends = told_by_kafka_python(kafka_admin, sources)
        assert sum(ends) > 100
        ends_become(looker, ends)
        assert questions.ends([(source.topic, source.partition) for source in sources]).tolist() == ends


# --- what is watched --------------------------------------------------------------------------------------------------


def test_partitions_that_grow_and_sources_that_change(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, questions: Questions, new_topic: Callable[..., str]
) -> None:
    topic, other = new_topic("grows"), new_topic("other")
    publish(broker.bootstrap_servers, {(topic, 0): 3})
    with looking(broker.bootstrap_servers, sources_of(questions, topic)) as (looker, looks):
        ends_become(looker, [3])
        kafka_admin.create_partitions({topic: NewPartitions(total_count=3)})
        wait_until(lambda: len(questions.topics([topic])[topic].leaders) == 3, "three partitions")
        looker.watch(sources_of(questions, topic))
        publish(broker.bootstrap_servers, {(topic, 2): 5})
        ends_become(looker, [3, 0, 5])
        looker.watch(sources_of(questions, other, topic))
        ends_become(looker, [0, 3, 0, 5])
        looker.watch([])
        looker.watch(sources_of(questions, other))
        ends_become(looker, [0])
        assert all(len(look.ends) == len(look.sources) for look in looks)
        assert {len(look.sources) for look in looks} == {1, 3, 4}


def test_a_deleted_topic_is_silent_and_a_recreated_one_another_source(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, questions: Questions, new_topic: Callable[..., str]
) -> None:
    topic, other = new_topic("leaves"), new_topic("stays")
    publish(broker.bootstrap_servers, {(topic, 0): 3})
    old = sources_of(questions, topic, other)
    with looking(broker.bootstrap_servers, old) as (looker, looks):
        ends_become(looker, [3, 0])
        kafka_admin.delete_topics([topic])
        wait_until(lambda: looks[-1].silent == {0}, "the deleted topic is silent")
        assert looks[-1].ends.tolist() == [3, 0]
        assert topic not in questions.topics([topic, other])
        with pytest.raises(TopicGone, match=topic):
            questions.ends([(topic, 0)])
        kafka_admin.create_topics({topic: {"num_partitions": 1}})
        kafka_admin.wait_for_topics([topic])
        publish(broker.bootstrap_servers, {(topic, 0): 1, (other, 0): 2})
        wait_until(lambda: looks[-1].ends.tolist() == [3, 2], "the other one's end")
        assert looks[-1].silent == {0}
        new = sources_of(questions, topic, other)
        assert new[0].topic_id != old[0].topic_id
        looker.watch(new)
        ends_become(looker, [1, 2])


def test_an_end_that_falls_is_an_error(
    broker: LocalBroker, questions: Questions, new_topic: Callable[..., str]
) -> None:
    """Offset 7 was seen by the job that ran before."""
    topic = new_topic("cut-short")
    publish(broker.bootstrap_servers, {(topic, 0): 3})
    with looking(broker.bootstrap_servers, []) as (looker, looks):
        looker.watch(sources_of(questions, topic), [3])
        ends_become(looker, [3])
        looker.watch(sources_of(questions, topic), [7])
        wait_until(lambda: looker.failure is not None, "an error")
        with pytest.raises(StateError, match=rf"partition 0 of topic {topic} .* offset 7 has been cut off"):
            looker.newest()
        assert {look.ends[0] for look in looks} <= {3, 7}


def test_an_error_of_who_takes_the_looks_ends_them(
    broker: LocalBroker, questions: Questions, new_topic: Callable[..., str]
) -> None:
    def fails(_: Look) -> None:
        raise ZeroDivisionError("on look")

    with looking(broker.bootstrap_servers, sources_of(questions, new_topic()), on_look=fails) as (looker, _):
        wait_until(lambda: looker.failure is not None, "an error")
        with pytest.raises(Error, match="ZeroDivisionError: on look"):
            looker.newest()


# --- questions --------------------------------------------------------------------------------------------------------


def test_topics_are_told_as_kafka_python_tells_them(
    kafka_admin: KafkaAdminClient, questions: Questions, new_topic: Callable[..., str]
) -> None:
    names = [new_topic("asked", partitions=count) for count in (1, 4)]
    described = {topic["name"]: str(topic["topic_id"]) for topic in kafka_admin.describe_topics(names)}
    for _ in range(2):
        topics = questions.topics([*names, "is-not-there"])
        assert {name: topic.topic_id for name, topic in topics.items()} == described
        assert [len(topics[name].leaders) for name in names] == [1, 4]


def test_offsets_for_times(broker: LocalBroker, questions: Questions, new_topic: Callable[..., str]) -> None:
    topic = new_topic("times", partitions=2)
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        for time_ms in (1000, 2000, 3000):
            producer.send(topic, b"x", partition=1, timestamp_ms=time_ms).get(timeout=30)
    asked = [(topic, 1), (topic, 0)]
    assert questions.earliest(asked).tolist() == [0, 0]
    assert questions.offsets_at(asked, 1000).tolist() == [0, -1]
    assert questions.offsets_at(asked, 1001).tolist() == [1, -1]
    assert questions.offsets_at(asked, 3000).tolist() == [2, -1]
    assert questions.offsets_at(asked, 3001).tolist() == [-1, -1]


def test_offsets_for_times_are_those_of_a_plain_search_whatever_times_a_log_has(
    broker: LocalBroker, questions: Questions, new_topic: Callable[..., str]
) -> None:
    """Backlogs are divided by them. Times rise, fall, jump and stand still, in several segments and by every codec."""
    chance, now_ms = random.Random(2), int(time.time() * 1000)
    any_time = {"retention_ms": "-1", "message_timestamp_after_max_ms": str(2**62)}
    topic = new_topic("times", segment_bytes=str(1 << 20), **any_time)
    world, time_ms = World(broker.bootstrap_servers), now_ms - 10**7
    steps = [(0, 20), (-20, 0), (0, 0), (-5_000, 5_000), (10**6, 10**6), (-(10**6), 10**6)]
    for number in range(120):
        rows: list[tuple[Place, bytes, int]] = []
        least, most = steps[number % len(steps)]
        for _ in range(chance.choice([1, 5, 30])):
            time_ms = chance.randint(1, 9) if number == 60 else max(1, time_ms + chance.randint(least, most))
            rows.append(((topic, 0), chance.randbytes(4_000), time_ms))
        world.write(chance.choice(CODECS), rows)
    log = world.records[topic, 0]
    assert sum(len(rows) for rows in world.records.values()) * 4_000 > 4 << 20, "several segments"
    times = sorted({at_ms + off_ms for _, at_ms, _ in log for off_ms in (-1, 0, 1)} - {-1})
    for asked_ms in [*chance.sample(times, 300), 0, times[-1], times[-1] + 1]:
        expected = next((offset for offset, at_ms, _ in log if at_ms >= asked_ms), -1)
        assert questions.offsets_at([(topic, 0)], asked_ms).tolist() == [expected], asked_ms


def test_questions_to_nobody_end() -> None:
    asked = Questions("127.0.0.1:1", {}, timeout_s=0.3)
    begun_s = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="could not be reached"):
        asked.topics(["orders"])
    assert time.monotonic() - begun_s < 20
    asked.close()


# --- brokers that are away --------------------------------------------------------------------------------------------


def with_topic(own: LocalBroker, partitions: int = 2) -> list[Source]:
    with kafka_clients.admin(own.bootstrap_servers) as admin:
        admin.create_topics({"orders": {"num_partitions": partitions}})
        admin.wait_for_topics(["orders"])
    asked = Questions(own.bootstrap_servers, {}, timeout_s=30)
    try:
        return sources_of(asked, "orders")
    finally:
        asked.close()


def test_a_frozen_broker_holds_looks_back_for_a_while_and_is_silent_then(own: LocalBroker) -> None:
    sources = with_topic(own)
    with looking(own.bootstrap_servers, sources) as (looker, looks):
        publish(own.bootstrap_servers, {("orders", 0): 3})
        ends_become(looker, [3, 0])
        with frozen(own):
            wait_until(lambda: looks[-1].silent == {0, 1}, "a look without the broker")
            assert looks[-1].ends.tolist() == [3, 0]
            first = next(look for look in looks if look.silent)
            whole = looks[looks.index(first) - 1]
            assert first.ended_s - whole.ended_s >= PATIENCE_MS / 1000
            assert looker.figures().longest_ms >= PATIENCE_MS * 0.9
            seen = len(looks)
            wait_until(lambda: len(looks) > seen + 3, "more looks without it")
        publish(own.bootstrap_servers, {("orders", 1): 1})
        ends_become(looker, [3, 1])
        assert 0 < looker.figures().silent_looks < looker.figures().looks
        assert looker.figures().silent_places == 0


def test_a_stop_while_the_broker_is_frozen_is_quick(own: LocalBroker) -> None:
    sources = with_topic(own)
    with looking(own.bootstrap_servers, sources, look_patience_ms=60_000) as (looker, looks):
        ends_become(looker, [0, 0])
        with frozen(own):
            seen = len(looks) + 1  # one may have been under way
            wait_until(lambda: looker.figures().longest_period_ms > 500, "a look that waits")
            assert len(looks) <= seen
            begun_s = time.monotonic()
            looker.stop()
            assert time.monotonic() - begun_s < 5


@pytest.mark.parametrize("end", [LocalBroker.stop, LocalBroker.kill])
def test_a_restarted_broker_is_looked_at_again(own: LocalBroker, end: Callable[[LocalBroker], None]) -> None:
    sources = with_topic(own)
    asked = Questions(own.bootstrap_servers, {}, timeout_s=30)
    with looking(own.bootstrap_servers, sources) as (looker, looks):
        publish(own.bootstrap_servers, {("orders", 0): 3})
        ends_become(looker, [3, 0])
        assert asked.ends([("orders", 0)]).tolist() == [3]
        end(own)
        wait_until(lambda: looks[-1].silent == {0, 1}, "a look without the broker")
        own.start()
        assert asked.ends([("orders", 0), ("orders", 1)]).tolist() == [3, 0]
        publish(own.bootstrap_servers, {("orders", 1): 2})
        ends_become(looker, [3, 2])
    asked.close()


def test_a_broker_that_comes_later_is_waited_for(own: LocalBroker) -> None:
    sources = with_topic(own)
    own.stop()
    with looking(own.bootstrap_servers, sources) as (looker, looks):
        wait_until(lambda: bool(looks), "a look without the broker")
        assert looks[0].ends.tolist() == [-1, -1]
        assert looks[0].silent == {0, 1}
        own.start()
        ends_become(looker, [0, 0])


# --- logins -----------------------------------------------------------------------------------------------------------


def login(password: str, protocol: str = "SASL_SSL") -> dict[str, str]:
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    line = f"{module} required username='{USER}' password='{quoted}';"
    return {"security.protocol": protocol, "sasl.mechanism": "PLAIN", "sasl.jaas.config": line}


def test_a_login_that_holds_for_a_while_is_renewed() -> None:
    lifetime_s = 5.0
    with SecureBroker(settings={"connections.max.reauth.ms": str(round(1000 * lifetime_s))}) as secure:
        sources = with_topic(secure)
        kafka = login(PASSWORD, "SASL_PLAINTEXT")
        with looking(secure.login, sources, kafka, look_patience_ms=60_000) as (looker, looks):
            ends_become(looker, [0, 0])
            first = next(iter(looker._wires.values()))
            assert first.expires_s < time.monotonic() + lifetime_s
            wait_until(lambda: looks[-1].ended_s > looks[0].ended_s + 2 * lifetime_s, "looks after the login's end")
            assert looker._wires[first.address] is not first
            assert not any(look.silent for look in looks)


def test_logins_and_tls() -> None:
    with SecureBroker() as secure:
        sources = with_topic(secure)
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secure.certificate)}
        with looking(secure.both, sources, login(PASSWORD) | trust) as (looker, looks):
            publish(secure.bootstrap_servers, {("orders", 1): 2})
            ends_become(looker, [0, 2])
            with frozen(secure):
                wait_until(lambda: looks[-1].silent == {0, 1}, "a look without the broker")
            publish(secure.bootstrap_servers, {("orders", 0): 1})
            ends_become(looker, [1, 2])
        for settings, said in ((login("wrong") | trust, "refused the login"), (login(PASSWORD), "TLS with")):
            with looking(secure.both, sources, settings) as (looker, looks):
                wait_until(lambda: looker.failure is not None, "an error")
                with pytest.raises(SettingsError, match=said):
                    looker.newest()
                assert all(look.silent == {0, 1} for look in looks)
