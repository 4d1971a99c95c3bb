"""`totalorder bench partitions`: the job, and Spark queries that only copy, as event topics have more partitions.

They run by turns in one Spark session over the same topics. Where one of them falls behind the events, it is given a
bounded time, named, and not asked for more.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from pyspark.sql.streaming.query import StreamingQuery

from totalorder.bench.job.command import delays_between
from totalorder.bench.live.cluster import Cluster, copy_of
from totalorder.bench.live.load import Receiver, Worker, publish_paced, receive_ordered, receive_plain
from totalorder.bench.live.memory import memory_of
from totalorder.bench.live.progress import BatchTimes
from totalorder.bench.outcome import Outcome, Request, Say, Size, write_page
from totalorder.bench.partitions.page import KINDS, Measured, Phase, page, summary, tables
from totalorder.config import Settings
from totalorder.errors import Error

MOST_IN_TOPIC = 64
_INDEXED_EVENTS = 20
"""So many events of this size make a broker write the first entry of a partition's index, which takes a disk
milliseconds, once: a thousand partitions that get there together stand still for half a minute."""
_FILL_RATE = 2_000
_LOOK_S = 0.2
_BUSY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Layout:
    """So many partitions in all, `each` of them in each of `topics`; events go to `written` of them, in the first one.

    All of them are written to where `written` is 0.
    """

    partitions: int
    topics: tuple[str, ...]
    each: int
    written: int

    @classmethod
    def of(cls, partitions: int, written: int = 0) -> "Layout":
        """In as few topics as can be, of equal size and at most 64 partitions."""
        count = next(
            count
            for count in range(1, partitions + 1)
            if partitions % count == 0 and partitions // count <= MOST_IN_TOPIC
        )
        prefix = f"of-{partitions}-{written}" if written else f"of-{partitions}"
        topics = tuple(f"{prefix}-{number}" for number in range(count))
        return cls(partitions=partitions, topics=topics, each=partitions // count, written=written)

    @property
    def name(self) -> str:
        """For a person."""
        part = f" ({self.written} written to)" if self.written else ""
        return f"{self.partitions:,}{part}"

    @property
    def load(self) -> tuple[tuple[str, ...], int]:
        """The topics that are written to, and how many partitions of each."""
        return (self.topics[:1], self.written) if self.written else (self.topics, self.each)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. A turn publishes for `settle_s` at the first of `rates` (events a second), and then for
    `phase_s` at each of them; behind each, all has to come within `patience_s`. Each kind has a turn of `warm_up_s`
    that does not count first, on the first of `partitions`. Then as many as the last of `partitions` are there once
    more, and `written` of them are written to: what those cost that nobody writes to.
    """

    partitions: tuple[int, ...]
    written: int
    rates: tuple[int, ...]
    warm_up_s: float
    settle_s: float
    phase_s: float
    patience_s: float

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(
                partitions=(16,),
                written=2,
                rates=(200,),
                warm_up_s=0.5,
                settle_s=0.5,
                phase_s=1,
                patience_s=10,
            ),
            quick=cls(
                partitions=(4, 256),
                written=4,
                rates=(200, 3_000),
                warm_up_s=15,
                settle_s=5,
                phase_s=8,
                patience_s=15,
            ),
            full=cls(
                partitions=(4, 64, 256, 1_000),
                written=4,
                rates=(200, 3_000, 10_000),
                warm_up_s=90,
                settle_s=15,
                phase_s=30,
                patience_s=30,
            ),
        )

    @property
    def layouts(self) -> list[Layout]:
        """In the order in which they are measured."""
        return [*map(Layout.of, self.partitions), Layout.of(self.partitions[-1], self.written)]


def run(request: Request) -> Outcome:
    """All layouts, from few partitions to many; a page and data below `request.out`."""
    plan = Plan.of(request.size)
    layouts = plan.layouts
    found = {layout.name: {kind: Measured() for kind in KINDS} for layout in layouts}
    request.say("Starting a broker and Spark")
    with Cluster(layouts[0].topics, partitions=layouts[0].each) as cluster:
        for layout in layouts[1:]:
            cluster.make_topics([*layout.topics, *map(copy_of, layout.topics)], layout.each)
        for kind in KINDS:
            request.say(f"Warming up, {KINDS[kind]}: {plan.warm_up_s:g} s at {plan.rates[0]} events/s")
            _Turn(cluster, plan, layouts[0], kind, request.say).warm_up()
        for layout in layouts:
            _fill(cluster, layout)
            for kind in KINDS:
                _Turn(cluster, plan, layout, kind, request.say).run(found[layout.name][kind])
    data = summary(plan.rates, found)
    write = partial(write_page, request.out, "partitions", data, page(data))
    return Outcome(data=data, tables=tables(data), write=write)


