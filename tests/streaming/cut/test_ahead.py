"""Small batches read in the driver's process on a real broker: the same rows as a worker reads, or the same error."""

from collections.abc import Callable, Iterator

import pytest
from cut_world import World, chunks, plan_of, rows_of, whole
from kafka import KafkaAdminClient

from totalorder.broker import LocalBroker
from totalorder.errors import StateError
from totalorder.streaming.cut.ahead import MAX_CONTROLS, MAX_EVENTS, Ahead, is_small
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.verifying import present_ids

NewTopic = Callable[..., str]


def test_what_is_small() -> None:
    def small(events: int, controls: int) -> bool:
        ranges = [whole("a", 0, 7, 7 + events), whole("d.control", 0, 2, 2 + controls)]
        return is_small(plan_of("x", ranges, control="d.control"))

    assert small(MAX_EVENTS - MAX_CONTROLS, MAX_CONTROLS)
    assert small(MAX_EVENTS, 0)
    assert not small(MAX_EVENTS, 1)
    assert not small(0, MAX_CONTROLS + 1)


def test_what_is_not_small_is_left_to_workers() -> None:
    ahead, plan = Ahead(), plan_of("127.0.0.1:1", [whole("a", 0, 0, MAX_EVENTS + 1)])
    ahead.begin(plan)
    assert ahead.chunks(plan) is None
    ahead.close()


@pytest.fixture
def ahead() -> Iterator[Ahead]:
    made = Ahead()
    yield made
    made.close()


@pytest.mark.broker
class TestOnABroker:
    def plan(self, broker: LocalBroker, admin: KafkaAdminClient, topic: str, begin: int, end: int) -> ReadPlan:
        (found,) = admin.describe_topics([topic])
        return plan_of(broker.bootstrap_servers, [whole(topic, 0, begin, end, topic_id=str(found["topic_id"]))])

    def test_each_plan_once_and_as_workers_read_it(
        self, broker: LocalBroker, kafka_admin: KafkaAdminClient, new_topic: NewTopic, ahead: Ahead
    ) -> None:
        topic = new_topic("a")
        world = World(broker.bootstrap_servers)
        world.write("zstd", [((topic, 0), b"v" * number, 1_000 + number) for number in range(40)])
        for begin, end in ((0, 7), (7, 8), (8, 40)):
            plan = self.plan(broker, kafka_admin, topic, begin, end)
            ahead.begin(plan)
            found = ahead.chunks(plan)
            assert found is not None
            assert rows_of(found) == world.expected(plan) == rows_of(chunks(plan, verify=present_ids))
            assert ahead.chunks(plan) is None, "it is handed out once"

    def test_another_plan_than_the_last_is_left_to_workers(
        self, broker: LocalBroker, kafka_admin: KafkaAdminClient, new_topic: NewTopic, ahead: Ahead
    ) -> None:
        topic = new_topic("a")
        World(broker.bootstrap_servers).write("none", [((topic, 0), b"v", 1_000)] * 5)
        ahead.begin(self.plan(broker, kafka_admin, topic, 0, 3))
        assert ahead.chunks(self.plan(broker, kafka_admin, topic, 0, 4)) is None
        found = ahead.chunks(self.plan(broker, kafka_admin, topic, 0, 3))
        assert found is not None
        assert len(rows_of(found)) == 3

    def test_a_topic_that_was_made_again_is_told(
        self, broker: LocalBroker, kafka_admin: KafkaAdminClient, new_topic: NewTopic, ahead: Ahead
    ) -> None:
        topic, other = new_topic("a"), new_topic("b")
        world = World(broker.bootstrap_servers)
        world.write("none", [((topic, 0), b"v", 1_000)] * 5)
        wrong = plan_of(broker.bootstrap_servers, [whole(topic, 0, 0, 5, topic_id="former")])
        ahead.begin(wrong)
        with pytest.raises(StateError, match=f"topic {topic} was deleted and created again"):
            ahead.chunks(wrong)
        world.write("none", [((other, 0), b"v", 1_000)] * 2)
        plan = self.plan(broker, kafka_admin, other, 0, 2)
        ahead.begin(plan)
        found = ahead.chunks(plan)
        assert found is not None
        assert len(rows_of(found)) == 2
