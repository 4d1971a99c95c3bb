"""A batch's end in Spark's log: there and back, refused when damaged, and taken apart into slices."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from totalorder.errors import StateError
from totalorder.streaming.cut.offset import (
    MAX_ADVANCES,
    MAX_LOOKS,
    MAX_OFFSET,
    Advance,
    BatchEnd,
    Looks,
    Span,
    slices_of,
)
from totalorder.streaming.cut.ranges import SliceEnd

Ends = dict[int, tuple[int, ...]]


@st.composite
def batches(draw: st.DrawFn) -> tuple[BatchEnd, BatchEnd, dict[tuple[int, int], int]]:
    """A begin, an end, and starts of what is new in the end; topics come, grow and go."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    numbers = sorted(rng.sample(range(12), rng.randint(1, 5)))
    begins: Ends = {
        n: tuple(rng.randint(0, 50) for _ in range(rng.randint(1, 4))) for n in numbers if rng.random() < 0.7
    }
    starts: dict[tuple[int, int], int] = {}
    ends: Ends = {}
    looks: list[dict[int, int]] = [{} for _ in range(rng.randint(0, 5))]
    place = 0
    for number in numbers:
        if number in begins and rng.random() < 0.2:
            continue
        row = []
        for partition in range(len(begins.get(number, ())) + rng.randint(number not in begins, 2)):
            at = begins[number][partition] if partition < len(begins.get(number, ())) else rng.choice([0, 0, 7])
            if at == 7:
                starts[(number, partition)] = 7
            for look in looks:
                if rng.random() < 0.4:
                    look[place] = rng.randint(1, 9)
                    at += look[place]
            row.append(at + rng.choice([0, rng.randint(0, 20)]))
            place += 1
        ends[number] = tuple(row)
    cut = rng.randint(0, 2**40)
    begin = BatchEnd(cut=cut, order=-1, ends=begins)
    packed = Looks.of(sorted(look.items()) for look in looks if look)
    return begin, BatchEnd(cut=cut + 1, order=rng.randint(-1, 3), ends=ends, looks=packed), starts


def naive_spans(begin: BatchEnd, end: BatchEnd, starts: dict[tuple[int, int], int]) -> list[Span]:
    """Offset by offset: its slice is the first look that has it."""
    spans = []
    for place, (number, partition) in enumerate(end.places):
        known = begin.ends.get(number, ())
        at = known[partition] if partition < len(known) else starts.get((number, partition), 0)
        until = end.ends[number][partition]
        sight = [at]
        for look in end.looks:
            sight.append(sight[-1] + sum(advance.offsets for advance in look if advance.place == place))
        slice_of = [
            next((k for k, seen in enumerate(sight[1:]) if offset < seen), len(end.looks))
            for offset in range(at, until)
        ]
        last = {number_of_slice: at + i + 1 for i, number_of_slice in enumerate(slice_of)}
        if until > at:
            spans.append(Span(number, partition, at, until, tuple(SliceEnd(k, last[k]) for k in sorted(last))))
    return spans


@given(batches())
def test_there_and_back_through_json(batch: tuple[BatchEnd, BatchEnd, Any]) -> None:
    for end in batch[:2]:
        assert BatchEnd.decode(json.loads(json.dumps(end.encode())), "it") == end


@given(batches())
def test_slices_are_those_that_count_offset_by_offset(
    batch: tuple[BatchEnd, BatchEnd, dict[tuple[int, int], int]],
) -> None:
    assert slices_of(*batch) == naive_spans(*batch)


def test_looks_are_read_by_people_as_place_and_count() -> None:
    end = BatchEnd(cut=3, order=-1, ends={0: (5,), 4: (9, 2)}, looks=Looks.of([[(0, 1), (2, 1)], [(1, 4)]]))
    assert list(end.looks) == [(Advance(0, 1), Advance(2, 1)), (Advance(1, 4),)]
    assert end.places == [(0, 0), (4, 0), (4, 1)]
    assert json.dumps(end.encode()) == (
        '{"version": 1, "cut": 3, "order": -1, "ends": {"0": [5], "4": [9, 2]}, "looks": [[0, 1, 2, 1], [1, 4]]}'
    )


def test_the_order_in_which_a_log_has_the_topics_does_not_matter() -> None:
    end = BatchEnd(cut=3, order=-1, ends={0: (5,), 4: (9, 2)})
    content = end.encode()
    assert BatchEnd.decode({**content, "ends": dict(reversed(content["ends"].items()))}, "it").places == end.places


def test_many_looks_of_few_partitions_keep_their_order() -> None:
    looks = [[(k % 3, 1)] for k in range(300)]
    end = BatchEnd(cut=1, order=-1, ends={0: (300,) * 3}, looks=Looks.of(looks))
    begin = BatchEnd(cut=0, order=-1, ends={0: (0,) * 3})
    assert slices_of(begin, end, {}) == naive_spans(begin, end, {})


