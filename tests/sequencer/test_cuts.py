"""Cuts on the wire: what goes in comes out from the nearest key cut on; what does not belong is named."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from cut_runs import runs
from hypothesis import given, settings, strategies as st

from totalorder.errors import Contradiction, EventsLost, LimitExceeded, WireError
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.cuts import KEY_EVERY, Cut, CutEncoder, CutsAssembler, SlicePart, encode_cut
from totalorder.sequencer.wire.limits import MAX_CUT_ADVANCES, MAX_CUT_SLICES
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source

A, B, C = Source("a", "id-a", 0), Source("a", "id-a", 1), Source("b", "id-b", 0)
Look = list[tuple[int, int]]
BIG = 2**62 - 1


def cut(number: int, begins: Sequence[int], ends: Sequence[int], looks: Iterable[Look] = (), **more: object) -> Cut:
    given = {"domain": "d", "incarnation": 1, "sources": (A, B, C)[: len(begins)]} | more
    return Cut.of(cut=number, begins=begins, ends=ends, looks=looks, **given)  # type: ignore[arg-type]


def headers(record: WireRecord) -> dict[str, bytes]:
    return dict(record.headers)


def read(assembler: CutsAssembler, *records: WireRecord) -> list[Cut]:
    return [found for record in records for found in assembler.add(record.value, headers(record))]


def says(cut: Cut) -> tuple[object, ...]:
    """All that a cut says, as plain values."""
    columns = (cut.begins, cut.slice_start, cut.place, cut.count)
    return (cut.domain, cut.incarnation, cut.cut, cut.sources, cut.topic_order, *[c.tolist() for c in columns])


def same(found: Sequence[Cut], expected: Sequence[Cut]) -> None:
    assert list(map(says, found)) == list(map(says, expected))


@given(run=runs(), key_every=st.integers(1, 4), data=st.data())
def test_what_goes_in_comes_out_from_the_first_key_cut_on(run: list[Cut], key_every: int, data: st.DataObject) -> None:
    encoder = CutEncoder(key_every=key_every)
    records = [encoder.encode(one) for one in run]
    begin = data.draw(st.integers(0, len(run) - 1))
    keys = [at for at, record in enumerate(records) if headers(record)["key"] == b"1" and at >= begin]
    same(read(CutsAssembler(domain="d"), *records[begin:]), run[keys[0] :] if keys else [])


@given(run=runs())
def test_slices_are_those_of_a_dumb_twin(run: list[Cut]) -> None:
    for one in run:
        at = dict(zip(one.sources, one.begins.tolist(), strict=True))
        slices = []
        for number, (start, end) in enumerate(zip(one.slice_start[:-1], one.slice_start[1:], strict=True)):
            for place, count in zip(one.place[start:end].tolist(), one.count[start:end].tolist(), strict=True):
                source = one.sources[place]
                slices.append(SlicePart(number, source, at[source], at[source] + count))
                at[source] += count
        assert list(one.parts) == slices
        assert one.ends.tolist() == [at[source] for source in one.sources]
        again = Cut.of(
            **{
                name: getattr(one, name) for name in ("domain", "incarnation", "cut", "sources", "topic_order", "looks")
            },
            begins=one.begins.tolist(),
            ends=one.ends.tolist(),
        )
        same([again], [one])
        assert again.same_as(one)


def test_looks_are_those_of_a_batch_s_offset() -> None:
    """What the last look lacks to the ends is the last slice; a look may have nothing new."""
    one = cut(1, [5, 0, 7], [9, 3, 7], [[(1, 2)], [], [(1, 1), (0, 3)]])
    assert one.looks == (((1, 2),), (), ((0, 3), (1, 1)))
    assert one.parts == (SlicePart(0, B, 0, 2), SlicePart(2, A, 5, 8), SlicePart(2, B, 2, 3), SlicePart(3, A, 8, 9))


def test_a_key_cut_comes_first_and_each_so_often_and_where_more_has_changed_than_ends() -> None:
    encoder = CutEncoder()
    many = [cut(number, [number - 1], [number]) for number in range(1, 3 * KEY_EVERY)]
    keys = [headers(encoder.encode(one))["key"] for one in many]
    assert keys == ([b"1"] + [b"0"] * (KEY_EVERY - 1)) * 2 + [b"1"] + [b"0"] * (KEY_EVERY - 2)
    last = len(many)
    for changed in (
        cut(last + 1, [last, 0], [last, 1]),  # a source joins
        cut(last + 2, [last, 1], [last, 2], topic_order=("a",)),
        cut(last + 4, [last, 2], [last, 3], topic_order=("a",)),  # a number is left out
        cut(last + 5, [last, 4], [last, 5], topic_order=("a",)),  # an offset is
        cut(last + 6, [last, 5], [last, 6], topic_order=("a",), domain="e"),
    ):
        assert headers(encoder.encode(changed))["key"] == b"1"
    assert headers(encoder.encode(cut(last + 7, [last, 6], [last, 7], topic_order=("a",), domain="e")))["key"] == b"0"


def test_where_few_batches_come_a_key_cut_comes_by_time() -> None:
    """Else retention would take one before the next: who needs to know all topics would find none."""
    encoder = CutEncoder()
    times = [100, 400, 699, 700, 1_299, 90_000]
    many = [cut(number, [number - 1], [number]) for number in range(1, len(times) + 1)]
    keys = [headers(encoder.encode(one, now_s=at))["key"] for one, at in zip(many, times, strict=True)]
    assert keys == [b"1", b"0", b"0", b"1", b"0", b"1"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"cut": 0}, "cut is out of range"),
        ({"incarnation": -1}, "incarnation is out"),
        ({"sources": (A, A, C)}, "twice"),
        ({"sources": (A, B, Source("x" * 250, "i", 0))}, "no text"),
        ({"sources": (A, B, Source("x", "", 0))}, "no text"),
        ({"sources": (A, B, Source("x", "i", -1))}, "partition"),
        ({"topic_order": ("a", "a")}, "twice"),
        ({"begins": [0, -1, 0]}, "below 0"),
        ({"ends": [9, 3, 6]}, "look is beyond|does not advance|ascend|end"),
        ({"looks": [[(0, 5)]]}, "look is beyond"),
        ({"looks": [[(0, 0)]]}, "does not advance"),
        ({"looks": [[(0, 1), (0, 1)]]}, "do not ascend"),
        ({"looks": [[(3, 1)]]}, "where no source is"),
        ({"ends": [BIG + 1, 3, 8]}, "beyond all offsets"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], why: str) -> None:
    right: dict[str, object] = {
        "begins": [5, 0, 7],
        "ends": [9, 3, 7],
        "cut": 1,
        "looks": [[(0, 1)]],
        "topic_order": (),
    }
    right |= {"sources": (A, B, C), "domain": "d", "incarnation": 1}
    Cut.of(**right)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=why):
        Cut.of(**right | wrong)  # type: ignore[arg-type]


def test_own_topics_of_the_longest_domain_fit_kafka_s_limit_of_names() -> None:
    assert max(len(name) for name in DomainTopics(domain="d" * 100 + "." + "e" * 60).own()) <= 249
    assert DomainTopics(domain="d").cuts == "d.cuts"
    assert "d.cuts" in DomainTopics(domain="d").own()


# --- a number that comes again ----------------------------------------------------------------------------------------


def key(one: Cut) -> WireRecord:
    return encode_cut(one, is_key=True)


def delta(one: Cut) -> WireRecord:
    return encode_cut(one, is_key=False)


ONE, TWO, THREE = cut(1, [0], [4], [[(0, 1)]]), cut(2, [4], [5]), cut(3, [5], [9])
OTHER_TWO, OTHER_THREE = cut(2, [4], [6]), cut(3, [6], [9])


def test_what_was_there_is_dropped() -> None:
    found = read(
        CutsAssembler(domain="d"), key(ONE), key(ONE), delta(TWO), key(TWO), delta(TWO), key(ONE), delta(THREE)
    )
    same(found, [ONE, TWO, THREE])


def test_a_cut_that_never_reached_spark_s_log_is_replaced_by_the_next_of_its_number() -> None:
    found = read(CutsAssembler(domain="d"), key(ONE), delta(TWO), key(OTHER_TWO), delta(OTHER_THREE))
    same(found, [ONE, TWO, OTHER_TWO, OTHER_THREE])


def test_the_cut_from_which_the_next_goes_on_counts_whatever_came_between() -> None:
    """A second process lost the race for Spark's log, and its cut came last."""
    for last in (delta(THREE), key(THREE)):
        found = read(CutsAssembler(domain="d"), key(ONE), delta(TWO), key(OTHER_TWO), last, key(OTHER_TWO))
        same(found, [ONE, TWO, OTHER_TWO, TWO, THREE])


