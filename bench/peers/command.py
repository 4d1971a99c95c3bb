"""`totalorder bench peers`: the same load and the same subscribers through other ways to order events.

Method and figures: docs/performance/peers.md.
"""

from collections.abc import Mapping
from importlib import import_module

from totalorder.bench.outcome import Outcome, Request, Table
from totalorder.bench.peers.judge import Figures
from totalorder.bench.peers.load import CLOCKS_MS, PAYLOAD_BYTES, STALL_EVERY_S, STALL_S, TOPICS
from totalorder.bench.peers.nats import nats_server_program
from totalorder.bench.peers.turn import Measured, Peer, Plan, measure
from totalorder.broker import LocalBroker

PEERS = (
    Peer(name="single-partition", label="one partition", kind="single", producers_changed="topic"),
    Peer(name="multi-topic", label="many topics", kind="plain"),
    Peer(name="merge-250ms", label="merge, 250 ms", kind="merge", wait_ms=250),
    Peer(name="merge-1000ms", label="merge, 1 s", kind="merge", wait_ms=1_000),
    Peer(name="nats-jetstream", label="NATS JetStream", kind="nats", producers_changed="client"),
    Peer(name="totalorder", label="totalorder", kind="totalorder"),
)


def run(request: Request) -> Outcome:
    """One peer after the other, on one Kafka broker, and nats-server for the one that needs it.

    Raises EnvironmentProblem without nats-server, ModuleNotFoundError without nats-py.
    """
    nats_server_program()
    import_module("nats")
    plan = request.size.pick(
        smoke=Plan(backlog=100, rate=50, warm_s=0, live_s=1, subsets=1),
        quick=Plan(backlog=4_000, rate=500, warm_s=2, live_s=6, subsets=4),
        full=Plan(backlog=20_000, rate=500, warm_s=10, live_s=20, subsets=4),
    )
    # A second wait of the same merge proves nothing more.
    peers = request.size.pick(smoke=PEERS[:3] + PEERS[4:], quick=PEERS, full=PEERS)
    request.say("starts a Kafka broker")
    with LocalBroker() as broker:
        found = {peer: measure(peer, plan, broker.bootstrap_servers, request.say) for peer in peers}
    return Outcome(data=_data(plan, found), tables=_tables(plan, found))


def _data(plan: Plan, found: Mapping[Peer, Measured]) -> dict[str, object]:
    changed = {peer: {"producers_changed": peer.producers_changed or False} for peer in found}
    return {
        "live": {peer.name: {**each.live.as_json(with_delay=True), **changed[peer]} for peer, each in found.items()},
        "backlog": {
            peer.name: {**each.backlog.as_json(with_delay=False), **changed[peer]} for peer, each in found.items()
        },
        "stamping_s": next(each.stamping_s for peer, each in found.items() if peer.kind == "totalorder"),
        "load": {
            **vars(plan),
            "topics": TOPICS,
            "payload_bytes": PAYLOAD_BYTES,
            "clocks_ms": CLOCKS_MS,
            "stall_s": STALL_S,
            "stall_every_s": STALL_EVERY_S,
        },
    }


def _tables(plan: Plan, found: Mapping[Peer, Measured]) -> list[Table]:
    live = [
        (peer.label, *_delays(each.live), *_cells(each.live), peer.producers_changed or "no")
        for peer, each in found.items()
    ]
    backlog = [(peer.label, *_cells(each.backlog)) for peer, each in found.items()]
    shared = ("per s", "bytes", "disagree", "lost")
    return [
        Table(
            title=f"Live tail: {plan.rate:g} events/s for {plan.live_s:g} s, after {plan.warm_s:g} s; delays in ms",
            columns=("", "p50", "p99", *shared, "changed"),
            rows=live,
        ),
        Table(title=f"Cold backlog: {plan.backlog:,} events", columns=("", *shared), rows=backlog),
    ]


def _delays(figures: Figures) -> tuple[str, str]:
    return f"{figures.p50_ms:,.0f}", f"{figures.p99_ms:,.0f}"


def _cells(figures: Figures) -> tuple[str, ...]:
    return (
        f"{figures.deliveries_per_s:,.0f}",
        f"{figures.bytes_ratio:.1f}",
        f"{figures.violations} of {figures.subscriber_pairs}",
        f"{figures.lost:,}",
    )
