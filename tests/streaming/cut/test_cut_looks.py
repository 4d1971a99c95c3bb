"""The log of looks against a twin that keeps every look whole, and the promise that it makes."""

import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.streaming.cut.looks import LookLog, Waiting
from totalorder.streaming.cut.offset import BatchEnd

Place = tuple[int, int]


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def a_log(*sources: Place, **limits: int) -> LookLog:
    log = LookLog(**limits)
    log.know(sources, [0] * len(sources))
    return log


def look(log: LookLog, *ends: int, at_ms: float = 0.0) -> bool:
    return log.add(ints(list(ends)), began_ms=at_ms, ended_ms=at_ms + 1)


def slices(waiting: Waiting) -> list[dict[Place, int]]:
    """Of each look, where it ends in what had advanced."""
    result, first = [], 0
    for size in waiting.sizes.tolist():
        rows = range(first, first + size)
        assert sorted(set(waiting.places[rows].tolist())) == waiting.places[rows].tolist()
        result.append({waiting.sources[waiting.places[row]]: int(waiting.ends[row]) for row in rows})
        first += size
    assert first == len(waiting.places) == len(waiting.ends) == len(waiting.counts)
    return result


class WholeLooks:
    """The twin: every look with all its ends; what waits is told by walking over them."""

    def __init__(self) -> None:
        self.starts: dict[Place, int] = {}
        self.taken: dict[Place, int] = {}
        self.looks: list[dict[Place, int]] = []
        self.retired: set[int] = set()

    def since(self, begins: dict[Place, int]) -> list[dict[Place, int]]:
        at = {place: begins.get(place, start) for place, start in self.starts.items()}
        result = []
        for ends in [self.taken, *self.looks]:
            news = {p: e for p, e in ends.items() if e > at[p] and p[0] not in self.retired}
            at |= news
            if news:
                result.append(dict(sorted(news.items())))
        return result

    def most(self, place: Place) -> int:
        """How far any look, or batch, has come."""
        ends = (ends.get(place, 0) for ends in (self.starts, self.taken, *self.looks))
        return max(ends)


def batch_end(cut: int, ends: dict[Place, int]) -> BatchEnd:
    rows: dict[int, list[int]] = {}
    for (number, _), end in sorted(ends.items()):
        rows.setdefault(number, []).append(end)
    return BatchEnd(cut=cut, order=-1, ends={number: tuple(row) for number, row in rows.items()})


