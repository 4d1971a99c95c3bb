"""What makes a look, who is asked for what, and how often: the pure part, beside a dumb twin."""

import math
import random
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.errors import Error, StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.ends import FALL_S, MOMENT_S, Ends, Look, routes
from totalorder.streaming.cut.pace import (
    BUSY_SHARE,
    IDLE_S,
    IDLE_SHARE,
    IDLE_WALL_SHARE,
    QUIET_S,
    WALL_SHARE,
    Minute,
    Pace,
)
from totalorder.streaming.cut.requests import Address, Cluster, Offsets, Topic

SEEDS = st.integers(0, 1 << 32)
PATIENCE_S = 1.0
LEADERS = {1: Address("a", 1), 2: Address("b", 2)}


def sources(count: int, name: str = "orders") -> list[Source]:
    return [Source(name, str(UUID(int=1)), partition) for partition in range(count)]


def told(ends: list[int], errors: list[int] | None = None, epochs: list[int] | None = None) -> Offsets:
    count = len(ends)
    return Offsets(
        offset=np.array(ends, np.int64),
        error=np.array(errors or [0] * count, np.int64),
        epoch=np.array(epochs or [0] * count, np.int64),
        throttle_ms=0,
    )


def looked(ends: Ends, now_s: float, *answers: tuple[list[int], Offsets]) -> Look | None:
    ends.begin(now_s)
    for places, offsets in answers:
        ends.take(np.array(places, np.int64), offsets)
    return ends.judge(now_s + 0.001)


# --- who is asked for what --------------------------------------------------------------------------------------------


def test_partitions_go_to_their_leaders() -> None:
    cluster = Cluster(
        brokers=LEADERS,
        topics={"orders": Topic(str(UUID(int=1)), (1, 2, 1, -1, 9)), "other": Topic(str(UUID(int=2)), (2,))},
        errors={"torn": 5},
    )
    asked = [*sources(6), *sources(1, "other"), *sources(1, "absent"), *sources(1, "torn")]
    found = routes(asked, cluster)
    # 3 has no leader, 4 one that nobody knows, 5 is not known yet, 6 has another id, 7 is not there, 8 cannot be told.
    assert found.led == {LEADERS[1]: [0, 2], LEADERS[2]: [1]}
    assert found.gone == [6, 7]


@given(SEEDS)
def test_each_place_is_asked_of_one_broker_at_most(seed: int) -> None:
    chance = random.Random(seed)
    topics = {
        f"t{number}": Topic(str(UUID(int=chance.randrange(2))), tuple(chance.choices([1, 2, 3, -1], k=1 + number)))
        for number in range(4)
    }
    asked = [
        Source(f"t{chance.randrange(5)}", str(UUID(int=chance.randrange(2))), chance.randrange(6)) for _ in range(20)
    ]
    found = routes(asked, Cluster(brokers=LEADERS, topics=topics, errors={}))
    for place, (name, topic_id, partition) in enumerate(asked):
        topic = topics.get(name)
        is_there = topic is not None and topic.topic_id == topic_id
        assert (place in found.gone) == (not is_there)
        leader = topic.leaders[partition] if topic is not None and partition < len(topic.leaders) else -1
        leading = [address for address, places in found.led.items() if place in places]
        assert leading == ([LEADERS[leader]] if is_there and leader in LEADERS else [])


# --- what makes a look ------------------------------------------------------------------------------------------------


def test_a_look_where_nothing_moved_has_the_same_ends() -> None:
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(2))
    places, answer = np.array([0, 1]), told([5, 6])
    seen = []
    for now_s, offsets in ((1, answer), (2, answer), (3, told([5, 6])), (4, told([5, 7])), (5, answer)):
        ends.begin(now_s)
        ends.take(places, offsets)
        look = ends.judge(now_s)
        seen.append(None if look is None else look.ends)
    assert seen[0] is not None
    assert seen[0].tolist() == [5, 6]
    assert seen[0] is seen[1] is seen[2]
    assert seen[3] is not None
    assert seen[3].tolist() == [5, 7]
    assert seen[4] is None  # 7 fell to 6
    with pytest.raises(ValueError, match="read-only"):
        seen[0][0] = 1


