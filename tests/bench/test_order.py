"""What `totalorder bench order` publishes, how it judges which event came first, and what it shows."""

import itertools
import json
import struct
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from kafka import TopicPartition

from totalorder import kafka_clients
from totalorder.bench.live.load import Worker
from totalorder.bench.live.stamps import Stamps
from totalorder.bench.order.command import GAPS_MS, TOPIC_ORDER, Plan, cases_of, drawn
from totalorder.bench.order.load import CLOCKS_MS, COPIED, Case, Pair, Place, are_children_first, publish_pairs
from totalorder.bench.order.page import Judged, Variant, page, summary, tables
from totalorder.bench.outcome import Size
from totalorder.broker import LocalBroker
from totalorder.config import Settings
from totalorder.errors import Error

_BOUND_S = 60.0
PLAIN, APPENDED = Variant(kind="plain", partitions=2), Variant(kind="log-append", partitions=64)


def case(gap_ms: int | None = 1, clock: str = "honest", *, parent_named_first: bool = True) -> Case:
    return Case(gap_ms=gap_ms, clock=clock, parent_named_first=parent_named_first)


# --- what is published ------------------------------------------------------------------------------------------------


def test_cases_are_all_gaps_by_all_clocks_by_both_orders_of_names() -> None:
    live = cases_of(PLAIN, read=False)
    assert len(live) == len(set(live)) == len(GAPS_MS) * len(CLOCKS_MS) * 2
    assert {each.gap_ms for each in cases_of(PLAIN, read=True)} == {None}
    assert {each.clock for each in cases_of(APPENDED, read=False)} == {"2 s behind"}
    assert {each.parent_named_first for each in cases_of(Variant(kind=TOPIC_ORDER, partitions=2), read=False)} == {
        False
    }


@pytest.mark.parametrize("size", Size)
def test_topic_order_is_measured_where_there_is_such_a_setting(size: Size) -> None:
    kinds = {variant.kind for variant in Plan.of(size).variants()}
    assert kinds == {"plain", "log-append"} | ({TOPIC_ORDER} & Settings.model_fields.keys())


def test_pairs_are_in_mixed_order_but_a_clock_is_alone() -> None:
    live = cases_of(PLAIN, read=False)
    cases = drawn(live, 10 * len(live))
    assert {cases.count(each) for each in live} == {10}
    groups = [(each.clock, each.parent_named_first) for each in cases]
    assert sum(one != other for one, other in itertools.pairwise(groups)) == 7
    assert len({each.gap_ms for each in cases[:20]}) > 3


def _records(broker: LocalBroker, topics: Sequence[str]) -> dict[Place, tuple[int, int, bool]]:
    """(timestamp, pair, whether it is a child) of each record of two topics of two partitions."""
    consumer = kafka_clients.consumer(broker.bootstrap_servers)
    sources = [TopicPartition(topic, partition) for topic in topics for partition in range(2)]
    consumer.assign(sources)
    consumer.seek_to_beginning(*sources)
    ends, found = consumer.end_offsets(sources), {}
    while any(consumer.position(source) < ends[source] for source in sources):
        for source, records in consumer.poll(timeout_ms=200).items():
            for record in records:
                pair, is_child = struct.unpack_from("<q?", record.value)
                found[Place(source.topic, source.partition, record.offset)] = (record.timestamp, pair, is_child)
    consumer.close()
    return found


def test_pairs_are_published_as_their_cases_say(broker: LocalBroker, new_topic: Callable[..., str]) -> None:
    topics = tuple(sorted((new_topic("pairs", partitions=2), new_topic("pairs", partitions=2))))
    cases = [
        case(gap_ms=gap, clock=clock, parent_named_first=first)
        for gap in (0, 20)
        for clock in CLOCKS_MS
        for first in (True, False)
    ]
    with Worker(publish_pairs, broker.bootstrap_servers, topics, 2, cases, 200) as publisher:
        pairs: list[Pair] = publisher.hear("publish pairs", _BOUND_S)
    records = _records(broker, topics)
    assert [pair.case for pair in pairs] == cases
    assert len(records) == 2 * len(pairs)
    for number, pair in enumerate(pairs):
        (parent_ms, *parent), (child_ms, *child) = records[pair.parent], records[pair.child]
        assert (parent, child) == ([number, False], [number, True])
        assert pair.parent.topic == topics[not pair.case.parent_named_first]
        assert pair.child.topic == topics[pair.case.parent_named_first]
        assert pair.gap_s * 1_000 >= (pair.case.gap_ms or 0)
        assert 0 < pair.acknowledged_s < _BOUND_S
        if pair.case.clock == COPIED:
            assert child_ms == parent_ms
        else:
            assert child_ms >= parent_ms + CLOCKS_MS[pair.case.clock]
    assert {pair.parent.partition for pair in pairs} == {0, 1}


