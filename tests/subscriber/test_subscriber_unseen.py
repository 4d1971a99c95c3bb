"""Topics from which nothing comes: a mistyped name is told in the log, and a quiet topic is not."""

from collections.abc import Callable, Iterable

import pytest
from logged import by_us
from sim_kafka import SimTransport
from sim_small import World

from totalorder.subscriber.transport import Partition

Said = Callable[[], list[str]]
EXACT = "(a name fits itself alone; for a pattern there is pattern=, --pattern)"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    """What the library has warned of since the last time."""

    def take() -> list[str]:
        lines = by_us(caplog)
        caplog.clear()
        return lines

    return take


def test_a_kafka_topic_that_is_not_there_is_warned_of_once(said: Said) -> None:
    subscriber = World().subscriber(["a", "ordres", "ord.*"])
    absent = [
        f'no Kafka topic "{name}" on this broker: nothing comes until there is {EXACT}' for name in ("ord.*", "ordres")
    ]
    assert said() == absent
    subscriber.subscribe(["b", "ordres", "paymnets"])
    assert said() == [absent[0].replace("ord.*", "paymnets")]


def test_topics_that_are_quiet_or_read_are_not_spoken_of(said: Said) -> None:
    world = World()
    world.publish("a")
    world.subscriber("ab")
    assert said() == []


def test_events_that_the_sequencer_does_not_read_are_told(said: Said) -> None:
    world = World()
    world.kafka.create("other", 2)
    world.kafka.append(Partition("other", 1), value=b"", timestamp_ms=0)
    world.subscriber(["other"])
    assert said() == ['Kafka topic "other" holds events, and domain d none of them: does its sequencer read it?']


def test_by_key_a_topic_without_an_event_is_doubtful(said: Said) -> None:
    world = World(topic_by="key")
    world.kafka.append(Partition("a", 0), key=b"JFK", value=b"", timestamp_ms=0)
    world.sequencer.run()
    first = world.subscriber(["JFK", "a"])
    assert said() == [f'no event of topic "a" in domain d so far: nothing comes until there is {EXACT}']
    assert first.granted_g == 2


def test_of_many_a_few_are_named(said: Said) -> None:
    World().subscriber([f"x{number}" for number in range(50)])
    assert len(said()) == 10


def test_asking_about_topics_that_nobody_stamps_holds_no_poll_for_longer_than_one_of_them_takes() -> None:
    """Brokers may take seconds for each answer, and nothing else is done meanwhile; each topic has its turn."""
    world = World()
    transport = SlowTransport(world)
    names = [f"t{at}" for at in range(9)]
    for name in names:
        world.kafka.create(name, 1)
    subscriber = world.subscriber(names, transport=transport)
    transport.is_slow = True
    held: list[int] = []
    for _ in range(25):
        asked = len(transport.asked)
        assert subscriber.poll(1.0) is None
        held.append(len(transport.asked) - asked)
        assert len(subscriber._session._unread._due) < len(names), "a turn is over before the next one begins"
    assert max(held) <= 2
    assert {name for name, _ in transport.asked} == set(names)
    assert all(once for _, once in transport.asked), "an outage is borne for a minute, and poll() does not last so long"


class SlowTransport(SimTransport):
    """Answers each question about a topic after two seconds."""

    def __init__(self, world: World) -> None:
        super().__init__(world.kafka, world.rng, world.tick)
        self.world, self.is_slow = world, False
        self.asked: list[tuple[str, bool]] = []

    def _answer(self, topic: str, once: bool) -> None:
        if self.is_slow:
            self.asked.append((topic, once))
            self.world.now += 2.0

    def partitions(self, topic: str, *, once: bool = False) -> int:
        self._answer(topic, once)
        return super().partitions(topic, once=once)

    def end_offsets(self, partitions: Iterable[Partition], *, once: bool = False) -> dict[Partition, int]:
        for name in {partition.topic for partition in partitions}:
            self._answer(name, once)
        return super().end_offsets(partitions, once=once)
