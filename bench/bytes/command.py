"""`totalorder bench bytes`: what timestamps take on the broker, an event, on the paper's workload (§5.2, §5.3)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from totalorder.bench.bytes.cuts_log import CutsLog
from totalorder.bench.bytes.delivery import DeliveryCost, ModeCost, delivery_cost
from totalorder.bench.bytes.scalar import without_entries
from totalorder.bench.bytes.stamps_log import StampsLog
from totalorder.bench.domain import Domain
from totalorder.bench.outcome import Outcome, Request, Table
from totalorder.bench.plots import line_plot
from totalorder.bench.workload import SHAPES, Workload
from totalorder.broker import LocalBroker
from totalorder.sequencer.wire.codec import WireRecord, encode_stamps
from totalorder.sequencer.wire.stamps import StampedBatch

TOPICS, SUBSCRIPTION_SIZE = 1_000, 10
STEADY_BATCH = 2_500
"""Events a batch at which the figures are compared with their aims; a larger one is one of a backlog."""
ENTRY_BYTES = 12
"""An entry as such: a topic's number in four bytes, a clock in eight."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. `batches`: events a batch → how many such batches, after `settle` events."""

    subscribers: int
    settle: int
    batches: Mapping[int, int]

    @property
    def events(self) -> int:
        """All events of one run."""
        return self.settle + sum(size * count for size, count in self.batches.items())


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Bytes an event of one batch size. `envelope`: what Kafka adds around the values of the vector records.

    `cuts` is what the record of the batch's cut takes, beside either kind of stamps.
    """

    vector: float
    scalar: float
    cuts: float
    envelope: float
    entries: float
    """Entries an event, keyframes' included."""
    full_vector: float
    """Mean size of the event's sequencing group, at 12 bytes an entry."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One shape and one m."""

    mean_group: float
    by_batch: Mapping[int, Stored]


def run(request: Request) -> Outcome:
    """Both shapes, m = 2 as in the paper and m = 1, the default, on a broker of its own."""
    plan = request.size.pick(
        smoke=Plan(subscribers=200, settle=500, batches={100: 2, STEADY_BATCH: 1}),
        quick=Plan(subscribers=10_000, settle=30_000, batches={100: 20, STEADY_BATCH: 4, 100_000: 1}),
        full=Plan(subscribers=10_000, settle=100_000, batches={100: 50, STEADY_BATCH: 8, 100_000: 2}),
    )
    found: dict[tuple[float, int], Measured] = {}
    with LocalBroker() as broker:
        for shape in SHAPES:
            for m in (2, 1):
                request.say(f"shape {shape}, m = {m}: {plan.subscribers:,} subscribers, {plan.events:,} events")
                found[shape, m] = measure(Workload(topics=TOPICS, shape=shape), m, plan, broker.bootstrap_servers)
    costs = {shape: _delivery(request, shape, plan.subscribers) for shape in SHAPES}
    data = {str(shape): _json(found[shape, 2], found[shape, 1], costs[shape]) for shape in SHAPES}
    return Outcome(
        data=data,
        tables=[_bytes_table(found), _delivery_table(costs)],
        write=lambda: [_plot(request.out / "bytes.png", found)],
    )


def measure(workload: Workload, min_subscriptions: int, plan: Plan, bootstrap_servers: str) -> Measured:
    """Runs the plan; each batch is stored twice: as it is, and without its entries."""
    domain = Domain(workload, min_subscriptions=min_subscriptions, events=plan.events)
    domain.subscribe(workload.subscriptions(plan.subscribers, SUBSCRIPTION_SIZE))
    settled = domain.next_batch(plan.settle)
    domain.run(settled)
    name = f"bytes-{workload.shape}-{min_subscriptions}"
    with (
        StampsLog(bootstrap_servers, f"{name}-vector") as vector,
        StampsLog(bootstrap_servers, f"{name}-scalar") as scalar,
        CutsLog(bootstrap_servers, f"{name}-cuts") as cuts,
    ):
        logs = _Logs(vector, scalar, cuts)
        logs.cuts.write(settled, is_backlog=True)
        by_batch = {size: _stored(domain, size, count, logs) for size, count in plan.batches.items()}
    return Measured(mean_group=float(domain.group_sizes().mean()), by_batch=by_batch)


class _Logs(NamedTuple):
    """What is written of each batch."""

    vector: StampsLog
    scalar: StampsLog
    cuts: CutsLog

    def sizes(self) -> list[int]:
        return [log.size() for log in self]


