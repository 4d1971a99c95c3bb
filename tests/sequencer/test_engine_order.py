"""The engine gives positions in the order of the definition: slices, times, the order of topics, ranks."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from engine_world import DOMAIN, configs
from hypothesis import given, strategies as st
from reference import Logged, reference_order

from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.wire.stamps import KafkaTopic

CONTROL = f"{DOMAIN}.control"
sources = st.sampled_from([(CONTROL, 0), *((name, partition) for name in "abc" for partition in range(2))])


@st.composite
def logs(draw: st.DrawFn) -> list[Logged]:
    """The records of a batch; along a partition slices rise."""
    places = draw(st.lists(st.tuples(sources, st.integers(0, 9)), unique=True, max_size=20))
    slices = sorted(draw(st.lists(st.integers(0, 2), min_size=len(places), max_size=len(places))))
    found: list[Logged] = []
    for source in dict.fromkeys(source for source, _ in places):
        offsets = sorted(offset for other, offset in places if other == source)
        own = sorted(draw(st.permutations(slices))[: len(offsets)])
        found += [
            Logged(*source, at, draw(st.integers(0, 20)), slice_) for at, slice_ in zip(offsets, own, strict=True)
        ]
    return found


@given(
    records=logs(),
    time_ms=st.integers(0, 20),
    topic_order=st.lists(st.sampled_from([*"abcd", CONTROL]), unique=True),
    known=st.permutations("abc"),
)
def test_a_batch_is_stamped_in_the_order_of_its_definition(
    records: list[Logged], time_ms: int, topic_order: list[str], known: list[str]
) -> None:
    """The ranks were given before, in batches of one event each."""
    state = initial_state(configs(partitions=1)[0])
    for name in known:
        state, _ = step(state, Batch.of(time_ms, [Row(name, 7, 0, 0, "T")]), {})
    _, done = step(state, Batch.of(time_ms, map(row_of, records), topic_order=tuple(topic_order)), {})
    ranks = {KafkaTopic(name, ""): rank for rank, name in enumerate(known)}
    expected = reference_order(records, time_ms=time_ms, topic_order=topic_order, ranks=ranks)
    assert list(places_of(done)) == [record[:3] for record in expected]


def row_of(record: Logged) -> Row:
    control = b"" if record.kafka_topic == CONTROL else None
    return Row(*record[:4], topic="T", control=control, slice=record.slice)


def places_of(effects: Effects) -> Iterator[tuple[str, int, int]]:
    """What took positions, in their order: Kafka topic, partition, offset."""
    found = {answer.g: (CONTROL, 0, getattr(answer, "offset", -1)) for answer in effects.answers}
    for stamped in effects.stamps:
        rows = stamped.rows
        for g, source, offset in zip(rows.g.tolist(), rows.source.tolist(), rows.offset.tolist(), strict=True):
            found[g] = (stamped.sources[source].topic, stamped.sources[source].partition, offset)
    return (found[g] for g in sorted(found))


def test_a_new_topic_gets_its_rank_by_name_and_its_turn_by_the_order_of_topics() -> None:
    rows = [Row(name, 0, 0, 1, "T") for name in "abcd"]
    assert stamped_topics(rows) == "abcd"
    assert stamped_topics(rows, topic_order=("d", "b")) == "dbac"


def test_the_order_of_topics_decides_between_equal_times_of_one_slice_only() -> None:
    rows = [Row("a", 0, 0, 1, "T"), Row("b", 0, 0, 2, "T")]
    assert stamped_topics(rows, topic_order=("b", "a")) == "ab"
    rows = [Row("a", 0, 0, 1, "T", slice=0), Row("b", 0, 0, 1, "T", slice=1)]
    assert stamped_topics(rows, topic_order=("b", "a")) == "ab"


def stamped_topics(rows: Iterable[Row], topic_order: tuple[str, ...] = ()) -> str:
    _, done = step(initial_state(configs(partitions=1)[0]), Batch.of(10, rows, topic_order=topic_order), {})
    return "".join(name for name, *_ in places_of(done))


def test_a_slice_that_falls_along_a_partition_stops_the_job() -> None:
    rows = [Row("all", 0, 3, 1, "T", slice=2), Row("all", 0, 4, 1, "T", slice=1), Row("all", 1, 0, 1, "T")]
    with pytest.raises(
        StateError, match=r"offset 4 of all\[0\] is in slice 1 of cut 7, and an earlier offset in a later"
    ):
        step(initial_state(configs()[0]), Batch.of(10, rows, cut=7), {})
    rows = [Row(CONTROL, 0, 0, control=b"", slice=1), Row(CONTROL, 0, 1, control=b"")]
    with pytest.raises(StateError, match=r"offset 1 of d.control\[0\] is in slice 0 of cut 1"):
        step(initial_state(configs()[0]), Batch.of(10, rows), {})


def test_stamps_name_the_cut_and_answer_for_it_with_their_digest() -> None:
    _, done = step(initial_state(configs(partitions=1)[0]), Batch.of(10, [Row("all", 0, 0, 1, "T")], cut=7), {})
    (stamped,) = done.stamps
    assert stamped.cut == 7
    assert replace(stamped, cut=8).compute_digest() != stamped.digest == stamped.compute_digest()


def test_a_batch_with_a_topic_twice_in_the_order_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        Batch.of(1, [], topic_order=("a", "b", "a"))


def test_a_batch_without_some_rows_keeps_the_slices_of_the_others() -> None:
    batch = Batch.of(1, [Row("a", 0, at, slice=at) for at in range(4)], cut=3, topic_order=("a",))
    left = batch.without([1])
    assert (left.slice.tolist(), left.offset.tolist()) == ([0, 2, 3], [0, 2, 3])
    assert (left.cut, left.topic_order) == (3, ("a",))
