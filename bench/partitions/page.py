"""What `totalorder bench partitions` makes of what it saw: JSON, tables and a page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from totalorder.bench.live.load import Floats
from totalorder.bench.live.memory import Memory
from totalorder.bench.live.progress import WHOLE, BatchTime
from totalorder.bench.outcome import Table, markdown

_HEAD = """# Partitions

    totalorder bench partitions       # forty minutes; --quick: eight; --out DIR writes this page, and data

What partitions of the event topics cost: the sequencer job, and beside it two stateless Spark queries that copy the
same topics, one with Spark's and Kafka's own settings and one with those of the job
([ADR 12](../adr/0012-two-copies.md)), by turns in one Spark session, against one local broker. Topics have up to 64
partitions each; events of 200 random bytes go to all of them in turn. Delays are those of [the job's page](job.md):
from the producer's call to the hand of the receiver, of a copy a plain consumer, of the job a `Subscriber` of all
topics that acknowledges each event. The last layout says what partitions cost that nobody writes to. A kind whose
events had not all come some time after a phase is *behind*, with the share that came; faster loads are then not tried
(-).

With its own settings Spark's source polls for half a second where a partition has nothing more, one partition after the
other: that copy's batches take as long as that.

The publisher is one librdkafka, which sends a request for each partition, at many partitions one for each event: where
the broker cannot keep up with those, everybody's delay is that, and says nothing of who is measured.
"""

_MEMORY = """## Memory

At the end of a turn, in MB. Java is the same one for all turns, so what is resident of it only grows; the heap is what
a full collection leaves. Pages that Python processes share are counted once.
"""

KINDS = {"copy": "copy", "tuned": "tuned copy", "job": "job"}
"""What runs by turns, and how it is called."""
_MEMORIES = ("Java", "heap", "Python")
_PARTS = {"p50_ms": "median", "p99_ms": "99th percentile"}
_MEDIANS = {
    "acknowledged_ms": "Of that until the broker had acknowledged it",
    "trigger_ms": "A trigger that had events",
}


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One load. `delays` are in seconds, of the events that came in time; `missing` counts the others.

    `acknowledged_s`: of such a delay what went by until the broker had the event, in the median.
    """

    delays: Floats
    missing: int
    acknowledged_s: float
    batches: tuple[BatchTime, ...]

    def told(self) -> str:
        """In a line."""
        if self.missing:
            return f"behind, {len(self.delays)} of {len(self.delays) + self.missing} came"
        p50, p99 = np.percentile(self.delays, (50, 99)) * 1_000
        return f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, acknowledged after {self.acknowledged_s * 1_000:,.0f} ms"


@dataclass
class Measured:
    """What was seen of one kind over one layout; phases by rate."""

    phases: dict[int, Phase] = field(default_factory=dict)
    memory: Memory | None = None
    failure: str | None = None


# --- JSON -------------------------------------------------------------------------------------------------------------


def summary(rates: Sequence[int], found: Mapping[str, Mapping[str, Measured]]) -> dict[str, Any]:
    """By the layout's name and rate; ratios are the job's to each copy's, null where one of the two is behind."""
    return {
        layout: {
            "rates": {str(rate): _at(rate, kinds) for rate in rates},
            "memory": {kind: asdict(each.memory) if each.memory else None for kind, each in kinds.items()},
            "failure": {kind: each.failure for kind, each in kinds.items()},
        }
        for layout, kinds in found.items()
    }


def _at(rate: int, kinds: Mapping[str, Measured]) -> dict[str, Any]:
    figures = {kind: _figures(each.phases.get(rate)) for kind, each in kinds.items()}
    ratios = {
        f"{part.removesuffix('_ms')}_to_{kind}": _ratio(figures["job"][part], figures[kind][part])
        for part in _PARTS
        for kind in KINDS
        if kind != "job"
    }
    return figures | ratios


def _figures(phase: Phase | None) -> dict[str, Any]:
    """There are no percentiles where an event did not come in time."""
    delays: Floats = phase.delays if phase else np.empty(0)
    missing, batches = (phase.missing, phase.batches) if phase else (0, ())
    figures: dict[str, Any] = {
        "events": len(delays) + missing,
        "came": len(delays),
        "p50_ms": None,
        "p99_ms": None,
        "acknowledged_ms": phase.acknowledged_s * 1_000 if phase else None,
        "trigger_ms": median(batch.ms[WHOLE] for batch in batches) if batches else None,
    }
    if len(delays) and not missing:
        p50, p99 = np.percentile(delays, (50, 99)) * 1_000
        figures |= {"p50_ms": float(p50), "p99_ms": float(p99)}
    return figures


def _ratio(job: float | None, copy: float | None) -> float | None:
    return job / copy if job is not None and copy is not None else None


# --- for a person -----------------------------------------------------------------------------------------------------


def tables(data: Mapping[str, Any]) -> list[Table]:
    """Delays, the publisher's part of them, triggers, and memory."""
    delays = [_delays(data, part, title) for part, title in _PARTS.items()]
    return [*delays, *(_medians(data, part, title) for part, title in _MEDIANS.items()), _memory(data)]


def page(data: Mapping[str, Any]) -> str:
    """Markdown."""
    *times, memory = map(markdown, tables(data))
    return "\n".join([_HEAD, *times, _failures(data), _MEMORY, memory])


def _delays(data: Mapping[str, Any], part: str, title: str) -> Table:
    ratios = [f"{part.removesuffix('_ms')}_to_{kind}" for kind in KINDS if kind != "job"]
    return Table(
        title=f"Published to received, ms: {title}",
        columns=("partitions", "events/s", *KINDS.values(), "job : copy", "job : tuned"),
        rows=[
            (*load, *(_delay(at[kind], part) for kind in KINDS), *(_number(at[name], 2) for name in ratios))
            for load, at in _loads(data)
        ],
    )


def _medians(data: Mapping[str, Any], part: str, title: str) -> Table:
    return Table(
        title=f"{title}, ms: median",
        columns=("partitions", "events/s", *KINDS.values()),
        rows=[(*load, *(_number(at[kind][part], 0) for kind in KINDS)) for load, at in _loads(data)],
    )


def _loads(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """The first two cells of each load's row, and its figures."""
    for name, layout in data.items():
        for rate, at in layout["rates"].items():
            yield (name, f"{int(rate):,}"), at


def _delay(figures: Mapping[str, Any], part: str) -> str:
    if figures[part] is None and figures["events"]:
        return f"behind: {figures['came'] / figures['events']:.0%}"
    return _number(figures[part], 0)


def _memory(data: Mapping[str, Any]) -> Table:
    kinds = [(kind, name) for kind in KINDS for name in Memory.__dataclass_fields__]
    return Table(
        title="MB",
        columns=("partitions", *(f"{called}: {what}" for called in KINDS.values() for what in _MEMORIES)),
        rows=[
            (called, *(_number((layout["memory"][kind] or {}).get(name), 0) for kind, name in kinds))
            for called, layout in data.items()
        ],
    )


def _failures(data: Mapping[str, Any]) -> str:
    lines = [
        f"- {partitions} partitions, {KINDS[kind]}: {what}\n"
        for partitions, layout in data.items()
        for kind, what in layout["failure"].items()
        if what
    ]
    return "".join(lines)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
