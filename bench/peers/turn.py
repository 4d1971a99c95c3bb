"""One peer from begin to end: its subscribers and producers as processes, a cold backlog, then a live tail."""

import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import numpy as np

from totalorder.bench.outcome import Say
from totalorder.bench.peers.judge import Figures, Heard, judge
from totalorder.bench.peers.kafka import DOMAIN, StampCount, kafka_topics
from totalorder.bench.peers.load import CLOCKS_MS, Load, subscriptions
from totalorder.bench.peers.nats import NatsServer
from totalorder.demo.processes import Process, Processes
from totalorder.demo.run import SEQUENCER_READY
from totalorder.kafka_clients import admin, kafka_errors

_WORKER = "totalorder.bench.peers.worker"
_SEQUENCER_TIMEOUT_S = 300.0
_READY_TIMEOUT_S = 150.0
_PUBLISH_TIMEOUT_S = 120.0
_STAMPS_TIMEOUT_S = 240.0
_DELIVERY_TIMEOUT_S = 240.0
_STANDSTILL_S = 15.0
"""So long without a delivery: what is missing then does not come any more, and is counted as lost."""
_END_TIMEOUT_S = 60.0
_HEAD_START_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One way to order events. `producers_changed` names what is another one for the producers, "" if nothing is."""

    name: str
    label: str
    kind: str
    wait_ms: int = 0
    producers_changed: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large a run is: events of the backlog, and of the live tail so many a second; subscribers of few topics."""

    backlog: int
    rate: float
    warm_s: float
    live_s: float
    subsets: int

    @property
    def loads(self) -> Mapping[str, Load]:
        """Scene → what is published in it."""
        live = Load(first=self.backlog, count=round(self.rate * (self.warm_s + self.live_s)), rate=self.rate)
        return {"backlog": Load(first=0, count=self.backlog, rate=0), "live": live}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Both scenes of a peer; `stamping_s`: how long after the backlog's last event the sequencer had stamped all."""

    backlog: Figures
    live: Figures
    stamping_s: float


def measure(peer: Peer, plan: Plan, servers: str, say: Say) -> Measured:
    """Runs one peer; everything that was started is gone when this returns or raises.

    Raises totalorder.Error when a process dies or something takes too long. What is not delivered is counted.
    """
    with ExitStack() as stack:
        address = stack.enter_context(NatsServer()).url if peer.kind == "nats" else servers
        run = _Run(peer, plan, address, stack.enter_context(Processes(_WORKER)), say)
        run.prepare()
        backlog = run.backlog()
        live = run.live()
        run.end()
    return Measured(backlog=backlog, live=live, stamping_s=run.stamping_s)


