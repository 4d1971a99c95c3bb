"""The defects of the papers, shown on the executable model of the paper, and absent from our rules.

Each pair of tests is a story: first the paper's protocol goes wrong in a run that its own assumptions allow (reliable
messages, FIFO links, correct processes unless the story says so), with the timestamps written out; then the same
subscriptions and events under our rules, in every order of publication and every order of arrival that fits.

Ours in one paragraph: all events and changes get positions in one order pi; a timestamp is one cut of pi; a subscriber
delivers e of T when sub_LC[T] == n - 1 and sub_LC[X] >= entry[X]; no clock is raised and no dummy event is sent for a
subscription; an entry that leaves a timestamp is written once more.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import pytest
from epto_model import EptoEvent, EptoProcess, Key, by_total_key, by_ts_alone
from paper_model import PaperModel, Rule
from reference import (
    Change,
    Event,
    GreedySubscriber,
    Item,
    ReferenceStamp,
    change,
    events,
    first_disagreement,
    reference_deliveries,
    reference_intervals,
    reference_stamps,
)


def arrivals(stamps: Sequence[ReferenceStamp]) -> Iterator[tuple[ReferenceStamp, ...]]:
    """Every order in which stamps can arrive when each topic's own stay in order."""
    for order in itertools.permutations(stamps):
        if all(a.topic != b.topic or a.n < b.n for a, b in itertools.combinations(order, 2)):
            yield order


def runs(items: Sequence[Item], subscription: str, min_subscriptions: int, *, closing: bool = True) -> list[list[int]]:
    """What the subscriber delivers under our rules, once for each order of arrival."""
    intervals = reference_intervals(items, subscription)
    delivered = []
    for order in arrivals(reference_stamps(items, min_subscriptions, closing=closing)):
        subscriber = GreedySubscriber(items, intervals)
        for stamp in order:
            subscriber.receive(stamp)
        delivered.append(subscriber.delivered)
    return delivered


def assert_our_rules_hold(items: Sequence[Item], min_subscriptions: int) -> None:
    """No subscriber misses or awaits anything, and no two disagree, in any orders of arrival."""
    subscriptions = sorted({item.id for item in items if isinstance(item, Change)})
    seen: list[list[int]] = []
    for subscription in subscriptions:
        expected = reference_deliveries(items, reference_intervals(items, subscription))
        outcomes = {tuple(run) for run in runs(items, subscription, min_subscriptions)}
        assert all(sorted(outcome) == expected for outcome in outcomes), f"{subscription} hangs or skips in {items}"
        if min_subscriptions == 1:
            assert outcomes == {tuple(expected)}, f"{subscription} leaves pi in {items}"
        for outcome in outcomes:
            assert all(first_disagreement(outcome, other) is None for other in seen), f"disagreement in {items}"
        seen.extend(list(outcome) for outcome in outcomes)


def held(**subscriptions: Iterable[str]) -> list[Item]:
    """Subscriptions made before everything else."""
    return [change(name, topics) for name, topics in subscriptions.items()]


# --- A. Fill-ins of one event overtake those of another: a deadlock with nothing changing at all ---------------------


def deadlock_of_fill_ins(rule: Rule = operator.eq) -> PaperModel:
    """Ranks a -> x -> b -> c. e_b visits TM_x on its way to TM_a, e_c does not, so e_c is at TM_a first.

    Per-link FIFO holds, and per-origin FIFO too: no two messages share a link or an origin on their way to TM_a.
    """
    model = PaperModel("axbc", rule=rule)
    model.preload(s1="abc", s2="abc", s3="xb", s4="xb")
    model.publish("e_b", "b", publisher="p_b")
    model.deliver("p_b", "TM_b")  # stamped {b1, c0}; the next hop, to TM_x, is slow
    model.publish("e_c", "c", publisher="p_c")
    model.deliver("p_c", "TM_c", "TM_b", "TM_a", "p_c")
    model.publish("e_a", "a", publisher="p_a")
    model.deliver("p_a", "TM_a", "p_a")
    model.deliver("TM_b", "TM_x", "TM_a", "p_b")
    assert model.in_flight() == []
    return model