def test_a_cut_that_did_not_know_of_a_new_partition_counts_no_more_for_it() -> None:
    """The next one would go on from it too, if the partition that is new there could begin where it likes."""
    stamped, late = cut(2, [4, 7], [5, 8]), cut(2, [4], [5])
    after = cut(3, [5, 8], [6, 8])
    for last in (delta(after), key(after)):
        found = read(CutsAssembler(domain="d"), key(ONE), key(stamped), key(late), last)
        same(found, [ONE, stamped, late, stamped, after])


@pytest.mark.parametrize("behind", [delta(THREE), key(THREE), delta(cut(4, [9], [10]))])
def test_reading_that_began_at_a_cut_that_never_ran_begins_anew(behind: WireRecord) -> None:
    five, six = cut(5, [10], [11]), cut(6, [11], [12])
    assembler = CutsAssembler(domain="d")
    same(read(assembler, key(OTHER_TWO)), [OTHER_TWO])
    is_key = headers(behind)["key"] == b"1"
    same(read(assembler, behind), [THREE] if is_key else [])
    if not is_key:
        same(read(assembler, delta(cut(4, [9], [10])), key(five), delta(six)), [five, six])
        with pytest.raises(EventsLost, match="from cut 6 to 8"):
            read(assembler, key(cut(8, [0], [1])))