GOOD = {"version": 1, "cut": 3, "order": -1, "ends": {"0": [5], "4": [9, 2]}, "looks": [[0, 1, 2, 1], [1, 4]]}
MANY = MAX_LOOKS + 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2"),
        ({"version": True}, "version True"),
        ({"version": "1" * 999}, "version '1111"),
        ({"more": 1}, "fields"),
        ({"cut": -1}, "cut -1"),
        ({"cut": True}, "integer"),
        ({"cut": 2**60}, "cut"),
        ({"cut": 1.0}, "integer"),
        ({"order": -2}, "order -2"),
        ({"order": "0"}, "integer"),
        ({"order": 2**31}, "order"),
        ({"ends": [[5]]}, "mapping"),
        ({"ends": {"0": 5}}, "list"),
        ({"ends": {"0": [5], "4": []}, "looks": []}, "no partition"),
        ({"ends": {"0": [5], "4": [9, -1]}, "looks": []}, "offset"),
        ({"ends": {"0": [MAX_OFFSET + 1]}, "looks": []}, "offset"),
        ({"ends": {"0": [2**70]}, "looks": []}, "offset"),
        ({"ends": {"0": [True]}, "looks": []}, "integer"),
        ({"ends": {"0": [None]}, "looks": []}, "integer"),
        ({"ends": {"-1": [5]}, "looks": []}, "topic's number"),
        ({"ends": {"00": [5]}, "looks": []}, "topic's number"),
        ({"ends": {"٣": [5]}, "looks": []}, "topic's number"),
        ({"ends": {"": [5]}, "looks": []}, "topic's number"),
        ({"ends": {"9" * 10: [5]}, "looks": []}, "numbers"),
        ({"ends": {"9" * 5000: [5]}, "looks": []}, "topic's number"),
        ({"ends": {7: [5]}, "looks": []}, "topic's number"),
        ({"ends": {"0": [0] * 100_001}, "looks": []}, "partitions"),
        ({"looks": {}}, "no list"),
        ({"looks": ["01"]}, "list"),
        ({"looks": [[0, 1], []]}, "empty"),
        ({"looks": [[0, 1, 2]]}, "without a count"),
        ({"looks": [[0, 0]]}, "count"),
        ({"looks": [[0, -1]]}, "count"),
        ({"looks": [[0, 2**80]]}, "count"),
        ({"looks": [[0, 1.5]]}, "integer"),
        ({"looks": [[3, 1]]}, "no partition"),
        ({"looks": [[-1, 1]]}, "no partition"),
        ({"looks": [[2, 1, 0, 1]]}, "ascend"),
        ({"looks": [[0, 1, 0, 1]]}, "ascend"),
        ({"looks": [[0, 3], [0, 3]]}, "more than the ends"),
        ({"looks": [[0, MAX_OFFSET]] * MAX_LOOKS}, "more than the ends"),
        ({"ends": {"0": [MANY]}, "looks": [[0, 1]] * MANY}, "too many"),
        (
            {"ends": {"0": [9] * 50}, "looks": [[p for i in range(50) for p in (i, 1)]] * (MAX_ADVANCES // 50 + 2)},
            "many",
        ),
    ],
)
def test_what_is_damaged_is_refused_with_its_place_and_reason(change: dict[str, Any], said: str) -> None:
    BatchEnd.decode(GOOD, "offset 7")
    with pytest.raises(StateError, match=r"^offset 7 (is damaged|has version)") as refused:
        BatchEnd.decode({**GOOD, **change}, "offset 7")
    assert said in str(refused.value)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("content", [None, [], "x", 7, {}, {k: v for k, v in GOOD.items() if k != "looks"}])
def test_what_is_no_batch_end_at_all_is_refused(content: Any) -> None:
    with pytest.raises(StateError, match="offset 7 is damaged"):
        BatchEnd.decode(content, "offset 7")


def test_an_impossible_end_cannot_be_made() -> None:
    with pytest.raises(StateError, match="ascend"):
        BatchEnd(cut=1, order=-1, ends={4: (1,), 0: (1,)})
    with pytest.raises(StateError, match="length"):
        BatchEnd(cut=1, order=-1, ends={0: (9,)}, looks=Looks(sizes=(1,), places=(0, 0), counts=(1, 1)))
    with pytest.raises(StateError, match="without a look"):
        BatchEnd(cut=1, order=-1, ends={0: (9,)}, looks=Looks(places=(0,), counts=(1,)))


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (BatchEnd(cut=9, order=-1, ends={0: (5, 5)}), "one does not follow the other"),
        (BatchEnd(cut=8, order=-1, ends={0: (5,)}), "lost partitions"),
        (BatchEnd(cut=8, order=-1, ends={0: (5, 4)}), "partition 1 of topic number 0 at 4"),
        (BatchEnd(cut=8, order=-1, ends={0: (6, 5)}, looks=Looks.of([[(0, 2)]])), "partition 0 of topic number 0 at 6"),
        (BatchEnd(cut=8, order=-1, ends={0: (5, 5), 1: (2,)}), "partition 0 of topic number 1 at 2"),
    ],
)
def test_an_end_that_does_not_follow_its_begin_is_refused(end: BatchEnd, said: str) -> None:
    with pytest.raises(StateError, match=said):
        slices_of(BatchEnd(cut=7, order=-1, ends={0: (5, 5)}), end, {(1, 0): 3})