def test_known_ends_and_those_of_sources_that_stay_are_kept() -> None:
    ends = Ends(patience_s=0.0)
    one, two, three = sources(3)
    ends.watch([one, two], [4, -1])
    look = looked(ends, 1.0)
    assert look is not None
    assert look.ends.tolist() == [4, -1]
    assert look.silent == {0, 1}
    look = looked(ends, 2.0, ([0, 1], told([5, 6])))
    assert look is not None
    assert look.ends.tolist() == [5, 6]
    assert not look.silent
    ends.watch([three, two, one], [1, 7, 2])
    look = looked(ends, 3.0)
    assert look is not None
    assert look.ends.tolist() == [1, 7, 5]
    assert look.sources == (three, two, one)


def test_a_broker_that_was_silent_is_given_a_moment_until_it_is_known_to_be_quick() -> None:
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(2))
    places = np.array([1])
    ends.begin(10.0)
    assert ends.waits_until_s(places, 0.001) == 10.0 + PATIENCE_S
    ends.take(np.array([0]), told([1]))
    assert ends.judge(10.0 + PATIENCE_S / 2) is None
    ends.begin(10.6)
    assert ends.waits_until_s(places, 0.001) == 10.0 + PATIENCE_S
    ends.take(np.array([0]), told([2]))
    look = ends.judge(10.0 + PATIENCE_S)
    assert look is not None
    assert look.silent == {1}
    ends.begin(12.0)
    assert ends.waits_until_s(places, math.inf) == 12.0 + MOMENT_S
    assert ends.waits_until_s(places, PATIENCE_S * 1.01) == 12.0 + MOMENT_S
    assert ends.waits_until_s(places, PATIENCE_S / 2) == 12.0 + PATIENCE_S


def test_places_that_are_gone_hold_nothing_back() -> None:
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(2))
    ends.confirm([1], 0.0)
    look = looked(ends, 1.0, ([0], told([3])))
    assert look is not None
    assert look.silent == {1}
    ends.confirm([], 2.0)  # a broker had not heard yet of it
    assert looked(ends, 1.0 + PATIENCE_S / 2, ([0], told([3]))) is None


def test_an_end_that_falls_is_an_error_only_when_it_stays_so_and_the_id_too() -> None:
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(1))
    assert looked(ends, 1.0, ([0], told([5]))) is not None
    assert looked(ends, 2.0, ([0], told([4]))) is None
    ends.confirm([], 2.0 + FALL_S - 0.1)
    ends.confirm([0], 2.0 + FALL_S)
    assert looked(ends, 3.0, ([0], told([5]))) is not None  # it has risen again
    ends.confirm([], 9.0)
    looked(ends, 10.0, ([0], told([4])))
    looked(ends, 11.0, ([0], told([3])))
    with pytest.raises(StateError, match="offset 5 has been cut off"):
        ends.confirm([], 10.0 + FALL_S)


def test_what_former_leaders_say_and_errors_are_no_fall() -> None:
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(2))
    assert looked(ends, 1.0, ([0, 1], told([5, 5], epochs=[7, 7]))) is not None
    for now_s in (2.0, 4.0, 6.0):
        look = looked(ends, now_s, ([0, 1], told([4, -1], [0, 6], [6, -1])))
        assert look is None or look.silent == {0, 1}
        ends.confirm([], now_s + FALL_S)
    look = looked(ends, 7.0, ([0, 1], told([6, 6], epochs=[7, -1])))
    assert look is not None
    assert not look.silent
    look = looked(ends, 7.0 + PATIENCE_S, ([0, 1], told([6, 7], epochs=[7, 6])))
    assert look is None  # an answer without an epoch has not made the known one less


def test_what_does_not_pass_is_an_error() -> None:
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(2))
    for code in (3, 5, 6, 74, 78):
        assert looked(ends, 1.0, ([0, 1], told([0, -1], [0, code]))) is None
    with pytest.raises(Error, match="TopicAuthorizationFailed"):
        looked(ends, 1.0, ([0, 1], told([0, -1], [0, 29])))