def test_a_paper_deadlocks_with_static_subscriptions() -> None:
    model = deadlock_of_fill_ins()
    assert model.timestamps == {
        "e_c": {"a": 0, "b": 1, "c": 1},
        "e_a": {"a": 1, "b": 1, "c": 1},
        "e_b": {"a": 1, "x": 0, "b": 1, "c": 0},
    }
    # `>=` instead of equality is no cure here: the timestamps themselves contradict each other.
    for rule, order in itertools.product([operator.eq, operator.ge], itertools.permutations(["e_a", "e_b", "e_c"])):
        model = deadlock_of_fill_ins(rule)
        model.notify("s1", *order)
        # e_a waits for e_b (b1), e_b for e_a (a1), e_c for e_b: everything has arrived, nothing will ever be delivered.
        assert model.subscribers["s1"].notified == []
        assert sorted(model.subscribers["s1"].blocked()) == ["e_a", "e_b", "e_c"]


@pytest.mark.parametrize("min_subscriptions", [1, 2])
def test_a_ours_fills_every_entry_at_one_cut(min_subscriptions: int) -> None:
    for order in itertools.permutations("abc"):
        items = held(s1="abc", s2="abc", s3="xb", s4="xb") + events(order)
        assert_our_rules_hold(items, min_subscriptions)


# --- B. Four pairwise orders, each fine by itself, close a circle for the one who sees all four ----------------------


def chordless_cycle(rule: Rule = operator.eq) -> PaperModel:
    """The chords {1,3} and {2,4} are held by s5 alone, so no timestamp relates their ends."""
    model = PaperModel("1234", rule=rule)
    model.preload(s1="12", s2="23", s3="34", s4="14", s5="1234")
    model.publish("e3", "3", publisher="p3")
    model.deliver("p3", "TM_3")  # the next hop, TM_3 -> TM_2, is slow
    model.publish("e4", "4", publisher="p4")
    model.deliver("p4", "TM_4", "TM_3", "TM_1", "p4")
    model.publish("e1", "1", publisher="p1")
    model.deliver("p1", "TM_1", "p1")
    model.publish("e2", "2", publisher="p2")
    model.deliver("p2", "TM_2", "TM_1", "p2")
    model.deliver("TM_3", "TM_2", "p3")
    assert model.in_flight() == []
    return model


def test_b_paper_orders_four_events_in_a_circle() -> None:
    model = chordless_cycle()
    assert model.timestamps == {
        "e1": {"1": 1, "2": 0, "4": 1},  # after e4
        "e2": {"1": 1, "2": 1, "3": 0},  # after e1
        "e3": {"2": 1, "3": 1, "4": 0},  # after e2
        "e4": {"1": 0, "3": 1, "4": 1},  # after e3
    }
    for name in ("s1", "s2", "s3", "s4"):
        model.notify(name)
    assert [model.subscribers[name].notified for name in ("s1", "s2", "s3", "s4")] == [
        ["e1", "e2"],
        ["e2", "e3"],
        ["e3", "e4"],
        ["e4", "e1"],
    ]
    for rule, order in itertools.product([operator.eq, operator.ge], itertools.permutations(["e1", "e2", "e3", "e4"])):
        model = chordless_cycle(rule)
        model.notify("s5", *order)
        assert model.subscribers["s5"].notified == []


@pytest.mark.parametrize("min_subscriptions", [1, 2])
def test_b_ours_has_one_order_so_no_circle(min_subscriptions: int) -> None:
    for order in itertools.permutations("1234"):
        items = held(s1="12", s2="23", s3="34", s4="14", s5="1234") + events(order)
        assert_our_rules_hold(items, min_subscriptions)


