"""What a worker asks and says while nothing comes of what it is to read; both ways of reading."""

import time
from collections.abc import Callable, Iterator

import pytest
from cut_world import World, chunks, plan_of, rows_of, whole
from kafka import KafkaAdminClient
from waiting import wait_until

from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, StateError
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.records import Reader
from totalorder.streaming.cut.verifying import present_ids

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]
LONG_S = 1_000.0
"""Longer than a test may take: what ends, ended for another reason."""


@pytest.fixture(params=[PlainReader, FastReader])
def reader(request: pytest.FixtureRequest, broker: LocalBroker) -> Iterator[Reader]:
    made = request.param(consumers.client_settings(broker.bootstrap_servers, {}))
    yield made
    made.close()


@pytest.fixture
def world(broker: LocalBroker) -> World:
    return World(broker.bootstrap_servers)


def ids_of(admin: KafkaAdminClient, topic: str) -> str:
    return str(admin.describe_topics([topic])[0]["topic_id"])


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_while_it_is_read_is_told_long_before_silence_is_over(
    world: World, reader: Reader, new_topic: NewTopic, kafka_admin: KafkaAdminClient, again: bool
) -> None:
    """Made again, it is empty, and its offsets are told to be out of range."""
    topic, other = new_topic("gone"), new_topic("beside")
    world.write("none", [((topic, 0), b"v", 1)] * 3)
    topic_id = ids_of(kafka_admin, topic)
    ranges = [whole(topic, 0, 0, 4, topic_id=topic_id), whole(other, 0, 0, 1, topic_id=ids_of(kafka_admin, other))]
    plan = plan_of(world.servers, ranges, silence_s=LONG_S)
    asked = 0

    def deleting(plan: ReadPlan) -> dict[str, str | None]:
        nonlocal asked
        asked += 1
        if asked == 1:  # the reader has what there is, and waits for one record more of each
            kafka_admin.delete_topics([topic])
            if again:
                kafka_admin.create_topics({topic: {"num_partitions": 1}})
        return dict(present_ids(plan))

    did = "deleted and created again" if again else "deleted"
    with pytest.raises(StateError, match=f"topic {topic} was {did} before all of it was stamped .planned was id"):
        chunks(plan, reader, deleting)
    kept = plan_of(world.servers, [whole(other, 0, 0, 0, topic_id=ranges[1].topic_id)], silence_s=LONG_S)
    assert chunks(kept, reader, present_ids) == []


def test_what_one_answer_says_is_asked_again(world: World, reader: Reader, new_topic: NewTopic) -> None:
    """By turns a broker that lags does not know the topic, and another one does; then the record comes."""
    topic = new_topic("lags")
    plan = plan_of(world.servers, [whole(topic, 0, 0, 1)], silence_s=LONG_S)
    asked = 0

    def by_turns(_: ReadPlan) -> dict[str, str | None]:
        nonlocal asked
        asked += 1
        if asked == 3:
            world.write("none", [((topic, 0), b"v", 1)])
        return {topic: "id" if asked % 2 == 0 or asked > 3 else None}

    assert rows_of(chunks(plan, reader, by_turns)) == world.expected(plan)
    assert asked == 4


def test_brokers_that_do_not_answer_are_silent_as_long_as_the_plan_bears(
    world: World, reader: Reader, new_topic: NewTopic
) -> None:
    topic = new_topic("away")
    plan = plan_of(world.servers, [whole(topic, 0, 0, 1)], silence_s=2.0)
    asked = 0

    def away(_: ReadPlan) -> dict[str, str | None]:
        nonlocal asked
        asked += 1
        raise BrokerUnavailable("no answer")

    with pytest.raises(BrokerUnavailable, match=rf"sent nothing for 2 s of what is missing: {topic}\[0\] 0 to 1"):
        chunks(plan, reader, away)
    assert 1 <= asked <= 4


@pytest.mark.parametrize(("count", "silence_s"), [(1, 0.7), (5, 1.5)])
def test_what_comes_while_it_is_asked_is_taken(
    world: World, reader: Reader, new_topic: NewTopic, count: int, silence_s: float
) -> None:
    """Though the question took longer than silence is borne, or several did that had an answer each."""
    topic, began_s = new_topic("late"), time.monotonic()
    plan = plan_of(world.servers, [whole(topic, 0, 0, count)], silence_s=silence_s)

    def writing(plan: ReadPlan) -> dict[str, str | None]:
        if len(world.records.get((topic, 0), ())) < count:
            world.write("none", [((topic, 0), b"v", 1)])
            if count == 1:
                wait_until(lambda: time.monotonic() > began_s + 3 * silence_s, "more time than is borne")
        return {part.topic: part.topic_id for part in plan.ranges}

    assert rows_of(chunks(plan, reader, writing)) == world.expected(plan)
