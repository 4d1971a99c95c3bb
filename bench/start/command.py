"""`totalorder bench start`: the delay of the first minute, from an empty machine on, and that of a process that is
begun again after kill -9.

Spark and its Java, the job and one subscriber are started anew for each client that a subscriber may read by; beside
them a plain consumer reads the same events, in a process of its own. Then the subscriber's process is killed amid
events, and another one of the same id begun at once, some times.
"""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from totalorder.bench.live.cluster import Cluster
from totalorder.bench.live.load import Floats, Receiver, Worker, publish_paced, receive_ordered, receive_plain
from totalorder.bench.outcome import Outcome, Request, Size, Table
from totalorder.errors import Error

TOPICS = ("a", "b", "c", "d")
CLIENTS = ("kafka-python", "confluent")
PLAIN = "plain consumer"
_BOUND_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done: `turns` of each client, `rate` events a second for the last of `until_s`, which say where each
    part of the time ends, in seconds from the first event on; behind that `kills` in each turn.
    """

    clients: tuple[str, ...] = CLIENTS
    turns: int
    kills: int
    rate: int
    until_s: tuple[int, ...]

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(clients=CLIENTS[-1:], turns=1, kills=1, rate=50, until_s=(1, 2)),
            quick=cls(turns=1, kills=10, rate=200, until_s=(1, 2, 5, 10, 20, 40)),
            full=cls(turns=3, kills=10, rate=200, until_s=(1, 2, 5, 10, 20, 40, 60, 120)),
        )


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One start. Seconds: of Spark's session, from there until the job is ready, and from there until a subscriber
    has its grant; the rows (sent, received) of the events by the subscriber and by the plain consumer; and of each
    kill (until the next process has its grant, until it hands out its first event).
    """

    session_s: float
    job_s: float
    grant_s: float
    ordered: Floats
    plain: Floats
    again_s: Floats


def run(request: Request) -> Outcome:
    """All clients, by turns."""
    plan = Plan.of(request.size)
    turns: dict[str, list[Turn]] = {client: [] for client in plan.clients}
    for number in range(plan.turns):
        for client in plan.clients:
            request.say(f"Starting a broker, Spark, the job and a subscriber by {client}, turn {number + 1}")
            turns[client].append(_turn(plan, client))
    data = summary(plan.until_s, turns)
    return Outcome(data=data, tables=tables(data))


def _turn(plan: Plan, client: str) -> Turn:
    seconds = plan.until_s[-1]
    with Cluster(TOPICS) as cluster, ExitStack() as stack:
        settings = cluster.settings("start")
        began = time.monotonic()
        stack.enter_context(cluster.sequencing(settings))
        ready = time.monotonic()
        ordered = stack.enter_context(Receiver(receive_ordered, cluster.servers, TOPICS, settings.domain, client))
        granted = time.monotonic()
        plain = stack.enter_context(Receiver(receive_plain, cluster.servers, TOPICS))
        publisher = stack.enter_context(Worker(publish_paced, cluster.servers, TOPICS, plan.rate, seconds))
        if not publisher.ended(3 * seconds + _BOUND_S):
            raise Error("publishing cannot keep up", remedy="The machine is too busy")
        rows = [receiver.all_of(plan.rate * seconds, _BOUND_S) for receiver in (ordered, plain)]
        if any(len(each) != plan.rate * seconds for each in rows):
            raise Error(f"not all events came within {_BOUND_S:g} s", remedy="The machine is too busy")
        return Turn(
            session_s=cluster.session_s,
            job_s=ready - began,
            grant_s=granted - ready,
            ordered=rows[0],
            plain=rows[1],
            again_s=_kills(plan, ordered, cluster.servers, settings.domain, client),
        )


