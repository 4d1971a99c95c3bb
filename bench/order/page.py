"""What `totalorder bench order` makes of what it saw: JSON, tables and a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from totalorder.bench.order.load import CLOCKS_MS, Case
from totalorder.bench.outcome import Table, markdown

_HEAD = """# Which of two events comes first

    totalorder bench order            # three quarters of an hour; --quick: five minutes; --out DIR writes this page

There is one order, and all subscribers see it. This page says how well it follows cause and effect: a child event,
such as a refund, is published after its parent, such as a payment, was acknowledged by the broker (or delivered by a
subscriber: *read*). The tables say how many of the children come before their parents all the same.

The columns are the time from the parent's acknowledgement to the call that publishes the child, in ms. *Clock* is the
one of the child's producer, which gives the record its time; the parent's is right, and read before it is published:
an acknowledgement that takes longer than a clock is behind hides that the clock is wrong. *Names* says whether the
name of the parent's topic or the child's is the first by the alphabet; the job saw both topics in its first batch.
Half of the partitions are the parent topic's, half the child's; each event goes to one by chance. Producers wait for
all replicas (`acks=all`) and do not linger. Pairs with all gaps are published in mixed order at a steady rate, one
clock after the other (a partition's time is the latest of its records': a right clock would lend its time to a wrong
one), through the real job, against one local broker.
"""
_TITLES = {
    "plain": "Children first: record times by the producers",
    "log-append": "Children first: record times by the broker (LogAppendTime)",
    "topic_order": "Children first: record times by the producers, and topic_order names the parent's topic first",
}
_READ = "read"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """Two topics of `each` partitions, in the order of their names; `kind` is a key of the tables' titles."""

    kind: str
    partitions: int

    @classmethod
    def of(cls, partitions: int, kind: str) -> "Variant":
        return cls(kind=kind, partitions=partitions)

    @property
    def name(self) -> str:
        return f"{self.kind.replace('_', '-')}-{self.partitions}"

    @property
    def topics(self) -> tuple[str, str]:
        return f"{self.name}-a", f"{self.name}-b"

    @property
    def each(self) -> int:
        return self.partitions // 2

    @property
    def configs(self) -> dict[str, str]:
        """Of the topics."""
        return {"message_timestamp_type": "LogAppendTime"} if self.kind == "log-append" else {}


class Judged(NamedTuple):
    """One pair: its times as `Pair` has them, and whether the child came first in π."""

    case: Case
    gap_s: float
    acknowledged_s: float
    is_child_first: bool


def summary(pairs: int, found: Mapping[Variant, Sequence[Judged]]) -> dict[str, Any]:
    """Of each variant every case; `pairs` is how many each has."""
    return {
        "pairs_a_case": pairs,
        "children_first": sum(judged.is_child_first for all_judged in found.values() for judged in all_judged),
        "pairs": sum(map(len, found.values())),
        "cases": [
            {"kind": variant.kind, "partitions": variant.partitions} | _case(case, all_judged)
            for variant, all_judged in found.items()
            for case in dict.fromkeys(sorted((judged.case for judged in all_judged), key=_place))
        ],
    }


def _place(case: Case) -> tuple[bool, int, bool, int]:
    return not case.parent_named_first, [*CLOCKS_MS].index(case.clock), case.gap_ms is None, case.gap_ms or 0


def _case(case: Case, all_judged: Sequence[Judged]) -> dict[str, Any]:
    own = [judged for judged in all_judged if judged.case == case]
    return {
        "parent_named_first": case.parent_named_first,
        "clock": case.clock,
        "gap_ms": case.gap_ms,
        "pairs": len(own),
        "children_first": sum(judged.is_child_first for judged in own),
        "true_gap_ms": _percentiles([judged.gap_s for judged in own]),
        "acknowledged_ms": _percentiles([judged.acknowledged_s for judged in own]),
    }


def _percentiles(seconds: Sequence[float]) -> dict[str, float]:
    median, p99 = np.percentile(seconds, (50, 99)) * 1_000
    return {"median": round(float(median), 2), "p99": round(float(p99), 2)}


# --- for a person -----------------------------------------------------------------------------------------------------


def tables(data: Mapping[str, Any]) -> list[Table]:
    """One for each kind of variant, and the times as they were."""
    kinds = dict.fromkeys(case["kind"] for case in data["cases"])
    return [*(_shares(kind, data) for kind in kinds), _times(data["cases"])]


def page(data: Mapping[str, Any]) -> str:
    """Markdown."""
    return "\n".join([_HEAD, *map(markdown, tables(data))])


def _shares(kind: str, data: Mapping[str, Any]) -> Table:
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for case in data["cases"]:
        if case["kind"] == kind:
            first = "parent, child" if case["parent_named_first"] else "child, parent"
            clock = "the broker's" if kind == "log-append" else case["clock"]
            rows.setdefault((str(case["partitions"]), first, clock), {})[_gap(case)] = _share(case)
    columns = dict.fromkeys(gap for row in rows.values() for gap in row)
    return Table(
        title=f"{_TITLES[kind]} ({data['pairs_a_case']:,} pairs each)",
        columns=("partitions", "names", "clock", *columns),
        rows=[(*head, *(row[gap] for gap in columns)) for head, row in rows.items()],
    )


def _gap(case: Mapping[str, Any]) -> str:
    return _READ if case["gap_ms"] is None else str(case["gap_ms"])


def _share(case: Mapping[str, Any]) -> str:
    """A single child of thousands is not to be rounded away."""
    first, pairs = case["children_first"], case["pairs"]
    if not first:
        return "0"
    return f"{first / pairs:.1%}" if first * 200 >= pairs else f"{first} of {pairs:,}"


def _times(cases: Sequence[Mapping[str, Any]]) -> Table:
    """Of acknowledgements and of each gap over its cases: the median of medians, and the worst 99th percentile."""
    by_name: dict[str, list[Mapping[str, float]]] = {}
    for case in cases:
        name = f"acknowledgement, {case['partitions']} partitions"
        by_name.setdefault(name, []).append(case["acknowledged_ms"])
    for case in cases:
        by_name.setdefault(f"gap {_gap(case)}", []).append(case["true_gap_ms"])
    return Table(
        title="Times as they were, ms",
        columns=("", "median", "largest 99th percentile"),
        rows=[
            (name, f"{np.median([each['median'] for each in of]):.2f}", f"{max(each['p99'] for each in of):.2f}")
            for name, of in by_name.items()
        ],
    )