# --- C. An unsubscription takes an entry away that another subscriber still needs -------------------------------------


def unsubscription(rule: Rule) -> PaperModel:
    """r and s hold {T, X}; r delivers e of T and drops T; then e2 of X is published."""
    model = PaperModel("TX", rule=rule)
    model.preload(r="TX", s="TX")
    model.publish("e", "T")
    model.settle()
    model.notify("r", "e")
    model.unsubscribe("r", "T")
    model.settle()
    model.publish("e2", "X")
    model.settle()
    model.notify("r", "e2")
    assert model.timestamps == {"e": {"T": 1, "X": 0}, "e2": {"X": 1}}
    assert model.subscribers["r"].notified == ["e", "e2"]
    return model


def test_c_paper_blocks_for_ever_after_an_unsubscription() -> None:
    model = unsubscription(operator.eq)
    model.notify("s", "e2", "e")
    assert model.subscribers["s"].notified == ["e2"]
    assert model.subscribers["s"].blocked() == ["e"]  # it wants X0, and X stands at 1


def test_c_paper_with_greater_or_equal_breaks_the_order_instead() -> None:
    model = unsubscription(operator.ge)
    model.notify("s", "e2", "e")
    assert model.subscribers["s"].notified == ["e2", "e"]  # r saw e, e2


def test_c_ours_writes_the_entry_once_more() -> None:
    items = [*held(r="TX", s="TX"), Event("T"), change("r", "X"), Event("X"), Event("X"), Event("T")]
    stamps = reference_stamps(items, 2)
    assert [(stamp.topic, stamp.n, stamp.entries) for stamp in stamps] == [
        ("T", 1, {"X": 0}),
        ("X", 1, {"T": 1}),  # the closing entry of T
        ("X", 2, {}),
        ("T", 2, {"X": 2}),  # and the one of X
    ]
    assert_our_rules_hold(items, 2)
    assert_our_rules_hold(items, 1)


def test_c_ours_needs_the_closing_entries() -> None:
    items = [*held(r="TX", s="TX"), Event("T"), change("r", "X"), Event("X")]
    assert [3, 5] in runs(items, "r", 2, closing=False)
    assert [5, 3] in runs(items, "s", 2, closing=False)


# --- D. Dummy events: clocks that a subscription raises and that others have to be told about -------------------------


def test_d_paper_hangs_a_bystander_when_someone_subscribes() -> None:
    """x holds {X} and subscribes T. The dummy {T1, X1} has no entry Z, so z with {T, Z} may never consume it."""
    model = PaperModel("TXZ")
    model.preload(z="TZ", x="X")
    model.subscribe("x", "T")
    model.settle()
    assert model.timestamps["dummy of x on T"] == {"T": 1, "X": 1}
    model.publish("e", "T")
    model.settle()
    assert model.timestamps["e"] == {"T": 2}
    model.notify("z")
    assert model.subscribers["z"].notified == []
    assert model.subscribers["z"].blocked() == ["e"]  # it waits for an event T1 that does not exist


def test_d_paper_hangs_everyone_when_the_new_subscriber_dies() -> None:
    """x dies after TM_T raised its clock and before x published the dummies: nobody ever fills the gap."""
    model = PaperModel("TX")
    model.preload(y="T")
    model.subscribe("x", "T")
    model.deliver("x", "TM_T")  # the completed timestamp never reaches x
    model.publish("e", "T")
    model.deliver("p", "TM_T", "p")
    model.notify("y")
    assert model.subscribers["y"].notified == []
    assert model.subscribers["y"].blocked() == ["e"]


def test_d_paper_loses_an_event_that_a_dummy_overtakes() -> None:
    """Figure 3 does not look at the dummy's own topic, and the ENS may bring the dummy before the event it follows."""
    model = PaperModel("TX")
    model.preload(y="T", x="X")
    model.publish("e", "T")
    model.settle()
    model.subscribe("x", "T")
    model.settle()
    model.notify("y", "dummy of x on T", "e")
    assert model.subscribers["y"].notified == []
    assert model.subscribers["y"].sub_lc == {"T": 2}  # e is T1: skipped in silence


