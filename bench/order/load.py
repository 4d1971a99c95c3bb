"""Pairs of events, of which one causes the other: what publishes them, each a process, and which came first in π."""

import heapq
import math
import random
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from totalorder.bench.live.load import fast_producer
from totalorder.bench.live.stamps import Stamps
from totalorder.errors import Error
from totalorder.subscriber import Subscriber

CLOCKS_MS = {"honest": 0, "parent's time": 0, "50 ms behind": -50, "2 s behind": -2_000}
"""What a child's producer says the time is: by how much it differs from the truth, but for the parent's own time."""
COPIED = "parent's time"
_VALUE = struct.Struct("<q?91x")
_WAIT_S = 0.02
_READ_S = 0.005
_PATIENCE_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of pair: how long after the parent's acknowledgement its child is published (None: after the parent was
    delivered by a subscriber), by what clock, and whether the parent's topic has the name that comes first.
    """

    gap_ms: int | None
    clock: str
    parent_named_first: bool


class Place(NamedTuple):
    """Where an event lies."""

    topic: str
    partition: int
    offset: int


class Pair(NamedTuple):
    """Two events of a case; `gap_s` is the time from the parent's acknowledgement, or delivery, to the child, and
    `acknowledged_s` that from the parent's publication, which gives it its time, to the acknowledgement.
    """

    case: Case
    parent: Place
    child: Place
    gap_s: float
    acknowledged_s: float


class _Pairs:
    """Publishes both events of each pair to a partition drawn by chance, and notes where they came to lie.

    `acknowledged` is called with the number of a pair whose parent is with the broker.
    """

    def __init__(
        self,
        servers: str,
        topics: tuple[str, str],
        partitions: int,
        cases: Sequence[Case],
        acknowledged: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._producer: Any = fast_producer(servers, **{"linger.ms": 0, "acks": "all"})
        self._topics, self._partitions, self._cases = topics, partitions, cases
        self._acknowledged = acknowledged
        self._random = random.Random(1)
        self._times_ms: dict[int, int] = {}
        self._started_s: dict[int, float] = {}
        self._acknowledged_s: dict[int, float] = {}
        self._caused_s: dict[int, float] = {}
        self._gaps_s: dict[int, float] = {}
        self._parents: dict[int, Place] = {}
        self._children: dict[int, Place] = {}
        self._failed = ""

    def start(self, pair: int) -> None:
        """Publishes the parent."""
        self._times_ms[pair], self._started_s[pair] = _now_ms(), time.monotonic()
        self._publish(pair, self._times_ms[pair], is_child=False)

    def cause(self, pair: int) -> None:
        """Notes that the child may come now."""
        self._caused_s[pair] = time.monotonic()

    def follow(self, pair: int) -> None:
        """Publishes the child."""
        clock = self._cases[pair].clock
        self._gaps_s[pair] = time.monotonic() - self._caused_s[pair]
        time_ms = self._times_ms[pair] if clock == COPIED else _now_ms() + CLOCKS_MS[clock]
        self._publish(pair, time_ms, is_child=True)

    def wait(self, seconds: float) -> None:
        """For acknowledgements; Error when an event was not taken."""
        self._producer.poll(seconds)
        if self._failed:
            raise Error(f"the broker did not take an event: {self._failed}")

    def publish_all(self, rate: int, between: Callable[[float, float], None]) -> list[Pair]:
        """Starts so many pairs a second. `between` publishes the children and waits; it is told the time now, and when
        the next pair is to start.
        """
        began_s, started, count = time.monotonic(), 0, len(self._cases)
        deadline_s = began_s + 2 * count / rate + _PATIENCE_S
        while len(self._children) < count:
            now_s = _before(deadline_s)
            while started < count and now_s >= began_s + started / rate:
                self.start(started)
                started += 1
            between(now_s, began_s + started / rate if started < count else math.inf)
        return self._found()

    def _found(self) -> list[Pair]:
        return [
            Pair(case, self._parents[pair], self._children[pair], self._gaps_s[pair], self._acknowledged_s[pair])
            for pair, case in enumerate(self._cases)
        ]

    def _publish(self, pair: int, time_ms: int, *, is_child: bool) -> None:
        def noted(error: object, message: Any) -> None:
            if error is not None:
                self._failed = str(error)
                return
            place = Place(message.topic(), message.partition(), message.offset())
            (self._children if is_child else self._parents)[pair] = place
            if not is_child:
                self._acknowledged_s[pair] = time.monotonic() - self._started_s[pair]
                self._acknowledged(pair)

        topic = self._topics[self._cases[pair].parent_named_first == is_child]
        partition = self._random.randrange(self._partitions)
        value = _VALUE.pack(pair, is_child)
        self._producer.produce(topic, value=value, partition=partition, timestamp=time_ms, on_delivery=noted)


def publish_pairs(
    pipe: Connection, servers: str, topics: tuple[str, str], partitions: int, cases: Sequence[Case], rate: int
) -> None:
    """A pair of each case in turn, `rate` a second; says the `Pair`s."""
    due: list[tuple[float, int]] = []

    def acknowledged(pair: int) -> None:
        pairs.cause(pair)
        heapq.heappush(due, (time.monotonic() + (cases[pair].gap_ms or 0) / 1_000, pair))

    def between(now_s: float, start_s: float) -> None:
        while due and due[0][0] <= now_s:
            pairs.follow(heapq.heappop(due)[1])
        next_s = min([start_s, now_s + _WAIT_S, *(due_s for due_s, _ in due[:1])])
        pairs.wait(max(0.0, next_s - time.monotonic()))

    pairs = _Pairs(servers, topics, partitions, cases, acknowledged)
    pipe.send(pairs.publish_all(rate, between))


def publish_after_reading(
    pipe: Connection,
    servers: str,
    topics: tuple[str, str],
    partitions: int,
    cases: Sequence[Case],
    rate: int,
    domain: str,
) -> None:
    """The same, each child when a subscriber has delivered its parent; says the `Pair`s."""
    with Subscriber(
        topics, id="reader", domain=domain, bootstrap_servers=servers, start_timeout_s=90, save_interval_s=1
    ) as subscriber:
        pairs = _Pairs(servers, topics, partitions, cases)

        def between(_now_s: float, _start_s: float) -> None:
            event = subscriber.poll(_READ_S)
            if event is not None:
                pair, is_child = _VALUE.unpack(event.value or b"")
                if not is_child:
                    pairs.cause(pair)
                    pairs.follow(pair)
                subscriber.ack(event)
            pairs.wait(0)

        pipe.send(pairs.publish_all(rate, between))


def _before(deadline: float) -> float:
    """The time now; Error when that is behind the deadline."""
    now = time.monotonic()
    if now > deadline:
        raise Error("publishing pairs of events cannot keep up", remedy="The machine is too busy, or the job too slow")
    return now


def _now_ms() -> int:
    return int(time.time() * 1_000)


def are_children_first(pairs: Sequence[Pair], stamps: Stamps) -> list[bool]:
    """Of each pair, whether the child has the lower place in π; Error where one of them has none."""
    sources = {source: number for number, source in enumerate(stamps.sources)}
    places = dict(zip(zip(stamps.source.tolist(), stamps.offset.tolist(), strict=True), stamps.g.tolist(), strict=True))

    def g(place: Place) -> int:
        found: int | None = places.get((sources.get((place.topic, place.partition), -1), place.offset))
        if found is None:
            raise Error(f"no stamp came for the event at {place}", remedy="Please report it with the lines above")
        return found

    return [g(pair.child) < g(pair.parent) for pair in pairs]
