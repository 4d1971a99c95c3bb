"""Where batches end, on a simulated log: against a planner that counts one by one, and by what people are promised."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st

from totalorder.streaming.cut.chunk import Ints
from totalorder.streaming.cut.looks import LookLog, Waiting
from totalorder.streaming.cut.offset import BatchEnd, slices_of
from totalorder.streaming.cut.planner import MAX_REQUESTS, Planned, plan

NOW_MS = 1_790_000_000_000
Place = tuple[int, int]


@dataclass
class SimLog:
    """Partitions with the timestamps of their records; answers as Kafka does, by place in `sources`."""

    records: dict[Place, list[int]] = field(default_factory=dict)
    sources: list[Place] = field(default_factory=list)
    asked: int = 0

    def offsets_at(self, places: Sequence[int], time_ms: int) -> Ints:
        assert time_ms >= 0
        assert len(places)
        self.asked += 1
        return np.array([self.first_at(self.sources[place], time_ms) for place in places], dtype=np.int64)

    def first_at(self, place: Place, time_ms: int) -> int:
        return next((offset for offset, t in enumerate(self.records[place]) if t >= time_ms), -1)

    def running(self, now_ms: int) -> dict[Place, list[int]]:
        """The largest timestamp so far, not below -1, as Kafka tells negative ones not apart, nor later than now."""
        return {
            place: [min(largest, now_ms) for largest in accumulate(times, max, initial=-1)][1:]
            for place, times in self.records.items()
        }

    def ends(self) -> Ints:
        return np.array([len(self.records[place]) for place in self.sources], dtype=np.int64)


class FastLog:
    """The same by running maxima, for many records."""

    def __init__(self, records: dict[Place, Ints]) -> None:
        self.sources = sorted(records)
        self.running = [np.maximum.accumulate(records[place]) for place in self.sources]
        self.asked = 0

    def offsets_at(self, places: Sequence[int], time_ms: int) -> Ints:
        self.asked += 1
        found = [int(np.searchsorted(self.running[place], time_ms)) for place in places]
        return np.array([-1 if f == len(self.running[p]) else f for p, f in zip(places, found, strict=True)])

    def ends(self) -> Ints:
        return np.array([len(running) for running in self.running], dtype=np.int64)


def one_by_one(log: SimLog, waiting: Waiting, limit: int, now_ms: int, tie_order: list[int]) -> list[tuple[Place, int]]:
    """The twin: the first slice's records in order of running timestamp, then of ties; as many as the limit lets in."""

    running = log.running(now_ms)

    def key(record: tuple[Place, int]) -> tuple[int, ...]:
        (number, partition), offset = record
        rank = tie_order.index(number) if number in tie_order else len(tie_order)
        return (running[number, partition][offset], rank, number, partition, offset)

    first = zip(waiting.sources, waiting.begins.tolist(), waiting.ends_after(1).tolist(), strict=True)
    return sorted(((place, offset) for place, b, e in first for offset in range(b, e)), key=key)[:limit]


def times_of(rng: random.Random, count: int, kind: str) -> list[int]:
    """Timestamps as producers give them."""
    start = NOW_MS - rng.choice([10, 5_000, 10**7, 10**9])
    steps: dict[str, Callable[[int], int]] = {
        "rising": lambda t: t + rng.randint(0, 50),
        "coarse": lambda t: t // 1000 * 1000 + rng.choice([0, 0, 0, 1000]),
        "jumping": lambda t: t + rng.choice([-5000, -3, 0, 1, 2, 100_000]),
        "falling": lambda t: t - rng.randint(0, 50),
        "future": lambda t: t + rng.choice([0, 1, 10**10]),
        "same": lambda t: t,
        "zero": lambda t: 0,
        "none": lambda t: -1,
        "small": lambda t: rng.randint(0, 9),
    }
    result = []
    for _ in range(count):
        start = steps[kind](start)
        result.append(start)
    return result


KINDS = ["rising", "coarse", "jumping", "falling", "future", "same", "zero", "none", "small"]


