"""`totalorder bench growth`: what a larger domain costs, in the engine alone: processor time, and bytes of state.

Two lines from one seed: more topics under as many subscriptions, and more topic-subscriptions (pairs of a subscriber
and a topic) over as many topics, up to the paper's two million (§5.2).
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from totalorder.bench.domain import Domain
from totalorder.bench.outcome import Outcome, Request, Table
from totalorder.bench.plots import line_plot
from totalorder.bench.timing import best_of, timed
from totalorder.bench.workload import Workload
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.state import State, decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import encode_answer

BATCH = 2_500
SHAPE = 0.349
"""The flatter of the paper's two shapes, which has the larger sequencing groups."""
_BULK = 1_000
"""Subscriptions that are asked for in one batch."""
_SETTLE, _REPEATS = 20_000, 5


@dataclass(frozen=True, kw_only=True)
class Scale:
    """One domain: `subscribers` hold `size` of `topics` topics each."""

    topics: int
    subscribers: int
    size: int

    @property
    def topic_subscriptions(self) -> int:
        """Pairs of a subscriber and a topic."""
        return self.subscribers * self.size


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one domain costs. Times are the processor's."""

    topics: int
    subscribers: int
    size: int
    topic_subscriptions: int
    mean_group: float
    subscriptions_per_s: float
    topic_subscription_us: float
    """A subscription's cost, divided by its topics."""
    batch_ms: float
    """Stamps of 2,500 events made and encoded."""
    entries_per_event: float
    hot_bytes: int
    cold_bytes: int
    save_ms: float
    """Both parts of the state encoded; the cold one only when a subscription or a name changed."""
    recovery_ms: float
    """Both parts decoded."""
    first_batch_ms: float
    """The first batch after that, in which what is derived from the state is derived anew."""


READING = "recovery_ms by bytes"
CLAIMS: Mapping[str, float | None] = {
    "topic_subscription_us": 0.5,
    "batch_ms": 0.5,
    "entries_per_event": 0.5,
    "cold_bytes": 1.0,
    "save_ms": 1.0,
    "recovery_ms": None,
    READING: 1.0,
}
"""Each measure, and what its exponent must not exceed along either line."""


def run(request: Request) -> Outcome:
    """Both lines; plots and all points below `request.out`."""
    by_topics, by_subscriptions = request.size.pick(smoke=_SMOKE, quick=_QUICK, full=_FULL)
    known: dict[Scale, Point] = {}
    for scale in dict.fromkeys((*by_topics, *by_subscriptions)):
        request.say(f"{scale.topics:,} topics, {scale.subscribers:,} subscribers of {scale.size}")
        known[scale] = measure(scale)
    lines = {
        "topics": [known[scale] for scale in by_topics],
        "topic_subscriptions": [known[scale] for scale in by_subscriptions],
    }
    slopes = {axis: slopes_of(points, axis) for axis, points in lines.items()}
    broken = exceeded(slopes)

    def write() -> list[Path]:
        plots = [_plot(request.out / f"growth-{axis.replace('_', '-')}.png", lines[axis], axis) for axis in lines]
        return [_csv(request.out / "growth.csv", known.values()), *plots]

    return Outcome(
        data={
            **{axis: {"points": [asdict(point) for point in lines[axis]], "slopes": slopes[axis]} for axis in lines},
            "claims_held": not broken,
        },
        tables=[*(_table(axis, points) for axis, points in lines.items()), _slopes_table(slopes)],
        write=write,
        broken=request.size.pick(smoke=(), quick=broken, full=broken),  # the smallest sizes say nothing about times
    )