def _fill(cluster: Cluster, layout: Layout) -> None:
    """Publishes events that nobody counts, before any query of the layout begins."""
    topics, partitions = layout.load
    seconds = _INDEXED_EVENTS * len(topics) * partitions / _FILL_RATE
    for names in (topics, tuple(map(copy_of, topics))):
        with Worker(publish_paced, cluster.servers, names, _FILL_RATE, seconds, partitions) as publisher:
            if not publisher.ended(3 * seconds + _BUSY_S):
                raise Error(f"publishing to {layout.name} partitions cannot keep up", remedy="The machine is too busy")


class _Turn:
    """One kind's query over one layout, a receiver, and a publisher for each rate."""

    def __init__(self, cluster: Cluster, plan: Plan, layout: Layout, kind: str, say: Say) -> None:
        self._cluster = cluster
        self._plan = plan
        self._layout = layout
        self._kind = kind
        self._say = say
        self._sent = 0

    def warm_up(self) -> None:
        """Runs for a while; what is seen does not count."""
        with self._started("warm-up") as (query, receiver):
            self._phase(query, receiver, self._plan.rates[0], self._plan.warm_up_s)

    def run(self, measured: Measured) -> None:
        """Publishes at each rate until the kind falls behind; an Error of the query ends the turn and is noted."""
        plan, name = self._plan, f"{self._layout.name} partitions, {KINDS[self._kind]}"
        self._say(f"{name}: starting")
        try:
            with self._started("turn") as (query, receiver):
                self._publish(BatchTimes(query), plan.rates[0], plan.settle_s)
                for rate in plan.rates:
                    phase = self._phase(query, receiver, rate, plan.phase_s)
                    measured.phases[rate] = phase
                    self._say(f"{name} at {rate} events/s: {phase.told()}")
                    if phase.missing:
                        break
                measured.memory = memory_of(self._cluster.spark)
        except Error as error:
            measured.failure = error.what
            self._say(f"{name}: {error.what}")

    @contextmanager
    def _started(self, name: str) -> Iterator[tuple[StreamingQuery, Receiver]]:
        layout = self._layout
        settings = self._cluster.settings(
            f"partitions-{layout.topics[0]}-{self._kind}-{name}", topics=layout.topics, starting_offsets="latest"
        )
        with self._running(settings) as query, self._receiver(settings.domain) as receiver:
            yield query, receiver

    @contextmanager
    def _running(self, settings: Settings) -> Iterator[StreamingQuery]:
        cluster = self._cluster
        running = (
            cluster.sequencing(settings)
            if self._kind == "job"
            else cluster.copying(settings, tuned=self._kind == "tuned", partitions=self._layout.each)
        )
        with running as query:
            yield query

    def _receiver(self, domain: str) -> Receiver:
        layout, servers = self._layout, self._cluster.servers
        if self._kind == "job":
            return Receiver(receive_ordered, servers, layout.topics, domain)
        return Receiver(receive_plain, servers, [copy_of(topic) for topic in layout.topics], layout.each)

    def _phase(self, query: StreamingQuery, receiver: Receiver, rate: int, seconds: float) -> Phase:
        times = BatchTimes(query)
        before = len(times.look())
        began = time.time()
        acknowledged_s = self._publish(times, rate, seconds)
        rows = receiver.all_of(self._sent, self._plan.patience_s)
        delays = delays_between(rows, began, math.inf)
        return Phase(
            delays=delays,
            missing=round(rate * seconds) - len(delays),
            acknowledged_s=acknowledged_s,
            batches=tuple(times.look()[before:]),
        )

    def _publish(self, times: BatchTimes, rate: int, seconds: float) -> float:
        """After how many seconds the broker had an event, in the median."""
        (topics, partitions), deadline = self._layout.load, time.monotonic() + 3 * seconds + _BUSY_S
        arguments = (self._cluster.servers, topics, rate, seconds, partitions)
        with Worker(publish_paced, *arguments) as publisher:
            while not publisher.ended(_LOOK_S):
                times.look()
                if time.monotonic() > deadline:
                    raise Error(f"publishing {rate} events/s cannot keep up", remedy="The machine is too busy")
            self._sent += round(rate * seconds)
            return float(publisher.hear("publish", _LOOK_S))