class Story:
    """A log that grows, looks at it, and batches until all is taken. `taken` has (batch, slice) of each record.

    In a wild one our clock jumps, back too, and what is remembered may be of some other batch.
    """

    def __init__(self, seed: int, *, limit: int, remembers: bool = True, is_wild: bool = False) -> None:
        self.rng = random.Random(seed)
        self.limit = limit
        self.remembers = remembers
        self.is_wild = is_wild
        self.plans: list[Planned] = []
        self.now_ms = NOW_MS
        self.log = SimLog()
        self.looks = LookLog()
        self.seen: list[dict[Place, int]] = []
        self.tie_order = self.rng.sample(range(3), self.rng.randint(0, 3))
        self.begin = BatchEnd(cut=0, order=-1, ends={})
        self.taken: dict[tuple[Place, int], tuple[int, int]] = {}
        for place in sorted({(self.rng.randint(0, 2), 0) for _ in range(3)} | {(0, 0), (0, 1)}):
            self.log.records[place] = []
            self.log.sources.append(place)
            self.looks.know([place], [0])

    def grow(self, most: int) -> None:
        for times in self.log.records.values():
            times += times_of(self.rng, self.rng.randint(0, most), self.rng.choice(KINDS))

    def look(self) -> None:
        ends = self.log.ends()
        self.looks.add(ends, began_ms=0, ended_ms=0)
        self.seen.append(dict(zip(self.log.sources, ends.tolist(), strict=True)))

    def batch(self) -> bool:
        waiting = self.looks.since(self.begin)
        self.now_ms += self.rng.randint(0, 5000)
        if self.is_wild and self.rng.random() < 0.3:
            self.now_ms = NOW_MS + self.rng.choice([-(10**9), -5000, -20, 0, 10**8])
        last = self.plans[-1] if self.plans and self.remembers else None
        if self.is_wild and self.plans and self.rng.random() < 0.2:
            last = self.rng.choice(self.plans)
        self.log.asked = 0
        planned = plan(
            self.begin,
            waiting,
            limit=self.limit,
            order=2,
            times=self.log,
            now_ms=self.now_ms,
            tie_order=self.tie_order,
            last=last,
        )
        assert planned.requests == self.log.asked <= MAX_REQUESTS
        if not len(waiting.sizes):
            assert planned.end is self.begin
            return False
        self.check(waiting, planned)
        self.note(planned.end)
        self.looks.taken(planned.end)
        self.begin = planned.end
        self.plans.append(planned)
        return True

    def note(self, end: BatchEnd) -> None:
        for span in slices_of(self.begin, end, {}):
            at = span.begin
            for number, until in span.slices:
                for offset in range(at, until):
                    assert ((span.number, span.partition), offset) not in self.taken
                    self.taken[(span.number, span.partition), offset] = (end.cut, number)
                at = until

    def check(self, waiting: Waiting, planned: Planned) -> None:
        assert planned.end.cut == self.begin.cut + 1
        assert planned.end.order == 2
        taken = sum(planned.end.flat.tolist()) - sum(waiting.begins.tolist())
        assert planned.taken == taken
        assert planned.waiting == sum(waiting.counts.tolist())
        assert 0 < taken <= self.limit
        whole = [
            sum(waiting.ends_after(k).tolist()) - sum(waiting.begins.tolist()) for k in range(len(waiting.sizes) + 1)
        ]
        fit = max(k for k, count in enumerate(whole) if count <= self.limit)
        if fit:
            assert planned.end.flat.tolist() == waiting.ends_after(fit).tolist()
            assert len(planned.end.looks) == fit - 1
            assert planned.requests == 0
            return
        ordered = one_by_one(self.log, waiting, self.limit, self.now_ms, self.tie_order)[:taken]
        for place, begin, end in zip(waiting.sources, waiting.begins.tolist(), planned.end.flat.tolist(), strict=True):
            assert sorted(offset for p, offset in ordered if p == place) == list(range(begin, end))
        assert taken >= 0.8 * self.limit


@given(st.integers(0, 2**32), st.integers(1, 60), st.booleans(), st.booleans())
def test_batches_are_what_counting_one_by_one_gives_and_looks_hold(
    seed: int, limit: int, remembers: bool, is_wild: bool
) -> None:
    """In a slice in order of running timestamps; what an earlier look has is never behind what it has not."""
    story = Story(seed, limit=limit, remembers=remembers, is_wild=is_wild)
    for _ in range(story.rng.randint(1, 4)):
        for _ in range(story.rng.choice([1, 1, 5])):
            story.grow(story.rng.choice([0, 1, 3, 3, 40]))
            story.look()
        for _ in range(story.rng.randint(0, 3)):
            story.batch()
    while story.batch():
        pass
    everything = {(place, o) for place, times in story.log.records.items() for o in range(len(times))}
    assert story.taken.keys() == everything
    for seen in story.seen:
        inside = [at for (place, o), at in story.taken.items() if o < seen[place]]
        outside = [at for (place, o), at in story.taken.items() if o >= seen[place]]
        assert not inside or not outside or max(inside) < min(outside)


