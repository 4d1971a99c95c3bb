"""`totalorder bench kernel`: timestamps a second of one core, compiled and in plain Python, on the paper's workload."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from totalorder.bench.kernel.twin import PlainStamper
from totalorder.bench.outcome import Outcome, Request, Table
from totalorder.bench.timing import best_of
from totalorder.bench.workload import SHAPES, Workload
from totalorder.sequencer.kernel import Groups, Recency, stamp_run, warm
from totalorder.sequencer.state import EngineConfig

Ints = npt.NDArray[np.int64]
PAPER_STAMPS_PER_S = 4_000
"""Fig. 10: "more than 4k", with 5 servers."""
_TOPICS, _SIZE, _MIN_SUBSCRIPTIONS = 1_000, 10, 2
_KEYFRAME_EVERY = EngineConfig.keyframe_every
"""The job's own default."""
_BATCH = 10_000
_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class _Figures:
    stamps_per_s: float
    twin_per_s: float
    mean_group: float
    entries_per_event: float


def run(request: Request) -> Outcome:
    """Both shapes, in processor time; the best of some repetitions, since whatever else runs can only slow it."""
    subscribers, events, twin_events = request.size.pick(
        smoke=(200, 2_000, 500), quick=(10_000, 200_000, 5_000), full=(10_000, 1_000_000, 20_000)
    )
    found: dict[str, _Figures] = {}
    for shape in SHAPES:
        request.say(f"shape {shape}: {subscribers:,} subscribers of {_SIZE} out of {_TOPICS:,} topics")
        workload = Workload(topics=_TOPICS, shape=shape)
        members = groups_of(workload.subscriptions(subscribers, _SIZE), _TOPICS, _MIN_SUBSCRIPTIONS)
        found[str(shape)] = _measured(members, workload.events(events), twin_events, request)
    return Outcome(data={shape: _json(figures) for shape, figures in found.items()}, tables=[_table(found)])


def groups_of(subscriptions: Ints, topics: int, min_subscriptions: int) -> list[Ints]:
    """SG_T \\ {T} of every topic: those that at least `min_subscriptions` rows hold together with it."""
    together = np.zeros((topics, topics), dtype=np.int32)
    for row in subscriptions:
        together[np.ix_(row, row)] += 1
    np.fill_diagonal(together, 0)
    return [np.flatnonzero(row >= min_subscriptions) for row in together]


def _measured(members: list[Ints], events: Ints, twin_events: int, request: Request) -> _Figures:
    groups = _as_groups(members)
    warm()
    request.say(f"  the kernel, {len(events):,} events, {_REPEATS} times")
    entries, seconds = best_of(_REPEATS, lambda: _stamped(groups, events))
    request.say(f"  its twin in Python, {twin_events:,} events, {_REPEATS} times")
    plain = events[:twin_events].tolist()
    by_topic = dict(enumerate(peers.tolist() for peers in members))
    _, twin_seconds = best_of(_REPEATS, lambda: _twin(by_topic, plain))
    return _Figures(
        stamps_per_s=len(events) / seconds,
        twin_per_s=twin_events / twin_seconds,
        mean_group=float(np.mean([len(peers) for peers in members])),
        entries_per_event=entries / len(events),
    )


def _stamped(groups: Groups, events: Ints) -> int:
    """Stamps the events batch after batch; returns the number of entries written."""
    clocks, last_g = np.zeros_like(groups.topic), np.zeros_like(groups.topic)
    recency, entries = Recency.of(last_g), 0
    for first in range(0, len(events), _BATCH):
        batch = events[first : first + _BATCH]
        entries += len(stamp_run(batch, groups, _KEYFRAME_EVERY, first, clocks, last_g, recency).entry_topic)
    return entries


def _twin(members: Mapping[int, list[int]], events: list[int]) -> int:
    none = [0] * len(members)
    twin = PlainStamper(members=members, every=_KEYFRAME_EVERY, clocks=none.copy(), last_g=none.copy())
    return sum(1 for _ in twin.stamp(events))


def _as_groups(members: list[Ints]) -> Groups:
    size = len(members)
    return Groups.of(
        np.arange(size, dtype=np.int64),
        own=np.ones(size, dtype=np.bool_),
        rekey=np.zeros(size, dtype=np.bool_),
        members=members,
        forced=[members[0][:0]] * size,
        topics=size,
    )


def _json(figures: _Figures) -> dict[str, float]:
    return {
        "stamps_per_s": round(figures.stamps_per_s),
        "ratio_to_twin": round(figures.stamps_per_s / figures.twin_per_s, 1),
        "ratio_to_paper": round(figures.stamps_per_s / PAPER_STAMPS_PER_S, 1),
        "mean_group": round(figures.mean_group, 1),
        "entries_per_event": round(figures.entries_per_event, 2),
    }


def _table(found: Mapping[str, _Figures]) -> Table:
    return Table(
        title="Timestamps a second, one core (m = 2)",
        columns=("shape", "kernel", "twin", "to the twin", "to the paper", "group", "entries"),
        rows=[
            (
                shape,
                f"{figures.stamps_per_s:,.0f}",
                f"{figures.twin_per_s:,.0f}",
                f"{figures.stamps_per_s / figures.twin_per_s:,.0f}",
                f"{figures.stamps_per_s / PAPER_STAMPS_PER_S:,.0f}",
                f"{figures.mean_group:.1f}",
                f"{figures.entries_per_event:.1f}",
            )
            for shape, figures in found.items()
        ],
    )
