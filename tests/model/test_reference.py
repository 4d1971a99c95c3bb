"""The dumb twin against itself: the delivery rule, run greedily over random schedules, against pi read off the list.

The second half gives these tests their teeth: with one rule of the protocol taken away a seeded search must find the
defect that the rule is there for, and the smallest story of each is spelled out.
"""

import operator
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st
from reference import (
    Change,
    Event,
    GreedySubscriber,
    Item,
    Rule,
    change,
    events,
    feed,
    first_disagreement,
    reference_clock,
    reference_deliveries,
    reference_group,
    reference_intervals,
    reference_stamps,
)

TOPICS = "TXYZ"
IDS = "rst"

event_items = st.sampled_from(TOPICS).map(Event)
change_items = st.builds(change, st.sampled_from(IDS), st.sets(st.sampled_from(TOPICS)))
# Two thirds events, so that there is something to disagree about between two changes.
histories: st.SearchStrategy[list[Item]] = st.lists(st.one_of(event_items, event_items, change_items), max_size=24)
seeds = st.integers(0, 2**32 - 1)


def deliveries(
    items: Sequence[Item],
    min_subscriptions: int,
    rng: random.Random,
    *,
    rule: Rule = operator.ge,
    closing: bool = True,
    opening: bool = False,
) -> dict[str, list[int]]:
    """What each subscriber delivers, each with a random interleaving of its own."""
    stamps = reference_stamps(items, min_subscriptions, closing=closing, opening=opening)
    return {
        name: feed(GreedySubscriber(items, reference_intervals(items, name), rule=rule), stamps, rng) for name in IDS
    }


def expected(items: Sequence[Item]) -> dict[str, list[int]]:
    return {name: reference_deliveries(items, reference_intervals(items, name)) for name in IDS}


def hangs(items: Sequence[Item], delivered: dict[str, list[int]]) -> bool:
    """Has anyone not delivered what pi owes them, although everything has arrived?"""
    return any(sorted(delivered[name]) != owed for name, owed in expected(items).items())


def disagrees(delivered: dict[str, list[int]]) -> bool:
    return any(first_disagreement(one, other) for one in delivered.values() for other in delivered.values())


@given(items=histories, seed=seeds)
def test_one_subscription_per_pair_makes_everyone_follow_pi(items: list[Item], seed: int) -> None:
    assert deliveries(items, 1, random.Random(seed)) == expected(items)


@given(items=histories, seed=seeds)
def test_two_subscriptions_per_pair_keep_pairwise_order(items: list[Item], seed: int) -> None:
    delivered = deliveries(items, 2, random.Random(seed), opening=True)
    assert not hangs(items, delivered)
    assert not disagrees(delivered)


@given(items=histories, min_subscriptions=st.sampled_from([1, 2]))
def test_counts_are_consistent(items: list[Item], min_subscriptions: int) -> None:
    """n counts up by one per topic, entries never exceed what was published, SGs are symmetric."""
    seen: dict[str, int] = {}
    for stamp in reference_stamps(items, min_subscriptions, opening=True):
        assert stamp.n == seen.get(stamp.topic, 0) + 1
        seen[stamp.topic] = stamp.n
        assert stamp.entries == {other: seen.get(other, 0) for other in stamp.entries}
    for topic in TOPICS:
        for other in reference_group(items, len(items), topic, min_subscriptions):
            assert topic in reference_group(items, len(items), other, min_subscriptions)


def test_a_stamp_written_out() -> None:
    items: list[Item] = [change("r", "TX"), *events("TX"), change("s", "TXZ"), *events("ZT")]
    items += [change("r"), *events("TT")]
    one, two = ([(s.g, s.topic, s.n, s.entries) for s in reference_stamps(items, m)] for m in (1, 2))
    assert one == [
        (2, "T", 1, {"X": 0}),
        (3, "X", 1, {"T": 1}),
        (5, "Z", 1, {"T": 1, "X": 1}),
        (6, "T", 2, {"X": 1, "Z": 1}),
        (8, "T", 3, {"X": 1, "Z": 1}),
        (9, "T", 4, {"X": 1, "Z": 1}),
    ]
    assert two == [
        (2, "T", 1, {}),
        (3, "X", 1, {}),
        (5, "Z", 1, {}),
        (6, "T", 2, {"X": 1}),
        (8, "T", 3, {"X": 1}),  # closing
        (9, "T", 4, {}),
    ]
    assert reference_clock(items, 6) == {"T": 2, "X": 1, "Z": 1}
    assert reference_deliveries(items, reference_intervals(items, "r")) == [2, 3, 6]