@given(st.integers(0, 2**32), st.integers(1, 40))
def test_a_backlog_comes_in_the_order_of_running_timestamps(seed: int, limit: int) -> None:
    """Exactly, over all of its batches: no event comes before one that is older by even a millisecond."""
    story = Story(seed, limit=limit)
    story.grow(40)
    story.look()
    before: list[int] = []
    while story.batch():
        running = story.log.running(story.now_ms)
        batch = [running[place][offset] for (place, offset), (cut, _) in story.taken.items() if cut == story.begin.cut]
        assert not before or max(before) <= min(batch)
        before += batch


def test_what_is_left_of_a_slice_is_finished_before_the_next_slice_begins() -> None:
    story = Story(1, limit=10)
    story.log.records = {place: [NOW_MS - 5 + o for o in range(8)] for place in story.log.records}
    story.look()
    story.batch()
    story.log.records = {place: [*times, 5] for place, times in story.log.records.items()}
    story.look()
    while story.batch():
        pass
    old = [at for (_, offset), at in story.taken.items() if offset < 8]
    new = [at for (_, offset), at in story.taken.items() if offset == 8]
    assert max(old) < min(new)


def test_what_is_remembered_of_a_slice_that_has_grown_since_is_not_used() -> None:
    """As when looks were thinned out: what came into the slice may be older than where the last batch ended."""
    log = SimLog(sources=[(0, 0), (0, 1)], records={(0, 0): [NOW_MS - 500 + o for o in range(100)], (0, 1): []})
    begin = BatchEnd(cut=0, order=-1, ends={0: (0, 0)})
    last = None
    for _ in range(2):
        looks = LookLog()
        looks.know(log.sources, [0, 0])
        looks.add(log.ends(), began_ms=0, ended_ms=0)
        last = plan(begin, looks.since(begin), limit=20, order=-1, times=log, now_ms=NOW_MS, last=last)
        begin = last.end
        log.records[0, 1] = [NOW_MS - 900 + o for o in range(100)]
    assert last is not None
    assert 16 <= begin.ends[0][0] <= 20
    assert 16 <= begin.ends[0][1] <= 20


@pytest.mark.parametrize(
    ("is_begun_anew", "back_ms", "limit"), [(True, 0, 10), (False, 12, 20), (False, 12, 70), (False, 12, 80)]
)
def test_what_is_remembered_holds_only_behind_its_batch_and_by_its_clock(
    is_begun_anew: bool, back_ms: int, limit: int
) -> None:
    times = [NOW_MS - 500 + 5 * o for o in range(100)]
    log = SimLog(sources=[(0, 0), (0, 1)], records={(0, 0): times, (0, 1): times})
    looks = LookLog()
    looks.know(log.sources, [0, 0])
    looks.add(log.ends(), began_ms=0, ended_ms=0)
    begin = BatchEnd(cut=0, order=-1, ends={0: (0, 0)})
    last = plan(begin, looks.since(begin), limit=20, order=-1, times=log, now_ms=NOW_MS)
    assert last.backlog is not None
    now_ms = NOW_MS if is_begun_anew else last.backlog.time_ms + back_ms
    begin = begin if is_begun_anew else last.end
    waiting = looks.since(begin)
    end = plan(begin, waiting, limit=limit, order=-1, times=log, now_ms=now_ms, last=last).end
    taken = int((end.flat - waiting.begins).sum())
    assert 0.8 * limit <= taken <= limit
    ordered = one_by_one(log, waiting, limit, now_ms, [])[:taken]
    assert [sum(p == place for p, _ in ordered) for place in log.sources] == (end.flat - waiting.begins).tolist()


