"""Exact ranges read from a real broker: every committed record once, in order, whatever the way of reading."""

import random
import time
from collections.abc import Callable, Iterator

import pytest
from cut_world import CODECS, World, chunks, plan_of, rows_of
from hypothesis import HealthCheck, given, settings, strategies as st

from totalorder.broker import LocalBroker
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.ranges import Range, ReadPlan, SliceEnd
from totalorder.streaming.cut.records import Reader

pytestmark = pytest.mark.broker
KINDS: list[Callable[[dict[str, str]], Reader]] = [PlainReader, FastReader]
PARTITIONS = 3
NOW_MS = int(time.time() * 1000) - 10_000_000
"""Not so long ago that the broker would remove such records: retention goes by their times."""


def make(kind: Callable[[dict[str, str]], Reader], servers: str) -> Reader:
    return kind(consumers.client_settings(servers, {}))


@pytest.fixture(params=KINDS)
def reader(request: pytest.FixtureRequest, broker: LocalBroker) -> Iterator[Reader]:
    made = make(request.param, broker.bootstrap_servers)
    yield made
    made.close()


@pytest.fixture(scope="module")
def warm(broker: LocalBroker) -> Iterator[list[Reader]]:
    made = [make(kind, broker.bootstrap_servers) for kind in KINDS]
    yield made
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def written(broker: LocalBroker, kafka_admin: object, _unique: Iterator[int]) -> World:
    """Two topics of three partitions with runs of records by all codecs, and transactions of both kinds."""
    chance = random.Random(17)
    world = World(broker.bootstrap_servers)
    topics = [f"mixed-{next(_unique)}" for _ in range(2)]
    kafka_admin.create_topics({name: {"num_partitions": PARTITIONS} for name in topics})  # type: ignore[attr-defined]
    kafka_admin.wait_for_topics(topics)  # type: ignore[attr-defined]
    places = [(topic, partition) for topic in topics for partition in range(PARTITIONS)]
    for _ in range(60):
        chosen = chance.sample(places, chance.randint(1, 4))
        count = chance.choice([1, 3, 40, 300])
        rows = [(chance.choice(chosen), value(chance), NOW_MS + chance.randint(-9, 9)) for _ in range(count)]
        world.write(chance.choice(CODECS), rows, outcome=chance.choice(["plain", "plain", "commit", "abort"]))
    return world


def value(chance: random.Random) -> bytes | None:
    return chance.choice([None, b"", chance.randbytes(chance.randint(1, 400))])


def test_the_world_has_what_is_to_be_read(written: World) -> None:
    assert len(written.ends) == 2 * PARTITIONS
    for place, end in written.ends.items():
        assert len(written.records[place]) > 100
        assert end > len(written.records[place]) + 5, "no gaps"


@st.composite
def stories(draw: st.DrawFn, world: World) -> list[ReadPlan]:
    """Plans one after the other: most partitions are read on, some from anywhere, some not at all."""
    at = dict.fromkeys(sorted(world.ends), 0)
    plans = []
    for _ in range(draw(st.integers(1, 6))):
        ranges = []
        for place in draw(st.lists(st.sampled_from(sorted(at)), min_size=1, unique=True)):
            if draw(st.integers(0, 4)) == 0:
                at[place] = draw(st.integers(0, world.ends[place]))
            end = draw(st.one_of(st.integers(at[place], world.ends[place]), st.just(world.ends[place])))
            cuts = sorted(draw(st.sets(st.integers(at[place], end), max_size=5)) | {end})
            numbers = sorted(draw(st.sets(st.integers(0, 50), min_size=len(cuts), max_size=len(cuts))))
            slices = tuple(SliceEnd(number, cut) for number, cut in zip(numbers, cuts, strict=True))
            ranges.append(
                Range(topic=place[0], topic_id="id", partition=place[1], begin=at[place], end=end, slices=slices)
            )
            at[place] = end
        plans.append(plan_of(world.servers, ranges))
    return plans


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_any_ranges_in_any_order(written: World, warm: list[Reader], data: st.DataObject) -> None:
    """Warm readers, which have read anything before, give what the log has; both give equal rows."""
    for plan in data.draw(stories(written)):
        for each in warm:
            assert rows_of(chunks(plan, each)) == written.expected(plan), type(each).__name__