def test_the_domain_s_first_cut_is_where_all_goes_on_from() -> None:
    for wrong in (delta(cut(2, [3], [5])), key(cut(2, [3], [5]))):
        with pytest.raises(Contradiction, match="cut 2 of"):
            read(CutsAssembler(domain="d"), key(ONE), wrong)
    with pytest.raises(EventsLost, match="from cut 1 to 3"):
        read(CutsAssembler(domain="d"), key(ONE), key(THREE))


def test_what_came_first_counts_again_when_it_comes_again() -> None:
    assembler = CutsAssembler(domain="d")
    same(read(assembler, key(ONE), delta(TWO), key(OTHER_TWO), key(TWO)), [ONE, TWO, OTHER_TWO, TWO])
    same(read(assembler, delta(THREE)), [THREE])


def test_looks_alone_make_another_cut() -> None:
    one, other = cut(2, [4], [6]), cut(2, [4], [6], [[(0, 1)]])
    found = read(CutsAssembler(domain="d"), key(ONE), delta(one), key(other), delta(OTHER_THREE))
    same(found, [ONE, one, other, OTHER_THREE])


def test_sources_that_do_not_advance_make_another_cut_too() -> None:
    """Else what goes on from it could not be read."""
    other = cut(2, [4, 0], [5, 0])
    after = cut(3, [5, 0], [5, 1])
    found = read(CutsAssembler(domain="d"), key(ONE), delta(TWO), key(other), delta(after))
    same(found, [ONE, TWO, other, after])


def test_only_so_many_of_a_number_are_kept() -> None:
    assembler = CutsAssembler(domain="d")
    read(assembler, key(ONE), *(key(cut(2, [4], [end])) for end in range(5, 100)))
    same(read(assembler, delta(cut(3, [96], [97]))), [cut(2, [4], [96]), cut(3, [96], [97])])
    assembler = CutsAssembler(domain="d")
    read(assembler, key(ONE), *(key(cut(2, [4], [end])) for end in range(5, 100)))
    with pytest.raises(Contradiction):
        read(assembler, delta(cut(3, [95], [97])))


def test_topics_join_and_leave() -> None:
    joined = cut(2, [4, 7], [4, 9], sources=(A, C))
    left = cut(3, [9], [10], sources=(C,))
    again = cut(4, [10, 0], [10, 2], sources=(C, Source("a", "another", 0)))
    encoder = CutEncoder()
    run = [ONE, joined, left, again]
    same(read(CutsAssembler(domain="d"), *map(encoder.encode, run)), run)


@pytest.mark.parametrize("wrong", [key(OTHER_THREE), delta(OTHER_THREE), delta(cut(3, [5], [9], topic_order=("a",)))])
def test_a_cut_that_does_not_go_on_from_the_one_before_is_a_contradiction(wrong: WireRecord) -> None:
    assembler = CutsAssembler(domain="d")
    read(assembler, key(ONE), delta(TWO))
    with pytest.raises(Contradiction, match=r"cut 3 of d\.cuts does not go on from cut 2 as it stands there"):
        read(assembler, wrong)


@pytest.mark.parametrize("wrong", [key(cut(2, [3], [6])), delta(cut(2, [3], [6]))])
def test_another_cut_of_a_number_goes_on_from_the_one_before_too(wrong: WireRecord) -> None:
    assembler = CutsAssembler(domain="d")
    read(assembler, key(ONE), delta(TWO))
    with pytest.raises(Contradiction, match="cut 2 of"):
        read(assembler, wrong)


