"""`totalorder bench job`: the sequencer job against Spark queries that only copy the same topics.

All run in one Spark session by turns, with its Java and its file system, against one local broker: a copy with Spark's
and Kafka's own settings, and one with those that were found for the job.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.bench.live.cluster import Cluster, copy_of
from totalorder.bench.live.load import (
    Floats,
    Receiver,
    Worker,
    fill,
    publish_paced,
    receive_ordered,
    receive_plain,
)
from totalorder.bench.live.progress import (
    PARTS,
    WHOLE,
    BatchTime,
    BatchTimes,
    events_per_s,
    parts_ms,
    stages_and_tasks,
    state_bytes,
    whole_batches,
)
from totalorder.bench.outcome import Outcome, Request, Say, Size, Table
from totalorder.config import Settings
from totalorder.errors import Error

TOPICS = ("a", "b", "c", "d")
KINDS = {"copy": "copy", "tuned": "tuned copy", "job": "job"}
"""What runs by turns, and how it is called."""
SLOWEST = 200
"""Events a second of the phase that the heads of the results are about."""
_BACKLOG_TIMEOUT_S = 400.0
_ARRIVAL_TIMEOUT_S = 60.0
_LOOK_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. A phase publishes for `phase_s` seconds at each of `rates`, after `settle_s` at the first of
    them; in round 0, after `warm_up_s`.
    """

    events: int
    batch: int
    rounds: int
    rates: tuple[int, ...]
    warm_up_s: float
    settle_s: float
    phase_s: float

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(events=4_000, batch=1_000, rounds=1, rates=(SLOWEST,), warm_up_s=1, settle_s=1, phase_s=2),
            quick=cls(events=200_000, batch=50_000, rounds=1, rates=(SLOWEST,), warm_up_s=15, settle_s=5, phase_s=12),
            full=cls(
                events=10**6,
                batch=100_000,
                rounds=2,
                rates=(SLOWEST, 1_000, 5_000),
                warm_up_s=180,
                settle_s=20,
                phase_s=20,
            ),
        )


@dataclass
class Measured:
    """What was seen of one kind of query, all rounds together; delays in seconds, by rate."""

    backlog: list[BatchTime] = field(default_factory=list)
    small: list[BatchTime] = field(default_factory=list)
    delays: dict[int, list[Floats]] = field(default_factory=dict)
    stages: int = 0
    tasks: int = 0
    state_bytes: int = 0


def run(request: Request) -> Outcome:
    """The delays first, then throughput; round 0 of each counts for nothing: Java warms up, which takes minutes."""
    plan = Plan.of(request.size)
    measured = {kind: Measured() for kind in KINDS}
    request.say("Starting a broker and Spark")
    with Cluster(TOPICS, max_events_per_batch=plan.batch) as cluster:
        request.say(f"Publishing a backlog of {plan.events} events")
        fill(cluster.servers, TOPICS, [None] * plan.events)
        for number in range(plan.rounds + 1):
            for kind in KINDS:
                kept = measured[kind] if number else Measured()
                _Delays(cluster, plan, kept, request.say).run(kind, number)
        _backlogs(cluster, plan, measured, request.say)
    data = summary(measured)
    return Outcome(data=data, tables=tables(data))


# --- throughput -------------------------------------------------------------------------------------------------------


def _backlogs(cluster: Cluster, plan: Plan, measured: Mapping[str, Measured], say: Say) -> None:
    for number in range(plan.rounds + 1):
        for kind in KINDS:
            settings = cluster.settings(f"backlog-{kind}-{number}")
            if kind == "job":
                cluster.subscribe(settings, [TOPICS])
            with _running(cluster, kind, settings) as query:
                batches = BatchTimes(query).until_read(plan.events, _BACKLOG_TIMEOUT_S)
            counted = whole_batches(batches)
            if number:
                measured[kind].backlog += counted
            say(f"Backlog, round {number}, {KINDS[kind]}: {events_per_s(counted):,.0f} events/s")