def test_d_paper_loses_events_of_a_kept_topic_on_subscribing_another() -> None:
    """COMPLETED_SUB_VC replaces sub_LC as a whole, also for topics with events still on their way to the subscriber."""
    model = PaperModel("TX")
    model.preload(s="T")
    model.publish("e", "T")
    model.settle()
    model.subscribe("s", "X")
    model.settle()
    model.notify("s", "e")
    assert model.subscribers["s"].notified == []
    assert model.subscribers["s"].sub_lc == {"T": 2, "X": 1}


@pytest.mark.parametrize("min_subscriptions", [1, 2])
def test_d_ours_raises_no_clock_and_sends_no_dummy(min_subscriptions: int) -> None:
    items = [*held(z="TZ", y="T", x="X"), Event("T"), change("x", "TX"), *events("TZX")]
    assert [(stamp.topic, stamp.n) for stamp in reference_stamps(items, min_subscriptions)] == [
        ("T", 1),
        ("T", 2),
        ("Z", 1),
        ("X", 1),
    ]
    assert_our_rules_hold(items, min_subscriptions)


def test_paper_hangs_everyone_when_a_publisher_dies() -> None:
    """The timestamp comes before the event: p1 dies with T1 in its hands. Ours: the record is in the log first."""
    model = PaperModel("T")
    model.preload(s="T")
    model.publish("e1", "T", publisher="p1")
    model.deliver("p1", "TM_T")
    model.publish("e2", "T", publisher="p2")
    model.deliver("p2", "TM_T", "p2")
    model.notify("s")
    assert model.subscribers["s"].blocked() == ["e2"]


# --- E. EpTO compares logical times alone ----------------------------------------------------------------------------

# EpTO's figure 4 (TTL = 2, logical clocks at 1, p before q): q broadcasts `of_q` in round 0, and p broadcasts `of_p`
# in round 2, just before it receives `of_q`; both have ts = 1. The order is meant to be `of_p`, `of_q`.
OF_P = EptoEvent(ts=1, source="p", sequence=1)
OF_Q = EptoEvent(ts=1, source="q", sequence=1)


def epto_q_and_r(key: Key) -> tuple[list[EptoEvent], list[EptoEvent]]:
    """What q delivers (its own event is stable before p's arrives), and r, who gets both in one ball."""
    q, r = (EptoProcess(ttl_rounds=2, key=key) for _ in range(2))
    for ball in [{OF_Q: 0}, {}, {}, {}, {OF_P: 1}, {}, {}]:
        q.order_events(ball)
    for ball in [{OF_Q: 2, OF_P: 2}, {}]:
        r.order_events(ball)
    return q.delivered, r.delivered


def test_e_epto_delivers_a_smaller_event_after_a_larger_one() -> None:
    of_q, of_r = epto_q_and_r(by_ts_alone)
    assert of_q == [OF_Q, OF_P]
    assert of_r == [OF_P, OF_Q]


def test_e_the_whole_key_keeps_the_order() -> None:
    of_q, of_r = epto_q_and_r(by_total_key)
    assert of_q == [OF_Q]  # a hole that q knows of, never an inversion
    assert of_r == [OF_P, OF_Q]


def test_e_the_whole_key_holds_an_event_back_while_a_smaller_one_is_not_stable() -> None:
    """p itself in figure 4: q's event is stable first, and has to wait for p's own."""
    outcomes = []
    for key in (by_ts_alone, by_total_key):
        p = EptoProcess(ttl_rounds=2, key=key)
        for ball in [{OF_P: 0, OF_Q: 2}, {}, {}, {}]:
            p.order_events(ball)
        outcomes.append(p.delivered)
    assert outcomes == [[OF_Q, OF_P], [OF_P, OF_Q]]