def _kills(plan: Plan, running: Receiver, servers: str, domain: str, client: str) -> Floats:
    """A row of each kill, in seconds from it on: of the next process's grant, and of its first event."""
    found: list[tuple[float, float]] = []
    with ExitStack() as stack:
        stack.enter_context(Worker(publish_paced, servers, TOPICS, plan.rate, plan.kills * 2 * _BOUND_S))
        for number in range(plan.kills):
            seen = 0 if number else plan.rate * plan.until_s[-1]
            running.all_of(seen + plan.rate, _BOUND_S)  # it is amid events
            killed = time.time()
            running.kill()
            running = stack.enter_context(Receiver(receive_ordered, servers, TOPICS, domain, client))
            granted = time.time()
            rows = running.all_of(1, _BOUND_S)
            if not len(rows):
                raise Error(f"no event came within {_BOUND_S:g} s of kill -9", remedy="The machine is too busy")
            found.append((granted - killed, float(rows[0, 1]) - killed))
    return np.array(found)


# --- results ----------------------------------------------------------------------------------------------------------


def parts_of(rows: Floats, until_s: tuple[int, ...]) -> list[Floats]:
    """Delays of the events (sent, received), in ms, by the part of the time in which they were sent, which begins with
    the first of them.
    """
    since_s = rows[:, 0] - rows[:, 0].min()
    part = np.searchsorted(np.array(until_s[:-1]), since_s, side="right")
    delays_ms = (rows[:, 1] - rows[:, 0]) * 1_000
    return [delays_ms[part == number] for number in range(len(until_s))]


def summary(until_s: tuple[int, ...], turns: Mapping[str, list[Turn]]) -> dict[str, Any]:
    """The data of the JSON: of each part the median and the largest, of all turns together."""
    rows = {client: [turn.ordered for turn in found] for client, found in turns.items()}
    rows[PLAIN] = [turn.plain for found in turns.values() for turn in found]
    parts = {kind: [parts_of(each, until_s) for each in found] for kind, found in rows.items()}
    together = {kind: [np.concatenate(part) for part in zip(*found, strict=True)] for kind, found in parts.items()}
    return {
        "until_s": list(until_s),
        "starts_s": {
            client: {
                name: float(np.median([getattr(turn, name) for turn in found]))
                for name in ("session_s", "job_s", "grant_s")
            }
            for client, found in turns.items()
        },
        "again_s": {
            client: {
                name: {"median": float(np.median(column)), "largest": float(column.max())}
                for name, column in zip(
                    ("grant", "event"), np.concatenate([turn.again_s for turn in found]).T, strict=True
                )
            }
            for client, found in turns.items()
        },
        "delays_ms": {
            kind: [{"median": float(np.median(part)), "largest": float(part.max())} for part in found]
            for kind, found in together.items()
        },
    }


def tables(data: Mapping[str, Any]) -> list[Table]:
    """How long each start takes, the delays, and what follows kill -9."""
    starts, delays, until_s = data["starts_s"], data["delays_ms"], data["until_s"]
    first = Table(
        title="Starting, s",
        columns=["client", "Spark and its Java", "the job, until it is ready", "a subscriber, until its grant"],
        rows=[[client, *(f"{seconds:.1f}" for seconds in found.values())] for client, found in starts.items()],
    )
    columns = [f"{kind}: {name}" for kind in delays for name in ("median", "largest")]
    rows = [
        [
            f"{begin} to {end}",
            *(f"{found[number][name]:,.0f}" for found in delays.values() for name in ("median", "largest")),
        ]
        for number, (begin, end) in enumerate(zip([0, *until_s], until_s, strict=False))
    ]
    delay = Table(title="Published to received, ms", columns=["s since the first event", *columns], rows=rows)
    again = Table(
        title="From kill -9 on, s, where the next process is begun at once",
        columns=["client", "its grant: median", "largest", "its first event: median", "largest"],
        rows=[
            [client, *(f"{found[name][which]:.1f}" for name in ("grant", "event") for which in ("median", "largest"))]
            for client, found in data["again_s"].items()
        ],
    )
    return [first, delay, again]