@contextmanager
def _running(cluster: Cluster, kind: str, settings: Settings) -> Iterator[StreamingQuery]:
    running = cluster.sequencing(settings) if kind == "job" else cluster.copying(settings, tuned=kind == "tuned")
    with running as query:
        yield query


# --- delays -----------------------------------------------------------------------------------------------------------


class _Delays:
    """One kind's turn: its query, a receiver, and a publisher for each rate."""

    def __init__(self, cluster: Cluster, plan: Plan, measured: Measured, say: Say) -> None:
        self._cluster = cluster
        self._plan = plan
        self._measured = measured
        self._say = say

    def run(self, kind: str, number: int) -> None:
        """Starts everything, publishes, and notes the delays once all has arrived."""
        cluster, plan = self._cluster, self._plan
        settle_s = plan.settle_s if number else plan.warm_up_s
        self._say(
            f"Delays, round {number}, {KINDS[kind]}: starting; {settle_s:g} s at {plan.rates[0]} events/s come first"
        )
        settings = cluster.settings(f"delay-{kind}-{number}", starting_offsets="latest")
        with _running(cluster, kind, settings) as query, self._receiver(kind, settings.domain) as receiver:
            times = BatchTimes(query)
            sent = self._publish(times, plan.rates[0], settle_s)[1]
            skipped = len(times.look())
            phases = {}
            for rate in plan.rates:
                began, count = self._publish(times, rate, plan.phase_s)
                sent += count
                phases[rate] = (began, count)
                if rate == plan.rates[0]:
                    self._measured.small += times.look()[skipped:]
                    self._measured.stages, self._measured.tasks = stages_and_tasks(cluster.spark, query)
            rows = receiver.all_of(sent, _ARRIVAL_TIMEOUT_S)
            if kind == "job":
                self._measured.state_bytes = state_bytes(cluster.folder / settings.domain)
        self._note(kind, number, phases, rows)

    def _receiver(self, kind: str, domain: str) -> Receiver:
        if kind == "job":
            return Receiver(receive_ordered, self._cluster.servers, TOPICS, domain)
        return Receiver(receive_plain, self._cluster.servers, [copy_of(topic) for topic in TOPICS])

    def _publish(self, times: BatchTimes, rate: int, seconds: float) -> tuple[float, int]:
        """When it began, and how many events it published."""
        began = time.time()
        with Worker(publish_paced, self._cluster.servers, TOPICS, rate, seconds) as publisher:
            while not publisher.ended(_LOOK_S):
                times.look()
                if time.time() - began > 3 * seconds + _ARRIVAL_TIMEOUT_S:
                    raise Error(f"publishing {rate} events/s cannot keep up", remedy="The machine is too busy")
        return began, round(rate * seconds)

    def _note(self, kind: str, number: int, phases: Mapping[int, tuple[float, int]], rows: Floats) -> None:
        ends = [*(began for began, _ in phases.values()), math.inf][1:]
        for (rate, (began, count)), end in zip(phases.items(), ends, strict=True):
            delays = delays_between(rows, began, end)
            if len(delays) != count:
                raise Error(
                    f"{len(delays)} of {count} events came through the {KINDS[kind]} at {rate} events/s",
                    remedy=f"It had {_ARRIVAL_TIMEOUT_S:g} s to catch up: this machine is too slow for the rate",
                )
            self._measured.delays.setdefault(rate, []).append(delays)
            p50, p99 = percentiles_ms([delays])
            self._say(f"Delays, round {number}, {KINDS[kind]} at {rate} events/s: p50 {p50:.0f} ms, p99 {p99:.0f} ms")


def delays_between(rows: Floats, began: float, end: float) -> Floats:
    """Delays of the events (sent, received) that were sent in [began, end)."""
    sent = rows[:, 0]
    found: Floats = (rows[:, 1] - sent)[(sent >= began) & (sent < end)]
    return found