class _Run:
    """The phases, in the order in which they are called."""

    stamping_s = 0.0

    def __init__(self, peer: Peer, plan: Plan, address: str, processes: Processes, say: Say) -> None:
        self._peer, self._plan, self._address, self._processes, self._say_line = peer, plan, address, processes, say
        self._prefix = f"{peer.name}."
        self._topics = subscriptions(plan.subsets)

    def prepare(self) -> None:
        """Topics, the sequencer, and then all processes, until each can begin."""
        if self._peer.kind != "nats":
            with kafka_errors(self._address), admin(self._address) as client:
                names = kafka_topics(self._prefix, single=self._peer.kind == "single")
                client.create_topics({name: {"num_partitions": 1} for name in names})
                client.wait_for_topics(names)
        if self._peer.kind == "totalorder":
            self._start_sequencer(names)
        self._say("starts its subscribers and producers")
        common = {"kind": self._peer.kind, "address": self._address, "prefix": self._prefix}
        self._subscribers = {
            name: self._processes.start(
                name, "subscribe", **common, id=name, topics=sorted(topics), wait_ms=self._peer.wait_ms
            )
            for name, topics in self._topics.items()
        }
        self._producers = [
            self._processes.start(f"producer-{number}", "publish", **common, producer=number)
            for number in range(len(CLOCKS_MS))
        ]
        self._await_all([*self._subscribers.values(), *self._producers], "ready", _READY_TIMEOUT_S)

    def backlog(self) -> Figures:
        """All events are there before anybody reads."""
        load = self._plan.loads["backlog"]
        self._say(f"backlog of {load.count:,} events")
        self._publish("backlog", time.time())
        if self._peer.kind == "totalorder":
            self._await_stamps(load.count)
        start_us = time.time_ns() // 1_000
        self._begin("backlog")
        self._await_deliveries("backlog")
        self._begin("live")
        return self._judge("backlog", start_us=start_us, measured_from_us=0)

    def live(self) -> Figures:
        """Events come while they are read."""
        plan = self._plan
        self._say(f"live tail, {plan.rate:g} events/s for {plan.warm_s + plan.live_s:g} s")
        start_s = time.time() + _HEAD_START_S
        self._publish("live", start_s)
        self._await_deliveries("live")
        self._tell(self._subscribers.values(), end=True)
        measured_from_us = round((start_s + plan.warm_s) * 1e6)
        return self._judge("live", start_us=round(start_s * 1e6), measured_from_us=measured_from_us)

    def end(self) -> None:
        """Everybody ends in good order."""
        ending = [*self._subscribers.values(), *self._producers]
        self._tell(ending, stop=True)
        self._processes.dismiss(ending, timeout_s=_END_TIMEOUT_S)
        for sequencer in list(self._processes.running):
            sequencer.terminate()
            self._processes.dismiss([sequencer], timeout_s=_END_TIMEOUT_S)

    # --- steps --------------------------------------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self._say_line(f"{self._peer.name}: {text}")

    def _start_sequencer(self, topics: list[str]) -> None:
        self._say("starts its sequencer on Spark")
        arguments = {
            "--domain": DOMAIN,
            "--bootstrap-servers": self._address,
            "--topics": ",".join(topics),
            "--checkpoint-dir": str(self._processes.folder / "checkpoint"),
        }
        sequencer = self._processes.start(
            "sequencer", "sequence", arguments=[w for each in arguments.items() for w in each]
        )
        self._processes.until(
            lambda: SEQUENCER_READY in sequencer.log_text(),
            what="Starting the sequencer",
            timeout_s=_SEQUENCER_TIMEOUT_S,
        )

    def _publish(self, scene: str, start_s: float) -> None:
        load = self._plan.loads[scene]
        self._tell(self._producers, scene=scene, load=asdict(load), start=start_s)
        duration_s = load.count / load.rate if load.rate else 0.0
        self._await_all(self._producers, f"{scene}-published", duration_s + _PUBLISH_TIMEOUT_S)

    def _begin(self, scene: str) -> None:
        for name, subscriber in self._subscribers.items():
            subscriber.tell(scene=scene, path=self._path(name, scene))

    def _await_stamps(self, count: int) -> None:
        start_s = time.monotonic()
        with kafka_errors(self._address), StampCount(self._address) as stamps:
            self._processes.until(lambda: stamps.count() >= count, what="Stamping", timeout_s=_STAMPS_TIMEOUT_S)
        self.stamping_s = time.monotonic() - start_s

    def _await_deliveries(self, scene: str) -> None:
        """Gives up when nothing moves any more."""
        load = self._plan.loads[scene]
        wanted = {name: len(load.expected(topics)) for name, topics in self._topics.items()}
        patience = _Patience()

        def done() -> bool:
            counts = {name: each.status.get(scene, 0) for name, each in self._subscribers.items()}
            return patience.exhausted(sum(counts.values())) or all(counts[name] >= wanted[name] for name in wanted)

        self._processes.until(done, what="Delivering", timeout_s=_DELIVERY_TIMEOUT_S)

    def _judge(self, scene: str, *, start_us: int, measured_from_us: int) -> Figures:
        """When the subscribers have written down what they delivered."""
        self._await_all(self._subscribers.values(), f"{scene}-received", _END_TIMEOUT_S)
        load = self._plan.loads[scene]
        heard = {
            name: Heard(
                rows=np.load(self._path(name, scene)),
                expected=load.expected(self._topics[name]),
                received_bytes=subscriber.status[f"{scene}-received"],
            )
            for name, subscriber in self._subscribers.items()
        }
        return judge(heard, start_us=start_us, measured_from_us=measured_from_us)

    def _path(self, name: str, scene: str) -> str:
        return str(self._processes.folder / f"{name}-{scene}.npy")

    def _tell(self, processes: Iterable[Process], **message: object) -> None:
        for process in processes:
            process.tell(**message)

    def _await_all(self, processes: Iterable[Process], status: str, timeout_s: float) -> None:
        awaited = list(processes)
        self._processes.until(
            lambda: all(status in process.status for process in awaited),
            what=f"{self._peer.name}: waiting for {status}",
            timeout_s=timeout_s,
        )


class _Patience:
    def __init__(self) -> None:
        self._number, self._since_s = -1, time.monotonic()

    def exhausted(self, number: int) -> bool:
        """Whether a number has stood still for too long."""
        if number != self._number:
            self._number, self._since_s = number, time.monotonic()
        return time.monotonic() - self._since_s > _STANDSTILL_S
