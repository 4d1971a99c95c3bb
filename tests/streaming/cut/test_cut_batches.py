"""From chunks to the engine's batch: however a batch is cut into chunks, and in whatever order they come."""

from typing import Any

import pytest
from chunked import chunk_of
from hypothesis import given, settings, strategies as st

from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch, Row
from totalorder.streaming.cut.batches import to_batch

CONTROL = "d.control"


def batch(parts: list[list[Row]], topic_by: str = "key") -> Batch:
    chunks = [chunk_of(rows, topic_order=("b", "a")) for rows in parts]
    return to_batch(chunks, time_ms=9, control_topic=CONTROL, topic_by=topic_by)


def rows_of(found: Batch) -> list[Row]:
    """The batch as rows again, in order of place."""
    names = [*found.topics, ""]
    return [
        Row(
            kafka_topic=found.kafka_topics[found.kafka_topic[at]].name,
            topic_id=found.kafka_topics[found.kafka_topic[at]].topic_id,
            partition=int(found.partition[at]),
            offset=int(found.offset[at]),
            timestamp_ms=int(found.timestamp_ms[at]),
            topic=names[found.topic[at]],
            crc=int(found.crc[at]),
            control=found.control.get(at),
            slice=int(found.slice[at]),
        )
        for at in range(len(found.offset))
    ]


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.topic_id, *row[:3]))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_every_row_comes_through_however_it_is_cut(data: Any) -> None:
    names = ("", "x", "x\0", "x\0y")
    rows = [
        Row(f"k{at % 3}", at % 2, at, 900 + at % 7, names[at % 4], crc=at * 7919 % 2**32, slice=at // 5, topic_id=i)
        for at in range(20)
        for i in ("old", "new")[at % 2 :]
    ]
    rows += [Row(CONTROL, 0, at, 5, control=b"request") for at in range(2)]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1), max_size=5)))
    shuffled = data.draw(st.permutations(rows))
    found = batch([shuffled[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)])
    assert in_order(rows_of(found)) == in_order(rows)
    assert (found.cut, found.topic_order, found.time_ms) == (1, ("b", "a"), 9)
    assert sorted(found.topics) == sorted(names[1:])
    assert sorted(found.kafka_topics) == [(CONTROL, ""), *((f"k{at}", i) for at in range(3) for i in ("new", "old"))]


def test_kafka_topics_name_the_topics() -> None:
    found = batch([[Row("a", 0, 0, 1), Row("b", 0, 0, 2)], [Row(CONTROL, 0, 0, 3, control=b"?")]], "topic")
    assert [found.topics[code] if code >= 0 else "" for code in found.topic.tolist()] == ["a", "b", ""]
    assert found.control == {2: b"?"}


def test_two_topics_of_one_name_are_one_pub_sub_topic() -> None:
    found = batch([[Row("a", 0, 0, topic_id="1")], [Row("a", 0, 0, topic_id="2")]], "topic")
    assert found.topics == ("a",)
    assert found.topic.tolist() == [0, 0]
    assert found.kafka_topics == (("a", "1"), ("a", "2"))
    assert found.kafka_topic.tolist() == [0, 1]


def test_events_without_a_name_stay_without_one() -> None:
    found = batch([[Row("a", 0, 0), Row("b", 0, 0)]])
    assert found.topics == ()
    assert found.topic.tolist() == [-1, -1]


def test_chunks_of_two_cuts_are_refused() -> None:
    chunks = [chunk_of([Row("a", 0, cut)], cut=cut) for cut in (1, 2)]
    with pytest.raises(StateError, match="two cuts"):
        to_batch(chunks, time_ms=1, control_topic=CONTROL, topic_by="key")