def _scales(topics: Sequence[int], subscribers: int, sizes: Sequence[int]) -> tuple[list[Scale], list[Scale]]:
    """The two lines. The second begins with a tenth of the subscribers."""
    most = 1_000
    return (
        [Scale(topics=count, subscribers=subscribers, size=10) for count in topics],
        [
            Scale(topics=most, subscribers=subscribers // 10, size=10),
            *(Scale(topics=most, subscribers=subscribers, size=size) for size in sizes),
        ],
    )


_SMOKE = _scales([10, 100], 100, [10, 20])
_QUICK = _scales([10, 100, 1_000, 10_000], 2_000, [10, 20, 50, 100, 200])
_FULL = _scales([10, 100, 1_000, 10_000], 10_000, [10, 20, 50, 100, 200])


def measure(scale: Scale) -> Point:
    """Builds the domain through the engine, and takes its measure."""
    workload = Workload(topics=scale.topics, shape=SHAPE)
    domain = Domain(workload, min_subscriptions=1, events=_SETTLE + BATCH * (_REPEATS + 1))
    subscribing = _subscribe(domain, workload, scale)
    domain.run(domain.next_batch(_SETTLE))
    batch_s, entries = min(_batch(domain) for _ in range(_REPEATS))
    (hot, cold), save_s = best_of(_REPEATS, lambda: (encode_hot(domain.state.hot), encode_cold(domain.state.cold)))
    recovered, recovery_s = best_of(_REPEATS, lambda: State(hot=decode_hot(hot), cold=decode_cold(cold)))
    domain.state = recovered
    first_s, _ = _batch(domain)
    return Point(
        **asdict(scale),
        topic_subscriptions=scale.topic_subscriptions,
        mean_group=round(float(domain.group_sizes().mean()), 1),
        subscriptions_per_s=round(scale.subscribers / subscribing),
        topic_subscription_us=round(subscribing / scale.topic_subscriptions * 1e6, 2),
        batch_ms=round(batch_s * 1e3, 2),
        entries_per_event=round(entries / BATCH, 2),
        hot_bytes=len(hot),
        cold_bytes=len(cold),
        save_ms=round(save_s * 1e3, 2),
        recovery_ms=round(recovery_s * 1e3, 2),
        first_batch_ms=round(first_s * 1e3, 2),
    )


def _subscribe(domain: Domain, workload: Workload, scale: Scale) -> float:
    """Seconds for all subscriptions to be granted, answers encoded."""
    wanted = workload.subscriptions(scale.subscribers, scale.size)
    total = 0.0
    for first in range(0, scale.subscribers, _BULK):
        requests = domain.requests(wanted[first : first + _BULK])
        _, seconds = timed(partial(_grant, domain, requests))
        total += seconds
    return total


def _grant(domain: Domain, requests: Batch) -> None:
    for answer in domain.run(requests).answers:
        encode_answer(answer)


def _batch(domain: Domain) -> tuple[float, int]:
    """Seconds for the next batch's stamps to be made and encoded, and their entries."""
    batch = domain.next_batch(BATCH)

    def work() -> int:
        stamps = domain.run(batch).stamps
        for stamped in stamps:
            encode_stamps(stamped)
        return sum(len(stamped.rows.entry_topic) for stamped in stamps)

    entries, seconds = timed(work)
    return seconds, entries


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Growth exponent: the slope of the line through the points on logarithmic axes; 1: in proportion, 0: constant."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def slopes_of(points: Sequence[Point], axis: str) -> dict[str, float]:
    """The exponent of each measure along one line; of recovery also against the bytes that it reads."""
    x = [getattr(point, axis) for point in points]
    found = {name: slope(x, [getattr(point, name) for point in points]) for name in CLAIMS if name != READING}
    found[READING] = slope(
        [point.cold_bytes + point.hot_bytes for point in points], [point.recovery_ms for point in points]
    )
    return {name: round(value, 2) for name, value in found.items()}


def exceeded(slopes: Mapping[str, Mapping[str, float]]) -> list[str]:
    """A line for each claim that the exponents of the lines do not keep."""
    return [
        f"the exponent of {_words(name)} as {_words(axis)} grow is {of[name]:.2f}, and must not exceed {most:g}"
        for axis, of in slopes.items()
        for name, most in CLAIMS.items()
        if most is not None and of[name] > most
    ]


def _words(name: str) -> str:
    return name.replace("topic_subscription", "topic-subscription").replace("_", " ")


def _csv(path: Path, points: Iterable[Point]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(Point.__dataclass_fields__))
        writer.writeheader()
        writer.writerows(asdict(point) for point in points)
    return path


def _plot(path: Path, points: Sequence[Point], axis: str) -> Path:
    shown: Mapping[str, Callable[[Point], float]] = {
        "a topic-subscription, µs": lambda point: point.topic_subscription_us,
        f"a batch of {BATCH:,}, ms": lambda point: point.batch_ms,
        "recovery, ms": lambda point: point.recovery_ms,
        "cold state, MB": lambda point: point.cold_bytes / 1e6,
    }
    return line_plot(
        path,
        title=f"Cost as {_words(axis)} grow (m = 1)",
        x=_words(axis),
        y="see the legend",
        lines={name: [(getattr(point, axis), of(point)) for point in points] for name, of in shown.items()},
    )


def _table(axis: str, points: Sequence[Point]) -> Table:
    return Table(
        title=f"As {_words(axis)} grow (m = 1; batch: {BATCH:,} events)",
        columns=("topics", "pairs", "group", "subs/s", "batch ms", "cold MB", "save ms", "read ms"),
        rows=[
            (
                *(f"{point.topics:,}", f"{point.topic_subscriptions:,}", f"{point.mean_group:,.0f}"),
                *(f"{point.subscriptions_per_s:,}", f"{point.batch_ms:.1f}", f"{point.cold_bytes / 1e6:.2f}"),
                *(f"{point.save_ms:,.0f}", f"{point.recovery_ms:,.0f}"),
            )
            for point in points
        ],
    )


def _slopes_table(slopes: Mapping[str, Mapping[str, float]]) -> Table:
    return Table(
        title="Exponents of growth (1: in proportion, 0: constant)",
        columns=("measure", *map(_words, slopes), "must not exceed"),
        rows=[
            (_words(name), *(f"{of[name]:.2f}" for of in slopes.values()), "" if most is None else f"{most:g}")
            for name, most in CLAIMS.items()
        ],
    )