@given(SEEDS)
def test_looks_are_those_of_a_dumb_twin(seed: int) -> None:
    """Attempts with answers, errors, falls, stale leaders and silence; the twin has a few words for each place."""
    chance = random.Random(seed)
    count = chance.randrange(1, 7)
    cut = chance.randrange(count + 1)
    groups = [group for group in (list(range(cut)), list(range(cut, count))) if group]
    places = [np.array(group) for group in groups]
    ends = Ends(patience_s=PATIENCE_S)
    ends.watch(sources(count))
    known, epochs, since = [-1] * count, [-1] * count, [None] * count  # type: list[int], list[int], list[float | None]
    repeated: dict[int, Offsets] = {}
    now_s = 0.0
    for _ in range(40):
        now_s += chance.choice([0.1, 0.1, 0.6])
        ends.begin(now_s)
        good: dict[int, tuple[int, int]] = {}
        for number, group in enumerate(groups):
            if chance.random() < 0.2:
                continue
            if number in repeated and chance.random() < 0.4:
                offsets = repeated[number]
            else:
                offsets = told(
                    [known[place] + chance.choice([0, 0, 1, 1, 1, 3, -1]) for place in group],
                    [chance.choice([0] * 9 + [6]) for _ in group],
                    [epochs[place] + chance.choice([0] * 8 + [1, -1]) for place in group],
                )
            repeated[number] = offsets
            ends.take(places[number], offsets)
            rows = zip(group, offsets.offset.tolist(), offsets.error.tolist(), offsets.epoch.tolist(), strict=True)
            for place, end, error, epoch in rows:
                if not error and end >= max(0, known[place]) and (epoch < 0 or epoch >= epochs[place]):
                    good[place] = (end, max(epoch, epochs[place]))
        look = ends.judge(now_s)
        for place in range(count):
            if place in good:
                since[place] = None
            elif since[place] is None:
                since[place] = now_s
        held = [start is not None and now_s - start < PATIENCE_S for start in since]
        assert (look is None) == any(held)
        if look is not None:
            for place, (end, epoch) in good.items():
                known[place], epochs[place] = end, epoch
            assert look.ends.tolist() == known
            assert look.silent == set(range(count)) - good.keys()


# --- how often --------------------------------------------------------------------------------------------------------


def test_the_period_is_the_least_while_records_come_and_grows_when_none_do() -> None:
    pace = Pace(0.005)
    now_s = 100.0
    assert pace.after(now_s, moved=True, cost_s=1e-4, took_s=1e-3) == 0.005
    assert pace.after(now_s + QUIET_S / 2, moved=False, cost_s=1e-4, took_s=1e-3) == 0.005
    periods = [pace.after(now_s + QUIET_S + step, moved=False, cost_s=1e-4, took_s=1e-3) for step in range(30)]
    assert periods == sorted(periods)
    assert periods[0] > 0.005
    assert periods[-1] == IDLE_S
    assert pace.after(now_s + 60, moved=True, cost_s=1e-4, took_s=1e-3) == 0.005


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("cost_s", [1e-5, 1e-4, 1e-3, 1e-2])
def test_looks_never_take_more_than_their_share(moved: bool, cost_s: float) -> None:
    pace, now_s = Pace(0.005), 100.0
    for _ in range(300):
        now_s += pace.after(now_s, moved=moved, cost_s=cost_s, took_s=2 * cost_s)
    share, under_way = cost_s / pace.period_s, 2 * cost_s / pace.period_s
    assert share <= (BUSY_SHARE if moved else IDLE_SHARE) * 1.01
    assert under_way <= (WALL_SHARE if moved else IDLE_WALL_SHARE) * 1.01
    assert pace.period_s >= 0.005


def test_looks_are_under_way_for_a_share_of_the_time_and_one_that_waited_does_not_count() -> None:
    pace = Pace(0.005)
    for number in range(100):
        pace.after(float(number), moved=True, cost_s=1e-5, took_s=0.5 if number % 7 else 0.004)
    assert 0.004 / WALL_SHARE <= pace.period_s <= 0.0055 / WALL_SHARE
    for number in range(100, 300):
        pace.after(float(number), moved=True, cost_s=1e-5, took_s=0.010)
    assert pace.period_s == pytest.approx(0.010 / WALL_SHARE)


def test_figures_are_of_the_last_minute() -> None:
    minute = Minute()
    assert minute.figures(0.0).looks == 0
    minute.add_look(100.0, 100.2, 0)
    assert minute.add_look(103.0, 103.1, 2) == 3.0
    minute.add_cost(103.1, 0.5)
    figures = minute.figures(104.0)
    assert (figures.looks, figures.silent_looks, figures.silent_places) == (2, 1, 2)
    assert figures.longest_period_ms == pytest.approx(3000)
    assert figures.longest_ms == pytest.approx(200)
    assert figures.processor_share == pytest.approx(0.5 / 4)
    assert minute.figures(110.0).longest_period_ms == pytest.approx(7000)  # no look since
    for second in range(104, 200):
        minute.add_look(float(second), second + 0.01, 0)
    figures = minute.figures(199.5)
    assert figures.longest_period_ms == pytest.approx(1000)
    assert figures.longest_ms == pytest.approx(10)
    assert (figures.looks, figures.silent_looks, figures.silent_places) == (98, 1, 0)
