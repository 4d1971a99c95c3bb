"""What `totalorder bench shards` makes of what it saw."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from engine_world import configs, run as run_engine

from totalorder.bench.live.load import fill
from totalorder.bench.live.progress import WHOLE, BatchTime
from totalorder.bench.live.stamps import Stamps, combined
from totalorder.bench.shards.alone import chunks, reading_s, stamping_s, subscribed
from totalorder.bench.shards.command import (
    KAFKA_TOPICS,
    Alone,
    Plan,
    ShardRun,
    TaskCosts,
    Turn,
    summary,
    tables,
    task_costs,
)
from totalorder.bench.shards.model import Costs, carried, fitted
from totalorder.bench.shards.stages import TaskTime
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, Error
from totalorder.sequencer.batch import Row
from totalorder.sequencer.wire.control import Subscribe, encode_request
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.streaming.cut.chunk import decode


def stamps_of(shards: int, topics: str = "abcdefab") -> Stamps:
    """Stamps of the engine over two batches, of a subscriber to all topics and one event of each of `topics`."""
    names = tuple(sorted(set(topics)))
    request = Subscribe(id="s", generation=1, nonce="n", topics=names, lease_s=0, stamps_ends={})
    control = Row(DomainTopics(domain="d").control, 0, 0, control=encode_request(request))
    events = [Row("k", 0, offset, timestamp_ms=offset, topic=name) for offset, name in enumerate(topics)]
    _, effects = run_engine([[control, *events[:3]], events[3:]], configs(shards=shards))
    return combined([batch for effect in effects for batch in effect.stamps])


def shard_run(speed: float, stamps: Stamps, *, shards: int) -> ShardRun:
    return ShardRun(
        events_per_s=speed,
        tasks=TaskCosts(
            reading_s=0.0 if shards == 1 else 1e-6 * (5 + 3 * shards),
            stateful_s=1e-6 * (4 + 8 / shards),
            java_reading_s=0.0 if shards == 1 else 1e-6 * (2 + 3 * shards),
            java_stateful_s=1e-6 * (1 + 2 / shards),
            around_s=0.1,
        ),
        stamping_s=1e-6 * (1 + 6 / shards),
        stamps=stamps,
    )


def test_a_line_through_costs_has_no_negative_part() -> None:
    exact = fitted({1: 5e-6, 2: 7e-6, 4: 11e-6})
    assert exact.each == pytest.approx(3e-6)
    assert exact.share == pytest.approx(2e-6)
    falling = fitted({1: 6e-6, 2: 4e-6})
    assert falling.each == pytest.approx(5e-6)
    assert falling.share == 0
    steep = fitted({1: 1e-6, 2: 9e-6})
    assert steep.each == 0.0
    assert steep.share > 0


def test_more_cores_carry_what_the_scarcer_side_carries() -> None:
    reading, stamping = Costs(each=2e-6, share=1e-6), Costs(each=1e-6, share=9e-6)
    shards, speed = carried(10, reading, stamping)
    by_hand = {k: min(1 / (1e-6 + 9e-6 / k), (10 - k) / (2e-6 + 1e-6 * k)) for k in range(1, 10)}
    assert speed == pytest.approx(by_hand[shards])
    assert speed == pytest.approx(max(by_hand.values()))


def test_shards_that_add_next_to_nothing_are_not_taken() -> None:
    shards, speed = carried(100, Costs(each=1e-6, share=0.0), Costs(each=10e-6, share=1e-6))
    assert shards == 9
    assert speed == pytest.approx(1 / (10e-6 + 1e-6 / 9))


def batch_of(rows: int, ms: int) -> BatchTime:
    return BatchTime(rows=rows, ms={WHOLE: ms})


def test_task_times_are_of_whole_batches_alone() -> None:
    batches = [batch_of(1_000, 2_000), batch_of(1_000, 170), batch_of(1_000, 200), batch_of(5, 1_500)]
    stages = [
        [[TaskTime(900, 900)], [TaskTime(900, 900)]],
        [[TaskTime(10, 1), TaskTime(20, 2)], [TaskTime(40, 5), TaskTime(30, 9)]],
        [[TaskTime(30, 3), TaskTime(40, 4)], [TaskTime(50, 7), TaskTime(60, 6)]],
        [[TaskTime(700, 700)], [TaskTime(700, 700)]],
    ]
    turn = Turn(batches=batches, stages=stages)
    costs = task_costs([turn, turn])
    assert costs.reading_s == pytest.approx(100 / 2_000 / 1_000)
    assert costs.stateful_s == pytest.approx(100 / 2_000 / 1_000)
    assert costs.java_reading_s == pytest.approx(10 / 2_000 / 1_000)
    assert costs.java_stateful_s == pytest.approx(16 / 2_000 / 1_000)
    assert costs.around_s == pytest.approx((110 + 100) / 2 / 1_000)


def test_a_batch_of_one_stage_has_no_task_that_only_reads() -> None:
    batches = [batch_of(1_000, 20), batch_of(1_000, 20)]
    costs = task_costs([Turn(batches=batches, stages=[[[TaskTime(5, 1)]], [[TaskTime(8, 2)]]])])
    assert costs.reading_s == costs.java_reading_s == 0
    assert costs.stateful_s == pytest.approx(8e-6)
    assert costs.java_stateful_s == pytest.approx(2e-6)
    assert costs.around_s == pytest.approx(0.012)


def packed(plan: Plan) -> list[list[bytes]]:
    (drawn,) = plan.drawn()
    return list(chunks(plan.names, drawn, plan.batch, KAFKA_TOPICS))


def test_chunks_have_every_event_once_as_it_was_published() -> None:
    plan = Plan(events=2_500, turns=1, batch=1_000, topics=2_000, subscribers=5)
    (drawn,) = plan.drawn()
    found, sizes = {}, []
    for number, batch in enumerate(packed(plan), 2):
        decoded = [decode(data) for data in batch]
        assert {chunk.cut for chunk in decoded} == {number}
        assert not any(chunk.slice.any() for chunk in decoded)
        sizes.append(sum(map(len, decoded)))
        for chunk in decoded:
            for source, offset, topic in zip(
                chunk.source.tolist(), chunk.offset.tolist(), chunk.topic.tolist(), strict=True
            ):
                found[chunk.sources[source][0], offset] = chunk.names[topic]
    assert sizes == [1_000, 1_000, 500]
    assert found == {
        (KAFKA_TOPICS[number % 4], number // 4): plan.names[topic] for number, topic in enumerate(drawn.tolist())
    }


def test_a_shard_that_owns_nothing_needs_less_than_one_that_owns_all() -> None:
    plan = Plan(events=60_000, turns=1, batch=20_000, topics=100, subscribers=50)
    batches = packed(plan)
    one = stamping_s(subscribed(plan.subscriptions(), shards=1, shard=0, stamps_partitions=4), batches)
    few = stamping_s(subscribed(plan.subscriptions(), shards=256, shard=0, stamps_partitions=256), batches)
    assert 0 < few < one


@pytest.mark.broker
def test_reading_alone_reads_all(broker: LocalBroker, new_topic: Callable[..., str]) -> None:
    topics = [new_topic(name) for name in KAFKA_TOPICS]
    fill(broker.bootstrap_servers, topics, [f"t{number % 7}" for number in range(4_000)])
    assert reading_s(broker.bootstrap_servers, topics, events=4_000, size=1_000) > 0
    with pytest.raises(BrokerUnavailable, match="sent nothing"):
        reading_s(broker.bootstrap_servers, topics, events=4_400, size=400, silence_s=1.0)


def test_stamps_are_equal_however_many_shards_made_them() -> None:
    one, two = stamps_of(1), stamps_of(2)
    assert len(one.g) == 8
    assert len(one.entry_g) > 0
    assert one.equals(two)


@pytest.mark.parametrize("column", ["g", "n", "topic", "source", "offset", "entry_g", "entry_topic", "entry_n"])
def test_one_other_number_makes_stamps_unequal(column: str) -> None:
    one = stamps_of(1)
    changed = getattr(one, column).copy()
    changed[-1] += 1
    assert not one.equals(replace(one, **{column: changed}))


def test_another_name_makes_stamps_unequal() -> None:
    one = stamps_of(1)
    assert not one.equals(replace(one, topics=("x", *one.topics[1:])))


ALONE = Alone(reading_s=4e-6, intake_s=0.5e-6)


def test_speedups_are_over_one_shard_and_the_model_is_in_the_summary() -> None:
    stamps = stamps_of(1)
    data = summary({k: shard_run(1_000.0 * k, stamps, shards=k) for k in (1, 2, 4)}, ALONE)
    assert data["identical"] is True
    assert data["events"] == 8
    assert data["shards"]["4"]["speedup"] == pytest.approx(4)
    assert data["shards"]["2"]["stamping_speedup"] == pytest.approx(7 / 4)
    assert data["shards"]["2"]["around_ms"] == pytest.approx(100)
    model = data["model"]
    assert model["reading_us"] == {"each": pytest.approx(4 + 2), "share": pytest.approx(3)}
    assert model["java_us"] == pytest.approx(1 + 2 / 4)
    assert model["intake_us"] == pytest.approx(1.5 + 0.5)
    assert model["engine_us"] == {"intake": pytest.approx(0.5), "share": pytest.approx(6.5)}
    shards, speed = carried(100, Costs(each=6e-6, share=3e-6), Costs(each=2e-6, share=6.5e-6))
    assert (model["shards"], model["events_per_s"]) == (shards, pytest.approx(speed))
    assert model["engine_events_per_s"] == pytest.approx(1e6 / 0.565)
    assert all(len(row) == len(table.columns) for table in tables(data) for row in table.rows)


def test_other_timestamps_are_an_error() -> None:
    one, other = stamps_of(1), stamps_of(1, "abcdefaa")
    with pytest.raises(Error, match="2 shards gave other timestamps than 1"):
        summary({1: shard_run(1.0, one, shards=1), 2: shard_run(1.0, other, shards=2)}, ALONE)