def percentiles_ms(delays: Sequence[Floats]) -> tuple[float, float]:
    """Median and 99th percentile of all of them together, in milliseconds."""
    p50, p99 = np.percentile(np.concatenate(delays), (50, 99)) * 1_000
    return float(p50), float(p99)


# --- results ----------------------------------------------------------------------------------------------------------


def summary(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """The JSON of the benchmark; ratios are the job's to the copy's, and under `tuned_…` to the tuned copy's."""
    speeds = {kind: events_per_s(each.backlog) for kind, each in measured.items()}
    rates = {
        str(rate): _compared({kind: percentiles_ms(each.delays[rate]) for kind, each in measured.items()})
        for rate in measured["job"].delays
    }
    phases = {
        f"{kind}_{name}": parts_ms(batches)
        for name in ("small", "backlog")
        for kind, each in measured.items()
        if (batches := getattr(each, name))
    }
    return {
        "throughput_ratio": speeds["job"] / speeds["copy"],
        "tuned_throughput_ratio": speeds["job"] / speeds["tuned"],
        **{_key(kind, "events_per_s"): speed for kind, speed in speeds.items()},
        **rates[str(SLOWEST)],
        "rates": rates,
        "phases": phases,
        "plans": {kind: {"stages": each.stages, "tasks": each.tasks} for kind, each in measured.items()},
        "state_bytes": measured["job"].state_bytes,
    }


def _key(kind: str, name: str) -> str:
    return name if kind == "job" else f"{kind}_{name}"


def _compared(found: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """Of one rate, from each kind's median and 99th percentile."""
    figures = {}
    for place, part in enumerate(("p50", "p99")):
        figures[f"{part}_ratio"] = found["job"][place] / found["copy"][place]
        figures[f"tuned_{part}_ratio"] = found["job"][place] / found["tuned"][place]
        figures |= {_key(kind, f"{part}_ms"): both[place] for kind, both in found.items()}
    return figures


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The same for a person."""
    compared = (*KINDS.values(), "job : copy", "job : tuned")
    speeds = [f"{data[_key(kind, 'events_per_s')]:,.0f}" for kind in KINDS]
    ratios = [f"{data[key]:.2f}" for key in ("throughput_ratio", "tuned_throughput_ratio")]
    plans = [[what, *(str(data["plans"][kind][what]) for kind in KINDS), "", "", ""] for what in ("stages", "tasks")]
    state = ["state bytes written", "0", "0", str(data["state_bytes"]), "", "", ""]
    return [
        Table(
            title="Backlog of 200-byte events, events/s", columns=("", *compared), rows=[("events/s", *speeds, *ratios)]
        ),
        *(
            Table(
                title=f"Published to received, ms: {title}",
                columns=("events/s", *compared),
                rows=[_delay_row(rate, figures, part) for rate, figures in data["rates"].items()],
            )
            for part, title in (("p50", "median"), ("p99", "99th percentile"))
        ),
        Table(
            title=f"Where a batch's time goes, median ms: small (at {SLOWEST} events/s), and of the backlog",
            columns=("", *KINDS.values(), *KINDS.values()),
            rows=[*([part, *_cells(data["phases"], part)] for part in (WHOLE, *PARTS, "rest")), *plans, state],
        ),
    ]


def _cells(phases: Mapping[str, Mapping[str, float]], part: str) -> list[str]:
    columns = [f"{kind}_{name}" for name in ("small", "backlog") for kind in KINDS]
    return [f"{phases[column][part]:.0f}" for column in columns]


def _delay_row(rate: str, figures: Mapping[str, float], part: str) -> list[str]:
    delays = [f"{figures[_key(kind, f'{part}_ms')]:.0f}" for kind in KINDS]
    return [rate, *delays, *(f"{figures[f'{name}{part}_ratio']:.2f}" for name in ("", "tuned_"))]