# --- Teeth -----------------------------------------------------------------------------------------------------------


def random_history(rng: random.Random) -> list[Item]:
    def random_item() -> Item:
        if rng.random() < 0.3:
            return change(rng.choice(IDS), rng.sample(TOPICS, rng.randint(0, 3)))
        return Event(rng.choice(TOPICS))

    return [random_item() for _ in range(24)]


# All with m = 2. With m = 1 everyone follows pi, so sub_LC[X] is LC_X at each delivery: no rule can be taken away.
WITHOUT_A_RULE = [
    pytest.param({"rule": operator.eq, "opening": True}, "hangs", id="equality"),
    pytest.param({"closing": False, "opening": True}, "disagrees", id="no closing entries"),
    pytest.param({"opening": False}, "disagrees", id="no opening entries"),
]


@pytest.mark.parametrize(("options", "defect"), WITHOUT_A_RULE)
def test_each_rule_is_needed(options: dict[str, Any], defect: str) -> None:
    for seed in range(2000):
        rng = random.Random(seed)
        items = random_history(rng)
        delivered = deliveries(items, 2, rng, **options)
        if defect == "hangs" and hangs(items, delivered):
            return
        if defect == "disagrees" and disagrees(delivered):
            return
    pytest.fail(f"no random schedule {defect}: these tests have lost their teeth")


def test_equality_hangs_after_a_group_has_shrunk() -> None:
    """Closing entries are in place; but r dropped T, so for s X may run ahead of the X that T's next event names."""
    items: list[Item] = [change("r", "TX"), change("s", "TX"), change("r", "X"), *events("XTXX")]
    stamps = {stamp.g: stamp for stamp in reference_stamps(items, 2)}
    outcomes = []
    for rule in (operator.eq, operator.ge):
        subscriber = GreedySubscriber(items, reference_intervals(items, "s"), rule=rule)
        for g in [4, 6, 7, 5]:
            subscriber.receive(stamps[g])
        outcomes.append(subscriber.delivered)
    assert outcomes == [[4, 6, 7], [4, 6, 7, 5]]


def delivered_when_arriving(items: Sequence[Item], name: str, order: Sequence[int], **options: bool) -> list[int]:
    """What the subscriber delivers with m = 2 when the stamps arrive in this order of g."""
    stamps = {stamp.g: stamp for stamp in reference_stamps(items, 2, **options)}
    subscriber = GreedySubscriber(items, reference_intervals(items, name))
    for g in order:
        subscriber.receive(stamps[g])
    return subscriber.delivered


SWAPS: list[list[Change]] = [[change("r", "X")], [change("r"), change("r", "X")], [change("r", "Z"), change("r", "ZX")]]


@pytest.mark.parametrize("swap", SWAPS)
def test_swapping_topics_needs_opening_entries(swap: list[Change]) -> None:
    """s alone holds T and X together. r holds T, sees an event of it, then swaps T for X and sees an event of X.

    No two subscriptions ever hold T and X together, so with m = 2 SG_X never has T and there is nothing to close:
    s may take the two events in the opposite order.
    """
    items: list[Item] = [change("s", "TX"), change("r", "T"), Event("T"), *swap, Event("X")]
    of_t, of_x = 3, len(items)
    assert delivered_when_arriving(items, "r", [of_t, of_x]) == [of_t, of_x]
    assert delivered_when_arriving(items, "s", [of_x, of_t]) == [of_x, of_t]
    assert reference_stamps(items, 2, opening=True)[-1].entries["T"] == 1
    assert delivered_when_arriving(items, "s", [of_x, of_t], opening=True) == [of_t, of_x]


def test_the_base_mode_promises_pairs_only() -> None:
    """m = 2: g may go down within one subscriber, and three subscribers may make a circle; m = 1 has neither."""
    items: list[Item] = [change("r", "TX"), change("s", "XY"), change("t", "TY"), *events("TXY")]
    of_t, of_x, of_y = 4, 5, 6
    assert delivered_when_arriving(items, "r", [of_t, of_x, of_y]) == [of_t, of_x]
    assert delivered_when_arriving(items, "s", [of_x, of_y, of_t]) == [of_x, of_y]
    assert delivered_when_arriving(items, "t", [of_y, of_t, of_x]) == [of_y, of_t]
