"""`totalorder bench subscriber`: a backlog through a Subscriber, beside the clients that it reads by.

The sequencer has stamped all before anybody reads, and then has nothing to do. Rates are events per second of the
processor's time, all threads of the reading process together, so that the broker's share does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from totalorder.bench.live.cluster import Cluster
from totalorder.bench.live.load import READY_TIMEOUT_S, Worker, fill
from totalorder.bench.live.progress import BatchTimes
from totalorder.bench.outcome import Outcome, Request, Say, Size, Table
from totalorder.bench.subscriber.readers import READERS, Reader, Reading, read, subscribe
from totalorder.errors import Error

LAYOUTS = {"even": ("a", "b", "c", "d"), "skewed": ("e", "f", "g", "h")}
"""Topics of one partition each. Of the skewed ones the first has nearly all events."""
_DOMAIN = "subscriber"
_SKEW = 32
"""Of so many events in skewed topics each of the other topics has one."""
_STAMPS_TIMEOUT_S = 300.0
_READ_TIMEOUT_S = 600.0
_AIMS = {"poll_batch": {"kafka-python": 0.8, "confluent": 0.5}, "iterator": {"kafka-python": 0.5, "confluent": 0.2}}
"""Of the rate of the client alone, by face and client."""
_BEST = {"kafka-python": "poll", "confluent": "poll"}
"""The face of the client alone that a Subscriber's are compared with."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """So many events in each layout, so many turns of each reader, and how long each idles behind it."""

    layouts: tuple[str, ...]
    events: int
    rounds: int
    idle_s: float

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(layouts=("even",), events=2_000, rounds=1, idle_s=0.1),
            quick=cls(layouts=tuple(LAYOUTS), events=150_000, rounds=1, idle_s=5),
            full=cls(layouts=tuple(LAYOUTS), events=1_000_000, rounds=2, idle_s=20),
        )


Found = Mapping[str, Mapping[Reader, Sequence[Reading]]]
"""Readings by layout."""


def run(request: Request) -> Outcome:
    """Every reader by turns over the same backlogs."""
    plan = Plan.of(request.size)
    request.say("Starting a broker and Spark")
    with Cluster([topic for topics in LAYOUTS.values() for topic in topics]) as cluster:
        found = _measured(cluster, plan, request.say)
    return Outcome(data=summary(found), tables=tables(found))


def _measured(cluster: Cluster, plan: Plan, say: Say) -> Found:
    with cluster.sequencing(cluster.settings(_DOMAIN)) as query:
        for layout in plan.layouts:
            topics = LAYOUTS[layout]
            ids = [_id(layout, reader, turn) for reader in READERS if reader.is_ordered for turn in range(plan.rounds)]
            with Worker(subscribe, cluster.servers, topics, _DOMAIN, ids) as subscriber:
                subscriber.hear("subscribe", READY_TIMEOUT_S)
            say(f"Publishing {plan.events:,} events, {layout}")
            fill(cluster.servers, topics if layout == "even" else _skewed(topics), [None] * plan.events)
        BatchTimes(query).until_read(len(plan.layouts) * plan.events, _STAMPS_TIMEOUT_S)
        return {layout: _by_turns(cluster, layout, plan, say) for layout in plan.layouts}


def _by_turns(cluster: Cluster, layout: str, plan: Plan, say: Say) -> dict[Reader, list[Reading]]:
    found: dict[Reader, list[Reading]] = {reader: [] for reader in READERS}
    for turn in range(plan.rounds):
        for reader in READERS:
            id_ = _id(layout, reader, turn)
            arguments = (reader, cluster.servers, LAYOUTS[layout], _DOMAIN, id_, (plan.events, plan.idle_s))
            with Worker(read, *arguments) as worker:
                events, reading = worker.hear("read", _READ_TIMEOUT_S)
            if events != plan.events:
                raise Error(f"{events} of {plan.events} events came to {reader.label}, {layout}")
            say(f"{layout}, {reader.label}: {_rate(reading):,.0f} events per second of processor time")
            found[reader].append(reading)
    return found


def _id(layout: str, reader: Reader, turn: int) -> str:
    return f"{layout}-{reader.client}-{reader.face}-{turn}"


def _skewed(topics: Sequence[str]) -> list[str]:
    """In turn to these: a publisher takes one topic after the other."""
    first, *others = topics
    return [first] * (_SKEW - len(others)) + others


# --- results ----------------------------------------------------------------------------------------------------------


def _rate(reading: Reading) -> float:
    return reading.events / reading.cpu_s


def summary(found: Found) -> dict[str, Any]:
    """The JSON of the benchmark: medians of all turns, and ratios of rates to the client's alone."""
    return {
        layout: {
            f"{'ordered' if reader.is_ordered else 'alone'}_{reader.client}_{reader.face}": _summed(
                readings, reader, of
            )
            for reader, readings in of.items()
        }
        for layout, of in found.items()
    }


def _summed(readings: Sequence[Reading], reader: Reader, beside: Mapping[Reader, Sequence[Reading]]) -> dict[str, Any]:
    figures = {name: median(asdict(each)[name] for each in readings) for name in asdict(readings[0])}
    figures |= {
        "per_cpu_s": median(map(_rate, readings)),
        "per_s": median(each.events / each.wall_s for each in readings),
    }
    if reader.is_ordered:
        alone = Reader(client=reader.client, face=_BEST[reader.client], is_ordered=False)
        figures["of_client"] = figures["per_cpu_s"] / median(map(_rate, beside[alone]))
        figures["aim"] = _AIMS[reader.face][reader.client]
    return figures


def tables(found: Found) -> list[Table]:
    """Two for each layout."""
    data = summary(found)
    return [table for layout, of in found.items() for table in _tables(layout, list(of), data[layout])]


def _tables(layout: str, readers: Sequence[Reader], data: Mapping[str, Any]) -> tuple[Table, Table]:
    rates, rest = [], []
    for reader, figures in zip(readers, data.values(), strict=True):
        ratio = f"{figures['of_client']:.2f} ({figures['aim']:g})" if reader.is_ordered else "-"
        rates.append((reader.label, f"{figures['per_cpu_s']:,.0f}", ratio, f"{figures['per_s']:,.0f}"))
        rest.append((reader.label, f"{figures['first_s']:.2f}", f"{figures['most_mb']:.0f}", f"{figures['idle']:.1%}"))
    head = f"A cold backlog, {layout}"
    return (
        Table(
            title=f"{head}: events", columns=("reader", "per CPU second", "of alone (aim)", "per second"), rows=rates
        ),
        Table(title=f"{head}: the rest", columns=("reader", "first after s", "most MB", "idle, of a core"), rows=rest),
    )