def fast_story(records: dict[Place, Ints], limit: int, *, remembers: bool = True, most: int = 10_000) -> list[Planned]:
    """The first batches of a backlog in one look."""
    log, looks = FastLog(records), LookLog()
    looks.know(log.sources, [0] * len(log.sources))
    looks.add(log.ends(), began_ms=0, ended_ms=0)
    begin = BatchEnd(cut=0, order=-1, ends={})
    plans: list[Planned] = []
    while len(plans) < most:
        waiting = looks.since(begin)
        last = plans[-1] if plans and remembers else None
        planned = plan(begin, waiting, limit=limit, order=-1, times=log, now_ms=NOW_MS, last=last)
        if planned.end is begin:
            break
        plans.append(planned)
        looks.taken(planned.end)
        begin = planned.end
    return plans


@pytest.mark.parametrize("limit", [100, 10_000])
def test_topics_of_very_different_sizes_advance_together_in_time(limit: int) -> None:
    rng = np.random.default_rng(1)
    week_ms = 7 * 24 * 3600 * 1000
    records = {
        (number, 0): np.sort(rng.integers(NOW_MS - week_ms, NOW_MS, count)) for number, count in ((0, 200_000), (1, 2))
    }
    plans = fast_story(records, limit, most=200)
    for one, other in pairwise(plans):
        for number in (0, 1):
            times = records[number, 0][one.end.ends[number][0] : other.end.ends[number][0]]
            before = [records[n, 0][one.end.ends[n][0] - 1] for n in (0, 1) if one.end.ends[n][0]]
            assert not len(times) or times.min() >= max(before)


@pytest.mark.parametrize("stamp", [-1, 0, 7, NOW_MS - 1, NOW_MS, NOW_MS + 10**12])
def test_where_all_times_are_one_the_limit_is_filled_by_the_order_of_ties(stamp: int) -> None:
    log, looks = SimLog(), LookLog()
    log.sources = [(0, 0), (0, 1), (1, 0), (2, 0)]
    log.records = {place: [stamp] * 10 for place in log.sources}
    looks.know(log.sources, [0] * 4)
    looks.add(log.ends(), began_ms=0, ended_ms=0)
    begin = BatchEnd(cut=0, order=-1, ends={})
    seen, last = [], None
    while True:
        waiting = looks.since(begin)
        last = plan(begin, waiting, limit=15, order=-1, times=log, now_ms=NOW_MS, tie_order=[2, 0], last=last)
        if last.end is begin:
            break
        begin = last.end
        seen.append(begin.flat.tolist())
    assert seen == [[5, 0, 0, 10], [10, 10, 0, 10], [10, 10, 10, 10]]


def test_one_clock_far_ahead_is_now_and_not_later() -> None:
    story = Story(3, limit=4)
    story.log.records = {place: [NOW_MS - 10, 10**15, NOW_MS - 9] for place in story.log.records}
    story.look()
    cuts = 0
    while story.batch():
        cuts += 1
    assert cuts == -(-3 * len(story.log.records) // 4)


def backlog(partitions: int, records: int, kind: str) -> dict[Place, Ints]:
    """A week at an even rate, in bursts, or with seconds for clocks; partitions differ by up to a thousand times."""
    rng = np.random.default_rng(partitions)
    share = rng.pareto(1.0, partitions) + 0.01
    sizes = np.maximum(1, (records * share / share.sum()).astype(int))
    week_ms = 7 * 24 * 3600 * 1000
    start_ms = NOW_MS - week_ms
    bursts = rng.integers(start_ms, NOW_MS, 20)
    result = {}
    for partition, size in enumerate(sizes.tolist()):
        times = rng.integers(start_ms, NOW_MS, size)
        if kind == "bursts":
            times = rng.choice(bursts, size) + rng.exponential(60_000, size).astype(np.int64)
        if kind == "seconds":
            times = times // 1000 * 1000
        result[partition % 10, partition // 10] = np.sort(times)
    return result


@pytest.mark.parametrize(("kind", "median", "median_anew"), [("even", 1, 12), ("seconds", 1, 12), ("bursts", 10, 20)])
def test_few_requests_find_the_end_of_a_batch(kind: str, median: int, median_anew: int) -> None:
    records = backlog(4, 30_000, kind)
    for remembers, most in ((True, median), (False, median_anew)):
        requests = sorted(planned.requests for planned in fast_story(records, 1000, remembers=remembers))
        assert requests[len(requests) // 2] <= most
        assert requests[-1] <= 30
