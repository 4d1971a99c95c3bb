"""`totalorder bench figures`: the figures of the paper's evaluation (§5.3, §5.4), measured here.

Timestamp size comes from subscriptions alone, what the paper's servers forward from its protocol, and delay and
throughput from the real job.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from totalorder.bench.figures.live import Domains, Load, Seen, measured
from totalorder.bench.figures.page import page
from totalorder.bench.figures.panels import draw_all
from totalorder.bench.figures.paper import SERVERS, Forwarded, forwarded_by_site
from totalorder.bench.figures.size import TimestampSize, timestamp_sizes
from totalorder.bench.outcome import Outcome, Request, Say, Size, Table, write_text
from totalorder.bench.workload import SHAPES, Workload

TOPICS = 1_000
Sizes = Mapping[tuple[float, int], Mapping[int, TimestampSize]]
"""(shape, topic-subscriptions) → m → sizes."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. Subscriptions are pairs of a subscriber and a topic."""

    clients: int
    sizes: tuple[int, ...]
    """Topics of each client, for the timestamps' size."""
    events: int
    rates: tuple[int, ...]
    subscriptions: tuple[int, ...]
    rate: int
    """At which the number of subscriptions varies."""
    live: Domains
    draws: int
    """Of subscriptions, for what the paper's servers forward."""

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(
                clients=200,
                sizes=(1, 10),
                events=2_000,
                rates=(400,),
                subscriptions=(1_000,),
                rate=400,
                live=Domains(subscribers=100, warm_up_s=0.5, phase_s=1),
                draws=1,
            ),
            quick=cls(
                clients=10_000,
                sizes=(1, 10, 50, 200),
                events=20_000,
                rates=(500, 5_000),
                subscriptions=(10_000, 200_000),
                rate=5_000,
                live=Domains(subscribers=1_000, warm_up_s=5, phase_s=6),
                draws=5,
            ),
            full=cls(
                clients=10_000,
                sizes=(1, 2, 5, 10, 20, 50, 100, 200),
                events=60_000,
                rates=(500, 1_000, 2_000, 5_000, 10_000),
                subscriptions=(10_000, 50_000, 200_000),
                rate=5_000,
                live=Domains(subscribers=1_000, warm_up_s=10, phase_s=10),
                draws=10,
            ),
        )

    def by_rate(self, shape: float) -> list[Load]:
        """Loads of figures 9 and 10."""
        return [Load(shape=shape, subscriptions=self.subscriptions[0], rate=rate) for rate in self.rates]

    def by_subscriptions(self, shape: float) -> list[Load]:
        """Loads of figures 13 and 14."""
        return [Load(shape=shape, subscriptions=count, rate=self.rate) for count in self.subscriptions]

    def loads(self) -> list[Load]:
        """All, each once."""
        found = [load for shape in SHAPES for load in (*self.by_rate(shape), *self.by_subscriptions(shape))]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, kw_only=True)
class Found:
    """All that was measured."""

    sizes: Sizes
    forwarded: Mapping[tuple[float, int], Forwarded]
    """By shape and topic-subscriptions."""
    live: Mapping[Load, Seen]


def run(request: Request) -> Outcome:
    """All figures; plots, data and a page that explains them below `request.out`."""
    plan = Plan.of(request.size)
    found = Found(
        sizes=_sizes(plan, request.say),
        forwarded=_forwarded(plan, request.say),
        live=measured(plan.live, plan.loads(), request.say),
    )
    data = summary(plan, found)
    shown = tables(data)

    def write() -> list[Path]:
        texts = {"figures.json": json.dumps(data, indent=1), "index.md": page(shown)}
        return [*draw_all(request.out, data), *(write_text(request.out / name, text) for name, text in texts.items())]

    return Outcome(data=data, tables=shown, write=write)


def _sizes(plan: Plan, say: Say) -> Sizes:
    found = {}
    for shape in SHAPES:
        for size in plan.sizes:
            say(f"Timestamp size, shape {shape}: {plan.clients:,} clients of {size} topics")
            found[shape, plan.clients * size] = timestamp_sizes(
                Workload(topics=TOPICS, shape=shape), plan.clients, size, plan.events
            )
    return found