@pytest.mark.parametrize("late", [key(cut(4, [9], [10])), delta(cut(4, [9], [10]))])
def test_a_hole_is_named(late: WireRecord) -> None:
    assembler = CutsAssembler(domain="d")
    read(assembler, key(ONE), delta(TWO))
    with pytest.raises(EventsLost, match=r"d\.cuts goes from cut 2 to 4"):
        read(assembler, late)


def test_a_sequencer_that_another_replaced_writes_for_nobody() -> None:
    second = replace(TWO, incarnation=2)
    assembler = CutsAssembler(domain="d")
    found = read(assembler, key(ONE), delta(TWO), key(second), delta(THREE), key(OTHER_TWO), key(cut(9, [0], [1])))
    same(found, [ONE, TWO, second])
    with pytest.raises(Contradiction, match="cut 1 of"):
        read(assembler, key(replace(ONE, incarnation=3)))


def test_what_goes_on_from_before_the_first_key_cut_is_passed_over() -> None:
    assembler = CutsAssembler(domain="d")
    same(read(assembler, delta(ONE), delta(TWO), key(THREE), delta(OTHER_THREE), delta(TWO)), [THREE])


# --- what is no cut ---------------------------------------------------------------------------------------------------


def test_behind_a_cut_of_which_the_ends_are_known_no_key_cut_is_needed() -> None:
    """As a snapshot tells one."""
    ends = TWO.ends.tolist()
    assembler = CutsAssembler(domain="d", behind=cut(2, ends, ends))
    same(read(assembler, delta(ONE), delta(TWO)), [])
    same(read(assembler, delta(THREE)), [THREE])
    assert [one.cut for one in assembler.newest] == [3]


def test_what_does_not_go_on_from_the_cut_that_is_known_is_refused_and_nothing_begins_anew() -> None:
    assembler = CutsAssembler(domain="d", behind=cut(2, [5, 5], [5, 5]))
    with pytest.raises(Contradiction, match="cut 3 of"):
        read(assembler, delta(THREE))
    with pytest.raises(EventsLost, match="goes from cut 2 to 9"):
        read(assembler, key(cut(9, [0], [1])))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"kind": b"stamps"}, "no header kind=cuts"),
        ({"kind": None}, "no header kind=cuts"),
        ({"version": b"2"}, "version b'2'; this program reads 1"),
        ({"cut": b"x"}, "headers are not those"),
        ({"cut": None}, "headers are not those"),
        ({"incarnation": None}, "headers are not those"),
        ({"cut": b"2"}, "it says that it is cut 1 of d"),
        ({"incarnation": b"2"}, "it says that it is cut 1 of d"),
    ],
)
def test_headers_that_are_not_those_of_cuts(changed: dict[str, bytes | None], says: str) -> None:
    record = key(ONE)
    given = {name: value for name, value in (headers(record) | changed).items() if value is not None}
    with pytest.raises(WireError, match=says):
        CutsAssembler(domain="d").add(record.value, given)


def test_another_domain_s_cut_and_no_value() -> None:
    record = key(ONE)
    with pytest.raises(WireError, match="cut 1 of d"):
        CutsAssembler(domain="e").add(record.value, headers(record))
    with pytest.raises(WireError, match="no value"):
        CutsAssembler(domain="d").add(None, headers(record))


def unpacked(record: WireRecord) -> tuple[list[object], bytes]:
    raw = bytes(pa.CompressedInputStream(pa.BufferReader(record.value), "zstd").read())
    length = int.from_bytes(raw[:4], "little")
    return json.loads(raw[4 : 4 + length]), raw[4 + length :]


def packed(head: object, planes: bytes) -> bytes:
    text = json.dumps(head).encode()
    return bytes(pa.compress(len(text).to_bytes(4, "little") + text + planes, codec="zstd", asbytes=True))


HEAD = ("domain", "incarnation", "cut", "check", "slices", "advances", "widths", "sources", "topics", "topic_order")
NOTHING_OF_THE_KIND: tuple[object, ...] = (None, -1, "x", 1 << 40, True, 1.0, [], {}, [[]])


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name in HEAD[3:] for value in NOTHING_OF_THE_KIND),
        {"topics": ["ab"]},
        {"topics": [["a", "id-a"], ["b", "id-b"], ["c"]]},
        {"topics": [["a", ["id-a"]]]},
        {"topic_order": "ab"},
        {"topic_order": ["a", "a"]},
        {"topic_order": [1]},
        {"slices": 3},
        {"slices": 0},
    ],
)
@pytest.mark.parametrize("is_key", [True, False])
def test_a_head_that_no_encoder_writes(wrong: dict[str, object], is_key: bool) -> None:
    written = encode_cut(TWO, is_key=is_key)
    head, planes = unpacked(written)
    named = dict(zip(HEAD, head, strict=False))
    value: bytes = packed(list((named | wrong).values()), planes)
    if named | wrong == named:
        return
    assembler = CutsAssembler(domain="d")
    read(assembler, key(ONE))
    with pytest.raises((WireError, Contradiction)):
        assembler.add(value, headers(written))


