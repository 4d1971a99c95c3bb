"""`totalorder bench order`: how often an event comes before the one that caused it.

Pairs of a parent and its child are published through the real job, the child some time after the parent was
acknowledged or delivered, by clocks that are honest and others; the stamps say which came first.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from totalorder.bench.live.cluster import Cluster
from totalorder.bench.live.load import Worker, fill
from totalorder.bench.live.progress import BatchTimes
from totalorder.bench.live.stamps import Stamps, read_stamps
from totalorder.bench.order.load import (
    CLOCKS_MS,
    Case,
    Pair,
    are_children_first,
    publish_after_reading,
    publish_pairs,
)
from totalorder.bench.order.page import Judged, Variant, page, summary, tables
from totalorder.bench.outcome import Outcome, Request, Say, Size, write_page
from totalorder.config import Settings
from totalorder.errors import Error

GAPS_MS = (0, 1, 3, 5, 10, 20)
TOPIC_ORDER = "topic_order"
"""The setting that says which topic wins where times are equal."""
_LOOK_S = 0.2
_PATIENCE_S = 120.0
_READING_S = 1.0
_FIRST = (None, None)
"""Keys of the first events, one of each topic."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done: so many pairs of each case, `rate` pairs a second, behind a warm-up that does not count."""

    partitions: tuple[int, ...]
    pairs: int
    rate: int
    warm_up_s: float

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(partitions=(2,), pairs=1, rate=50, warm_up_s=0.5),
            quick=cls(partitions=(2, 64, 256), pairs=36, rate=250, warm_up_s=8),
            full=cls(partitions=(2, 64, 256), pairs=2_000, rate=250, warm_up_s=20),
        )

    def variants(self) -> list[Variant]:
        """`topic_order` where this installation has the setting."""
        kinds = [
            Variant.of(partitions, kind)
            for partitions in self.partitions
            for kind in ("plain", "log-append", TOPIC_ORDER)
        ]
        return [each for each in kinds if each.kind != TOPIC_ORDER or TOPIC_ORDER in Settings.model_fields]


def cases_of(variant: Variant, *, read: bool) -> list[Case]:
    """With brokers that give the times, one client's clock is as good as another, and the worst is taken. Where
    `topic_order` is to win against names, the parent's name is always the later one.
    """
    gaps: Sequence[int | None] = (None,) if read else GAPS_MS
    clocks = list(CLOCKS_MS)[-1:] if variant.kind == "log-append" else list(CLOCKS_MS)
    names = (False,) if variant.kind == TOPIC_ORDER else (True, False)
    return [
        Case(gap_ms=gap, clock=clock, parent_named_first=first) for gap, clock, first in product(gaps, clocks, names)
    ]


def drawn(cases: Sequence[Case], count: int) -> list[Case]:
    """As many of each case, by chance in time but for the children's clocks: the time of a partition is the latest of
    its records', so that a child with an honest clock would lend its time to others.
    """
    found = [cases[number % len(cases)] for number in range(count)]
    random.Random(1).shuffle(found)
    return sorted(found, key=lambda case: (case.clock, case.parent_named_first))


def run(request: Request) -> Outcome:
    """All variants, each with a domain of its own; a page and data below `request.out`."""
    plan = Plan.of(request.size)
    variants, found = plan.variants(), {}
    request.say("Starting a broker and Spark")
    with Cluster(variants[0].topics, partitions=variants[0].each) as cluster:
        for variant in variants[1:]:
            cluster.make_topics(variant.topics, variant.each, **variant.configs)
        for variant in variants:
            found[variant] = _Run(cluster, plan, variant, request.say).judged()
    data = summary(plan.pairs, found)
    write = partial(write_page, request.out, "order", data, page(data))
    return Outcome(data=data, tables=tables(data), write=write)


class _Run:
    """One variant: its domain and job, and what publishes to it."""

    def __init__(self, cluster: Cluster, plan: Plan, variant: Variant, say: Say) -> None:
        self._cluster, self._plan, self._variant, self._say = cluster, plan, variant, say
        more = {TOPIC_ORDER: variant.topics[::-1]} if variant.kind == TOPIC_ORDER else {}
        self._settings = cluster.settings(f"order-{variant.name}", topics=variant.topics, **more)

    def judged(self) -> list[Judged]:
        """Every pair but those of the warm-up, and whether its child came first."""
        plan, name = self._plan, self._variant.name
        self._cluster.subscribe(self._settings, [self._variant.topics])
        # In one batch, so that the topics' numbers are in the order of their names.
        fill(self._cluster.servers, self._variant.topics, _FIRST)
        with self._cluster.sequencing(self._settings) as query:
            times = BatchTimes(query)
            live = cases_of(self._variant, read=False)
            self._say(f"{name}: warming up")
            warm = self._published(times, drawn(live, round(plan.rate * plan.warm_up_s)), read=False)
            self._say(f"{name}: {plan.pairs} pairs of each of {len(live)} cases")
            pairs = self._published(times, drawn(live, plan.pairs * len(live)), read=False)
            read = cases_of(self._variant, read=True)
            self._say(f"{name}: {plan.pairs} pairs of each of {len(read)} cases after reading")
            pairs += self._published(times, drawn(read, plan.pairs * len(read)), read=True)
            stamps = self._stamps(times, len(_FIRST) + 2 * (len(warm) + len(pairs)))
        first = are_children_first(pairs, stamps)
        self._say(f"{name}: {sum(first)} of {len(pairs)} children came first")
        return [
            Judged(pair.case, pair.gap_s, pair.acknowledged_s, is_first)
            for pair, is_first in zip(pairs, first, strict=True)
        ]

    def _published(self, times: BatchTimes, cases: Sequence[Case], *, read: bool) -> list[Pair]:
        variant, settings, rate = self._variant, self._settings, self._plan.rate
        arguments = (self._cluster.servers, variant.topics, variant.each, cases, rate)
        work = Worker(publish_after_reading, *arguments, settings.domain) if read else Worker(publish_pairs, *arguments)
        deadline = time.monotonic() + 2 * len(cases) / rate + 2 * _PATIENCE_S
        with work as publisher:
            while not publisher.pipe.poll(_LOOK_S):
                times.look()
                if time.monotonic() > deadline:
                    raise Error("publishing pairs of events cannot keep up", remedy="The machine is too busy")
            pairs: list[Pair] = publisher.hear("publish pairs", _LOOK_S)
        return pairs

    def _stamps(self, times: BatchTimes, count: int) -> Stamps:
        """As soon as there are so many."""
        deadline = time.monotonic() + _PATIENCE_S
        while len((stamps := read_stamps(self._settings)).g) < count:
            times.look()
            if time.monotonic() > deadline:
                raise Error(
                    f"{len(stamps.g)} of {count} stamps came within {_PATIENCE_S:g} s",
                    remedy="This machine is too slow for the load",
                )
            time.sleep(_READING_S)
        return stamps