class Story:
    """The same happens to log and twin, in an order that the seed gives."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = LookLog()
        self.twin = WholeLooks()
        self.ends: dict[Place, int] = {}
        self.begins: dict[Place, int] = {}
        self.cut = 0

    def step(self) -> None:
        steps: list[Callable[[], None]] = [self.know, self.look, self.look, self.look, self.take, self.retire]
        self.rng.choices(steps, weights=[2, 5, 5, 5, 3, 0.3])[0]()
        self.compare()

    def know(self) -> None:
        number = self.rng.choice([n for n in range(9) if n not in self.twin.retired] or [9])
        partition = sum(n == number for n, _ in self.twin.starts)
        start = self.rng.choice([0, self.rng.randint(0, 30)])
        self.log.know([(number, partition)], [start])
        self.twin.starts[number, partition] = self.ends[number, partition] = start

    def look(self) -> None:
        for place in self.ends:
            self.ends[place] += self.rng.choice([0, 0, 1, self.rng.randint(1, 30)])
        known = list(self.ends.items())[: len(self.ends) - self.rng.choice([0, 0, 0, 1])]
        seen = {place: end for place, end in known if self.rng.random() < 0.8}
        answers = [seen.get(place, self.rng.choice([-1, max(0, self.twin.most(place) - 99)])) for place, _ in known]
        look(self.log, *answers)
        self.twin.looks.append(seen)

    def take(self) -> None:
        """A batch takes some whole slices, or a part of the first one."""
        waiting = self.twin.since(self.begins)
        if not waiting:
            return
        for news in waiting[: self.rng.randint(1, len(waiting))]:
            self.begins |= news
        if self.rng.random() < 0.3:
            for place in waiting[0]:
                self.begins[place] -= self.rng.randint(0, self.begins[place] - self.twin.starts[place])
        for place, start in self.twin.starts.items():
            self.begins.setdefault(place, start)
        self.begins = {p: e for p, e in self.begins.items() if p[0] not in self.twin.retired}
        self.cut += 1
        if self.rng.random() < 0.8:
            self.log.taken(batch_end(self.cut, self.begins))
            self.twin.taken |= {p: max(e, self.twin.taken.get(p, 0)) for p, e in self.begins.items()}

    def retire(self) -> None:
        number = self.rng.randint(0, 8)
        self.log.retire(number)
        self.twin.retired.add(number)

    def compare(self) -> None:
        begin = batch_end(self.cut, self.begins)
        waiting = self.log.since(begin)
        expected = self.twin.since(self.begins)
        assert slices(waiting) == expected
        alive = sorted(p for p in self.twin.starts if p[0] not in self.twin.retired)
        assert waiting.sources == alive
        assert waiting.begins.tolist() == [self.begins.get(p, self.twin.starts[p]) for p in alive]
        for k in range(len(expected) + 1):
            at = dict(zip(waiting.sources, waiting.begins.tolist(), strict=True))
            for news in expected[:k]:
                at |= news
            assert waiting.ends_after(k).tolist() == list(at.values())
        assert sum(waiting.counts.tolist()) == sum((waiting.ends_after(len(expected)) - waiting.begins).tolist())
        self.compare_without(waiting)
        for number in {n for n, _ in alive}:
            most = {part: self.twin.most((number, part)) for n, part in alive if n == number}
            assert self.log.seen(number) == most

    def compare_without(self, waiting: Waiting) -> None:
        """As if some topics had never advanced."""
        gone = {number for number in range(9) if self.rng.random() < 0.3}
        rest = [{p: e for p, e in news.items() if p[0] not in gone} for news in slices(waiting)]
        found = waiting.without(gone)
        assert slices(found) == [news for news in rest if news]
        assert (found.topics, found.begins.tolist()) == (waiting.topics, waiting.begins.tolist())
        at = dict(zip(waiting.sources, waiting.begins.tolist(), strict=True))
        for news in rest:
            at |= news
        assert found.ends_after(len(found.sizes)).tolist() == list(at.values())


@given(st.integers(0, 2**32))
def test_what_waits_is_what_a_twin_says_that_keeps_all_looks(seed: int) -> None:
    story = Story(seed)
    for _ in range(40):
        story.step()


def test_a_look_that_advances_nothing_is_not_kept() -> None:
    log = a_log((0, 0))
    assert [look(log, 3), look(log, 3), look(log, 2), look(log, -1), look(log, 4)] == [True, False, False, False, True]
    assert len(log) == 2


def test_a_source_is_at_its_start_in_all_looks_before_it_was_known() -> None:
    log = a_log((0, 0))
    look(log, 3)
    log.know([(1, 0)], [10])
    look(log, 4, 12)
    assert slices(log.since(batch_end(0, {}))) == [{(0, 0): 3}, {(0, 0): 4, (1, 0): 12}]
    assert log.since(batch_end(0, {})).begins.tolist() == [0, 10]


def test_a_batch_from_before_a_partition_was_known_takes_nothing_of_it() -> None:
    log = a_log((0, 0), (1, 0))
    look(log, 3, 8)
    end = batch_end(1, {(0, 0): 3, (1, 0): 8})
    log.know([(0, 1)], [0])
    log.taken(end)
    look(log, 3, 8, 2)
    assert slices(log.since(end)) == [{(0, 1): 2}]


def test_what_a_batch_left_of_a_slice_is_the_first_slice_of_the_next() -> None:
    log = a_log((0, 0), (0, 1))
    look(log, 10, 20)
    look(log, 11, 20)
    begin = batch_end(1, {(0, 0): 10, (0, 1): 5})
    log.taken(begin)
    assert slices(log.since(begin)) == [{(0, 1): 20}, {(0, 0): 11}]


def test_what_was_said_to_be_taken_waits_all_the_same_for_one_who_begins_before_it() -> None:
    log = a_log((0, 0))
    look(log, 10)
    log.taken(batch_end(1, {(0, 0): 10}))
    look(log, 12)
    assert slices(log.since(batch_end(0, {(0, 0): 4}))) == [{(0, 0): 10}, {(0, 0): 12}]


def test_behind_a_restart_only_what_lies_behind_the_last_batch_counts() -> None:
    log = a_log((0, 0), (1, 0))
    log.taken(batch_end(5, {(0, 0): 100, (1, 0): 7}))
    assert not look(log, 100, 7)
    assert look(log, 100, 9)
    assert slices(log.since(batch_end(5, {(0, 0): 100, (1, 0): 7}))) == [{(1, 0): 9}]


def test_partitions_that_only_the_batch_knows_keep_their_ends() -> None:
    log = a_log((1, 0))
    look(log, 3)
    waiting = log.since(batch_end(5, {(0, 0): 8, (1, 0): 2, (1, 1): 4}))
    assert waiting.topics == {0: 1, 1: 2}
    assert waiting.ends_after(1).tolist() == [8, 3, 4]


def test_a_retired_topic_is_gone_from_what_waits_and_holds_nothing_back() -> None:
    log = a_log((0, 0), (1, 0))
    look(log, 3, 3)
    look(log, 3, 5)
    log.retire(1)
    assert len(log) == 1
    look(log, 3, 9)
    begin = batch_end(1, {(0, 0): 3, (1, 0): 1})
    assert log.since(begin).topics == {0: 1}
    log.taken(begin)
    assert len(log) == 0
    log.retire(0)
    assert log.since(begin).sources == []
    with pytest.raises(AssertionError, match="retired"):
        log.know([(1, 1)], [0])


def test_a_period_counts_from_the_look_before_whether_it_was_kept_or_not() -> None:
    log = a_log((0, 0))
    look(log, 5, at_ms=0)
    assert log.longest_period_ms == 0
    look(log, 5, at_ms=100)
    look(log, 6, at_ms=110)
    assert log.longest_period_ms == 11
    look(log, 7, at_ms=140)
    assert log.longest_period_ms == 31
    assert log.taken(batch_end(1, {(0, 0): 6})) == 11
    assert log.taken(batch_end(2, {(0, 0): 6})) == 0
    assert log.taken(batch_end(3, {(0, 0): 7})) == 31


@pytest.mark.parametrize("limits", [{"max_looks": 8}, {"max_advances": 10}])
def test_a_full_log_is_thinned_out_evenly_and_recovers(limits: dict[str, int]) -> None:
    log = a_log((0, 0), (0, 1), (0, 2), **limits)
    for i in range(1, 1001):
        look(log, i, i, i // 3, at_ms=10 * i)
        assert len(log) <= limits.get("max_looks", 1000)
        assert len(log.since(batch_end(0, {})).places) <= limits.get("max_advances", 1000)
    steps = [s[0, 0] for s in slices(log.since(batch_end(0, {})))]
    widths = np.diff([0, *steps])
    assert steps[-1] == 1000
    assert len(set(widths[:-1])) == 1
    assert log.longest_period_ms == widths[1] * 10 + 1
    log.taken(batch_end(1, {(0, 0): 1000, (0, 1): 1000, (0, 2): 333}))
    for i in range(1001, 1004):
        look(log, i, i, 333, at_ms=10 * i)
    assert len(log) == 3


def test_more_partitions_than_advances_still_leave_one_look() -> None:
    log = a_log(*((0, p) for p in range(20)), max_advances=5)
    for i in range(1, 9):
        look(log, *[i] * 20)
    assert slices(log.since(batch_end(0, {}))) == [{(0, p): 8 for p in range(20)}]


@given(st.integers(0, 2**32), st.integers(2, 30))
def test_what_is_published_later_than_the_longest_period_after_another_is_in_a_later_slice(
    seed: int, room: int
) -> None:
    """Each partition of a look is seen at its own moment of the look; an event is acknowledged when it is published."""
    rng = random.Random(seed)
    log = a_log(*((0, p) for p in range(3)), max_looks=room)
    look(log, 0, 0, 0, at_ms=-1)
    published_ms: list[list[int]] = [sorted(rng.sample(range(3000), 40)) for _ in range(3)]
    slice_of: dict[tuple[int, int], int] = {}
    begin, cut, now_ms, done = batch_end(0, {}), 0, 0, 0
    longest_ms = 0.0
    while now_ms < 3100:
        began_ms = now_ms + rng.choice([3, 5, 80])
        now_ms = began_ms + rng.choice([0, 1, 40])
        seen = [sum(t < rng.randint(began_ms, now_ms) for t in times) for times in published_ms]
        log.add(ints(seen), began_ms=began_ms, ended_ms=now_ms)
        if rng.random() < 0.05 or now_ms >= 3100:
            for news in slices(waiting := log.since(begin)):
                done += 1
                slice_of |= {(p, o): done for (_, p), end in news.items() for o in range(end) if (p, o) not in slice_of}
            cut += 1
            begin = batch_end(cut, dict(zip(waiting.sources, waiting.ends_after(9999).tolist(), strict=True)))
            longest_ms = max(longest_ms, log.taken(begin))
    assert len(slice_of) == 120
    at_ms = {(p, o): published_ms[p][o] for p, o in slice_of}
    for one in slice_of:
        for other in slice_of:
            if at_ms[other] - at_ms[one] > longest_ms:
                assert slice_of[one] < slice_of[other]