def _stored(domain: Domain, size: int, count: int, logs: _Logs) -> Stored:
    began = logs.sizes()
    values = entries = group = 0
    groups = domain.group_sizes()
    for _ in range(count):
        batch = domain.next_batch(size)
        stamps = domain.run(batch).stamps
        records = encoded(stamps)
        logs.vector.write(records)
        logs.cuts.write(batch, is_backlog=size > STEADY_BATCH)
        logs.scalar.write(encoded(without_entries(stamped, stamped.previous_digest) for stamped in stamps))
        values += sum(len(record.value) for _, record in records)
        entries += sum(len(stamped.rows.entry_topic) for stamped in stamps)
        group += int(groups[batch.topic].sum())
    events = size * count
    vector, scalar, cuts = (after - before for after, before in zip(logs.sizes(), began, strict=True))
    return Stored(
        vector=vector / events,
        scalar=scalar / events,
        cuts=cuts / events,
        envelope=(vector - values) / events,
        entries=entries / events,
        full_vector=ENTRY_BYTES * group / events,
    )


def encoded(stamps: Iterable[StampedBatch]) -> list[tuple[int, WireRecord]]:
    """The Kafka records of one batch with their stamps partitions, in the order in which they are sent."""
    return [(stamped.partition, record) for stamped in stamps for record in encode_stamps(stamped)]


def _delivery(request: Request, shape: float, subscribers: int) -> DeliveryCost:
    batches, readers = request.size.pick(smoke=(1, 1), quick=(4, 5), full=(8, 20))
    request.say(f"shape {shape}: what {readers} subscribers pay to deliver")
    workload = Workload(topics=TOPICS, shape=shape)
    return delivery_cost(workload, subscribers=subscribers, size=STEADY_BATCH, batches=batches, readers=readers)


def _json(two: Measured, one: Measured, cost: DeliveryCost) -> dict[str, Any]:
    return {
        **_figures(two),
        "m1": _figures(one),
        "delivery": {"vector": _cost(cost.vector), "scalar": _cost(cost.scalar)},
    }


def _figures(measured: Measured) -> dict[str, Any]:
    steady = measured.by_batch[STEADY_BATCH]
    return {
        "vector": round(steady.vector, 1),
        "scalar": round(steady.scalar, 1),
        "by_batch": {
            str(size): {name: round(value, 1) for name, value in vars(stored).items()}
            for size, stored in measured.by_batch.items()
        },
        "full_vector": round(steady.full_vector),
        "mean_group": round(measured.mean_group, 1),
        "full_vector_of_mean_group": round(ENTRY_BYTES * measured.mean_group),
    }


def _cost(cost: ModeCost) -> dict[str, float]:
    return {name: round(value, 3) for name, value in vars(cost).items()}


def _bytes_table(found: Mapping[tuple[float, int], Measured]) -> Table:
    return Table(
        title="Bytes an event on the broker",
        columns=("shape", "m", "batch", "vector", "scalar", "of vector: Kafka's", "cuts", "entries", "full vector"),
        rows=[
            (
                *(str(shape), str(m), f"{size:,}", f"{stored.vector:.1f}", f"{stored.scalar:.1f}"),
                *(f"{stored.envelope:.1f}", f"{stored.cuts:.1f}"),
                *(f"{stored.entries:.1f}", f"{stored.full_vector:,.0f}"),
            )
            for (shape, m), measured in found.items()
            for size, stored in measured.by_batch.items()
        ],
    )


def _delivery_table(costs: Mapping[float, DeliveryCost]) -> Table:
    return Table(
        title="A subscriber of 10 topics (m = 1), microseconds an event of the domain",
        columns=("shape", "timestamps", "decode", "gate", "delivered", "before the last stamps"),
        rows=[
            (
                *(str(shape), mode, f"{cost.decode_us:.1f}", f"{cost.gate_us:.1f}"),
                *(f"{cost.delivered:.0%}", f"{cost.early:.0%}"),
            )
            for shape, both in costs.items()
            for mode, cost in (("vector", both.vector), ("scalar", both.scalar))
        ],
    )


def _plot(path: Path, found: Mapping[tuple[float, int], Measured]) -> Path:
    return line_plot(
        path,
        title="Timestamps on the broker (m = 2)",
        x="events a batch",
        y="bytes an event",
        lines={
            f"{mode.replace('_', ' ')}, {shape}": [
                (size, getattr(stored, mode)) for size, stored in found[shape, 2].by_batch.items()
            ]
            for shape in SHAPES
            for mode in ("full_vector", "vector", "scalar")
        },
    )