def test_nothing_may_stand_behind_the_columns() -> None:
    head, planes = unpacked(key(ONE))
    for value in (packed(head, planes + b"\0"), packed(head, planes[:-1])):
        with pytest.raises(WireError, match="less or more behind the directory"):
            CutsAssembler(domain="d").add(value, headers(key(ONE)))


def test_a_bomb_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("totalorder.sequencer.wire.codec.MAX_RAW_PART_BYTES", 1_000_000)
    record = key(ONE)
    head, _ = unpacked(record)
    for wrong, why in (
        ({"advances": 1_000_000}, "more than 1000000 bytes when unpacked"),
        ({}, "less or more behind the directory"),
    ):
        value = packed(list((dict(zip(HEAD, head, strict=True)) | wrong).values()), bytes(2_000_000))
        with pytest.raises(WireError, match=why):
            CutsAssembler(domain="d").add(value, headers(record))


@given(run=runs(), changes=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=8))
def test_changed_bytes_never_raise_anything_else(run: list[Cut], changes: list[tuple[int, int]]) -> None:
    record = key(run[0])
    head, planes = unpacked(record)
    raw = bytearray(planes)
    for at, byte in changes:
        if raw:
            raw[at % len(raw)] = byte
    for value in (_changed(record.value, changes), packed(head, bytes(raw))):
        with contextlib.suppress(WireError):
            CutsAssembler(domain="d").add(value, headers(record))


def _changed(value: bytes, changes: list[tuple[int, int]]) -> bytes:
    raw = bytearray(value)
    for at, byte in changes:
        raw[at % len(raw)] = byte
    return bytes(raw)


def test_limits() -> None:
    encoder = CutEncoder()
    encoder.encode(cut(1, [0], [MAX_CUT_SLICES - 1], [[(0, 1)]] * (MAX_CUT_SLICES - 1)))
    with pytest.raises(LimitExceeded, match=f"has {MAX_CUT_SLICES + 1} slices, and may have {MAX_CUT_SLICES}"):
        encoder.encode(cut(1, [0], [MAX_CUT_SLICES], [[(0, 1)]] * MAX_CUT_SLICES))


def test_the_largest_cut_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    sources = tuple(Source(f"topic-{at // 10}", f"id-{at // 10}", at % 10) for at in range(100_000))
    slices = MAX_CUT_ADVANCES // 20
    place = np.sort(rng.integers(0, 100_000, (slices, 40)), axis=1)
    rows = [np.unique(row)[:20] for row in place]
    largest = Cut(
        domain="d",
        incarnation=1,
        cut=1,
        sources=sources,
        begins=rng.integers(0, 2**40, len(sources)),
        slice_start=np.cumsum([0, *map(len, rows)]),
        place=np.concatenate(rows),
        count=rng.integers(1, 1000, sum(map(len, rows))),
    )
    record = encode_cut(largest, is_key=True)
    assert len(record.value) < 8_000_000
    same(read(CutsAssembler(domain="d"), record), [largest])


@settings(max_examples=20)
@given(partitions=st.sampled_from([4, 256]), seed=st.integers(0, 100))
def test_cuts_take_few_bytes(partitions: int, seed: int) -> None:
    """A batch of some hundred events: less than two bytes an advance and 200 beside."""
    rng = np.random.default_rng(seed)
    sources = tuple(Source("topic", "7tqmyJG4TjCDl6Zpo8v2FA", at) for at in range(partitions))
    at, encoder, sizes, advances = rng.integers(0, 10**7, partitions), CutEncoder(), [], 0
    for number in range(1, KEY_EVERY + 1):
        looks = [np.unique(rng.integers(0, partitions, 15)).tolist() for _ in range(20)]
        begins = at.copy()
        for look in looks:
            at[look] += 1
        one = Cut.of(
            domain="shop",
            incarnation=1,
            cut=number,
            sources=sources,
            begins=begins.tolist(),
            ends=at.tolist(),
            looks=[[(place, 1) for place in look] for look in looks],
        )
        advances += len(one.place)
        sizes.append(len(encoder.encode(one).value))
    assert sum(sizes) < 2 * advances + 200 * len(sizes)