# --- what is judged ---------------------------------------------------------------------------------------------------


def _stamps(order: Sequence[Place]) -> Stamps:
    """Of events in this order in π."""
    sources = tuple(sorted({(place.topic, place.partition) for place in order}))
    none = np.zeros(0, dtype=np.int64)
    return Stamps(
        topics=(),
        sources=sources,
        g=np.arange(1, len(order) + 1) * 3,
        n=none,
        topic=none,
        source=np.array([sources.index((place.topic, place.partition)) for place in order], dtype=np.int64),
        offset=np.array([place.offset for place in order], dtype=np.int64),
        entry_g=none,
        entry_topic=none,
        entry_n=none,
    )


def test_a_child_is_first_where_its_place_in_the_order_is_the_lower() -> None:
    parent, child, other = Place("a", 0, 7), Place("b", 1, 7), Place("b", 0, 7)
    pairs = [
        Pair(case(), parent, child, 0.0, 0.0),
        Pair(case(), parent, other, 0.0, 0.0),
        Pair(case(), other, child, 0.0, 0.0),
    ]
    assert are_children_first(pairs, _stamps([child, parent, other])) == [True, False, True]


def test_an_event_without_a_stamp_is_an_error() -> None:
    parent, child = Place("a", 0, 7), Place("b", 1, 7)
    for order in ([parent], [parent, Place("b", 1, 8)], [parent, Place("b", 0, 7)]):
        with pytest.raises(Error, match="no stamp came for the event at"):
            are_children_first([Pair(case(), parent, child, 0.0, 0.0)], _stamps(order))


# --- what is shown ----------------------------------------------------------------------------------------------------


def judged(each: Case, children_first: int, pairs: int, gap_s: float = 0.001) -> list[Judged]:
    return [Judged(each, gap_s, 0.004, number < children_first) for number in range(pairs)]


def found() -> dict[Variant, list[Judged]]:
    plain = [
        *judged(case(0, parent_named_first=False), 60, 100),
        *judged(case(20, parent_named_first=False), 0, 100, gap_s=0.020),
        *judged(case(None, parent_named_first=False), 0, 100),
        *judged(case(0, "2 s behind"), 1, 1_000),
        *judged(case(20, "2 s behind"), 1_000, 1_000, gap_s=0.020),
        *judged(case(None, "2 s behind"), 3, 1_000),
    ]
    appended = judged(case(0, "2 s behind"), 2, 4)
    return {PLAIN: plain, APPENDED: appended}


def test_each_case_has_its_count_and_its_gap() -> None:
    data = json.loads(json.dumps(summary(100, found())))
    assert (data["children_first"], data["pairs"]) == (1_066, 3_304)
    assert data["cases"][0] == {
        "kind": "plain",
        "partitions": 2,
        "parent_named_first": True,
        "clock": "2 s behind",
        "gap_ms": 0,
        "pairs": 1_000,
        "children_first": 1,
        "true_gap_ms": {"median": 1.0, "p99": 1.0},
        "acknowledged_ms": {"median": 4.0, "p99": 4.0},
    }
    assert [each["gap_ms"] for each in data["cases"][:3]] == [0, 20, None]


def test_a_single_child_is_not_rounded_away() -> None:
    data = summary(100, found())
    plain, appended, times = tables(data)
    assert all(len(row) == len(table.columns) for table in (plain, appended, times) for row in table.rows)
    assert list(plain.columns) == ["partitions", "names", "clock", "0", "20", "read"]
    assert [list(row) for row in plain.rows] == [
        ["2", "parent, child", "2 s behind", "1 of 1,000", "100.0%", "3 of 1,000"],
        ["2", "child, parent", "honest", "60.0%", "0", "0"],
    ]
    assert [list(row) for row in appended.rows] == [["64", "parent, child", "the broker's", "50.0%"]]
    assert [list(row) for row in times.rows] == [
        ["acknowledgement, 2 partitions", "4.00", "4.00"],
        ["acknowledgement, 64 partitions", "4.00", "4.00"],
        ["gap 0", "1.00", "1.00"],
        ["gap 20", "20.00", "20.00"],
        ["gap read", "1.00", "1.00"],
    ]
    assert "| 2 | child, parent | honest | 60.0% | 0 | 0 |" in page(data)
