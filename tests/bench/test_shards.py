"""What `totalorder bench shards` makes of what it saw."""

from dataclasses import replace

import pytest
from engine_world import configs, run as run_engine

from totalorder.bench.cluster_model import Costs, carried, fitted
from totalorder.bench.cluster_stamps import Stamps, combined
from totalorder.bench.job_progress import BatchTime
from totalorder.bench.shards import ShardRun, summary, tables, task_s
from totalorder.errors import Error
from totalorder.sequencer.batch import Row
from totalorder.sequencer.control import Subscribe, encode_request
from totalorder.sequencer.names import DomainTopics


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
        reading_s=0.0 if shards == 1 else 1e-6 * (2 + 3 * shards),
        stateful_s=1e-6 * (4 + 8 / shards),
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


def test_task_times_are_of_whole_batches_alone() -> None:
    batches = [BatchTime(rows=rows, ms={}) for rows in (1_000, 1_000, 1_000, 5)]
    stages = [[[900], [900]], [[10, 20], [40, 30]], [[30, 40], [50, 60]], [[700], [700]]]
    reading_s, stateful_s = task_s(stages, batches)
    assert reading_s == pytest.approx(100 / 2_000 / 1_000)
    assert stateful_s == pytest.approx(100 / 2_000 / 1_000)


def test_a_batch_of_one_stage_has_no_task_that_only_reads() -> None:
    batches = [BatchTime(rows=rows, ms={}) for rows in (1_000, 1_000)]
    reading_s, stateful_s = task_s([[[5]], [[8]]], batches)
    assert reading_s == 0
    assert stateful_s == pytest.approx(8e-6)


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


def test_speedups_are_over_one_shard_and_the_model_is_in_the_summary() -> None:
    stamps = stamps_of(1)
    data = summary({k: shard_run(1_000.0 * k, stamps, shards=k) for k in (1, 2, 4)})
    assert data["identical"] is True
    assert data["events"] == 8
    assert data["shards"]["4"]["speedup"] == pytest.approx(4)
    assert data["shards"]["2"]["stamping_speedup"] == pytest.approx(7 / 4)
    assert data["model"]["reading_us"] == {"each": pytest.approx(2), "share": pytest.approx(3)}
    assert data["model"]["stamping_us"] == {"each": pytest.approx(1), "share": pytest.approx(6)}
    assert data["model"]["intake_us"] == pytest.approx(4 + 8 / 4 - 6 / 4)
    assert data["model"]["engine_events_per_s"] == pytest.approx(1e6 / 1.06)
    assert all(len(row) == len(table.columns) for table in tables(data) for row in table.rows)


def test_other_timestamps_are_an_error() -> None:
    one, other = stamps_of(1), stamps_of(1, "abcdefaa")
    with pytest.raises(Error, match="2 shards gave other timestamps than 1"):
        summary({1: shard_run(1.0, one, shards=1), 2: shard_run(1.0, other, shards=2)})