def _forwarded(plan: Plan, say: Say) -> dict[tuple[float, int], Forwarded]:
    say("What the paper's servers would forward to each other")
    clients = plan.live.subscribers
    return {
        (shape, count): forwarded_by_site(Workload(topics=TOPICS, shape=shape), clients, count // clients, plan.draws)
        for shape in SHAPES
        for count in plan.subscriptions
    }


# --- results ----------------------------------------------------------------------------------------------------------


def summary(plan: Plan, found: Found) -> dict[str, Any]:
    """The JSON of the benchmark."""

    def live(axis: str, loads: Callable[[float], list[Load]], *names: str) -> dict[str, Any]:
        return {
            str(shape): [
                {axis: getattr(load, axis)} | {name: round(getattr(found.live[load], name), 3) for name in names}
                for load in loads(shape)
            ]
            for shape in SHAPES
        }

    delay, share = ("mean_ms", "p50_ms", "p99_ms"), ("stamps_share", "event_bytes", "stamp_bytes")
    return {
        "size": {str(shape): _size_points(shape, found.sizes) for shape in SHAPES},
        "latency_by_rate": live("rate", plan.by_rate, *delay),
        "throughput_by_rate": live("rate", plan.by_rate, "stamps_per_s"),
        "latency_by_subscriptions": live("subscriptions", plan.by_subscriptions, *delay),
        "throughput_by_subscriptions": live("subscriptions", plan.by_subscriptions, "stamps_per_s"),
        "bandwidth": {
            "paper": {str(shape): _server_points(shape, found.forwarded) for shape in SHAPES},
            "between_managers": 0,
            "by_rate": live("rate", plan.by_rate, *share),
            "by_subscriptions": live("subscriptions", plan.by_subscriptions, *share),
        },
    }


def _size_points(shape: float, sizes: Sizes) -> list[dict[str, Any]]:
    return [
        {"subscriptions": count, **_rounded(by_m[2]), "m1": _rounded(by_m[1])}
        for (of, count), by_m in sizes.items()
        if of == shape
    ]


def _rounded(size: TimestampSize) -> dict[str, float]:
    return {name: round(value, 2) for name, value in asdict(size).items()}


def _server_points(shape: float, found: Mapping[tuple[float, int], Forwarded]) -> list[dict[str, Any]]:
    return [
        {"subscriptions": count, **{name: each.round(4).tolist() for name, each in vars(forwarded).items()}}
        for (of, count), forwarded in found.items()
        if of == shape
    ]


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The same for a person."""
    return [
        _size_table(data["size"]),
        _live_table("rate", "events/s", data),
        _live_table("subscriptions", "subscriptions", data),
        _server_table(data["bandwidth"]["paper"]),
    ]


def _size_table(sizes: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    return Table(
        title="Timestamp size, entries (figures 7, 8)",
        columns=("shape", "subscriptions", "m=2 mean", "std", "delta", "m=1 mean", "std", "delta"),
        rows=[
            [shape, f"{point['subscriptions']:,}", *_size_cells(point), *_size_cells(point["m1"])]
            for shape, points in sizes.items()
            for point in points
        ],
    )


def _size_cells(size: Mapping[str, float]) -> list[str]:
    return [f"{size[name]:.1f}" for name in ("mean", "std", "delta_entries")]


def _live_table(axis: str, title: str, data: Mapping[str, Any]) -> Table:
    delays, speeds = data[f"latency_by_{axis}"], data[f"throughput_by_{axis}"]
    shares = data["bandwidth"][f"by_{axis}"]
    figures = {"rate": "9, 10", "subscriptions": "13, 14"}[axis]
    return Table(
        title=f"From publishing to stamp, ms (figures {figures})",
        columns=("shape", title, "mean", "p50", "p99", "stamps/s", "of bytes"),
        rows=[
            (
                *(shape, f"{delay[axis]:,}", *(f"{delay[name]:,.0f}" for name in ("mean_ms", "p50_ms", "p99_ms"))),
                *(f"{speed['stamps_per_s']:,.0f}", f"{share['stamps_share']:.1%}"),
            )
            for shape in delays
            for delay, speed, share in zip(delays[shape], speeds[shape], shares[shape], strict=True)
        ],
    )


def _server_table(paper: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    return Table(
        title="Forwarded to other servers by the paper's protocol (figures 11, 12)",
        columns=("shape", "subscriptions", "counted", *(str(number) for number in range(1, SERVERS + 1))),
        rows=[
            [shape, f"{point['subscriptions']:,}", label, *(f"{each:.1%}" for each in point[name])]
            for shape, points in paper.items()
            for point in points
            for label, name in (("once", "once"), ("per TM", "per_manager"))
        ],
    )
