"""Delay and throughput of the real job on a local broker: the paper's figures 9, 10, 13 and 14."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder import kafka_clients
from totalorder.bench.figures.load import Arrival, publish_keys, receive_stamps
from totalorder.bench.live.cluster import Cluster
from totalorder.bench.live.load import Receiver, Worker
from totalorder.bench.live.progress import BatchTimes
from totalorder.bench.outcome import Say
from totalorder.bench.shards.command import topic_name
from totalorder.bench.workload import Workload
from totalorder.errors import Error
from totalorder.sequencer.wire.codec import StampsAssembler

Floats = npt.NDArray[np.float64]
KAFKA_TOPICS = ("a", "b", "c", "d")
"""Of one partition each. A key has its own, as with any producer."""
_LOOK_S = 0.5
_TIMEOUT_S = 120.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """One phase: events at `rate` a second, while subscribers hold `subscriptions` topics in all."""

    shape: float
    subscriptions: int
    rate: int


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What came of one phase. Delays are from publishing to the stamp at a consumer; bytes are the log's, an event.

    Speed is that of all events from the publishing of the first one to the stamp of the last one.
    """

    events: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    stamps_per_s: float
    event_bytes: float
    stamp_bytes: float

    @property
    def stamps_share(self) -> float:
        """Of all bytes that leave the log when events and stamps are read once."""
        return self.stamp_bytes / (self.event_bytes + self.stamp_bytes)


@dataclass(frozen=True, kw_only=True)
class Domains:
    """How domains are measured: one for each shape and number of subscriptions."""

    subscribers: int
    warm_up_s: float
    phase_s: float
    topics: int = 1_000


def measured(domains: Domains, loads: Sequence[Load], say: Say) -> dict[Load, Seen]:
    """All loads in one Spark session; those of one domain one after the other."""
    say("Starting a broker and Spark")
    found: dict[Load, Seen] = {}
    with Cluster(KAFKA_TOPICS, topic_by="key") as cluster, kafka_clients.admin(cluster.servers) as admin:
        published = Published()
        for shape, subscriptions in dict.fromkeys((load.shape, load.subscriptions) for load in loads):
            own = [load for load in loads if (load.shape, load.subscriptions) == (shape, subscriptions)]
            with _Domain(cluster, admin, domains, own[0], published) as domain:
                for load in own:
                    domain.publish(load.rate, domains.phase_s)
                seen = domain.seen()
            for load, each in zip(own, seen, strict=True):
                say(f"shape {shape}, {subscriptions:,} subscriptions, {load.rate:,}/s: mean {each.mean_ms:.0f} ms")
                found[load] = each
    return found


class Published:
    """When each event was sent: by Kafka topic, at the event's offset."""

    def __init__(self) -> None:
        self._sent: dict[str, Floats] = dict.fromkeys(KAFKA_TOPICS, np.zeros(0))

    def add(self, topics: Sequence[str], sent: Floats) -> dict[str, range]:
        """Notes events in the order of their sending; returns which offsets they have."""
        names, found = np.array(topics), {}
        for topic, before in self._sent.items():
            self._sent[topic] = np.concatenate([before, sent[names == topic]])
            found[topic] = range(len(before), len(self._sent[topic]))
        return found

    def times_of(self, offsets: Mapping[str, range]) -> Floats:
        """When these events were sent, Kafka topic by Kafka topic."""
        return np.concatenate([self._sent[topic][own.start : own.stop] for topic, own in offsets.items()])


class _Phase(NamedTuple):
    offsets: Mapping[str, range]
    event_bytes: int
    stamp_bytes: int


class _Domain:
    """A domain with its subscriptions, its running job, warmed up, and a receiver of its stamps."""

    def __init__(self, cluster: Cluster, admin: Any, domains: Domains, load: Load, published: Published) -> None:
        self._cluster, self._admin, self._domains, self._published = cluster, admin, domains, published
        self._workload = Workload(topics=domains.topics, shape=load.shape)
        self._subscriptions = self._workload.subscriptions(
            domains.subscribers, load.subscriptions // domains.subscribers
        )
        name = f"figures-{load.shape}-{load.subscriptions}"
        self._settings = cluster.settings(name, starting_offsets="latest")
        self._warm_up_rate = load.rate
        self._read = 0
        self._phases: list[_Phase] = []
        self._left = ExitStack()

    def __enter__(self) -> "_Domain":
        with ExitStack() as stack:
            rows = self._subscriptions.tolist()
            self._cluster.subscribe(self._settings, [[topic_name(topic) for topic in row] for row in rows])
            self._times = BatchTimes(stack.enter_context(self._cluster.sequencing(self._settings)))
            self._until_read(len(rows))
            self._receiver = stack.enter_context(self._receive())
            self.publish(self._warm_up_rate, self._domains.warm_up_s)
            self._phases.clear()
            self._left = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._left.close()

    def publish(self, rate: int, seconds: float) -> None:
        """Events for so long, and waits until they are stamped."""
        count = round(rate * seconds)
        drawn = self._workload.events(count)
        topics = [KAFKA_TOPICS[topic % len(KAFKA_TOPICS)] for topic in drawn.tolist()]
        keys = [topic_name(topic) for topic in drawn.tolist()]
        before = self._log_bytes()
        deadline = time.monotonic() + 3 * seconds + _TIMEOUT_S
        with Worker(publish_keys, self._settings.bootstrap_servers, topics, keys, rate) as publisher:
            while not publisher.pipe.poll(_LOOK_S):
                self._times.look()
                if time.monotonic() > deadline:
                    raise Error(f"publishing {rate} events/s cannot keep up", remedy="The machine is too busy")
            offsets = self._published.add(topics, publisher.hear("publish", _LOOK_S))
        self._until_read(count)
        events, stamps = (after - was for after, was in zip(self._log_bytes(), before, strict=True))
        self._phases.append(_Phase(offsets, events, stamps))

    def seen(self) -> list[Seen]:
        """Of each phase since the warm-up."""
        self._receiver.pipe.send("enough")
        stamps = stamp_times(self._receiver.hear("receive stamps", _TIMEOUT_S), self._settings.domain)
        return [
            summary(
                self._published.times_of(phase.offsets),
                times_of(phase.offsets, stamps),
                phase.event_bytes,
                phase.stamp_bytes,
            )
            for phase in self._phases
        ]

    def _receive(self) -> Receiver:
        own = self._settings
        return Receiver(receive_stamps, own.bootstrap_servers, own.own_topics.stamps, own.stamps_partitions)

    def _until_read(self, rows: int) -> None:
        self._read += rows
        self._times.until_read(self._read, _TIMEOUT_S)

    def _log_bytes(self) -> tuple[int, int]:
        """Of the events, and of the stamps."""
        stamps = self._settings.own_topics.stamps
        sizes = dict.fromkeys((*KAFKA_TOPICS, stamps), 0)
        for broker in self._admin.describe_log_dirs(list(sizes)):
            for directory in broker["log_dirs"]:
                for topic in directory["topics"]:
                    sizes[topic["name"]] += sum(partition["partition_size"] for partition in topic["partitions"])
        return sum(sizes[topic] for topic in KAFKA_TOPICS), sizes[stamps]


def stamp_times(arrivals: Sequence[Arrival], domain: str) -> dict[tuple[str, int], float]:
    """(Kafka topic, offset) of each event → when the last record came that its stamp needs to be read."""
    assemblers: dict[int, StampsAssembler] = {}
    found: dict[tuple[str, int], float] = {}
    for arrival in arrivals:
        partition = arrival.partition
        assembler = assemblers.setdefault(partition, StampsAssembler(domain=domain, partition=partition))
        batch = assembler.add(arrival.value, dict(arrival.headers))
        if batch is None:
            continue
        names = [source.topic for source in batch.sources]
        for source, offset in zip(batch.rows.source.tolist(), batch.rows.offset.tolist(), strict=True):
            found[names[source], offset] = arrival.at
    return found


def times_of(offsets: Mapping[str, range], stamps: Mapping[tuple[str, int], float]) -> Floats:
    """When these events' stamps came, Kafka topic by Kafka topic; Error when one has none."""
    try:
        return np.array([stamps[topic, offset] for topic, own in offsets.items() for offset in own])
    except KeyError as missing:
        raise Error(
            f"no stamp came for the event at {missing}", remedy="Please report it with the lines above"
        ) from None


def summary(sent: Floats, stamped: Floats, event_bytes: int, stamp_bytes: int) -> Seen:
    """The figures of one phase, from when each event was sent and when its stamp came."""
    delays_ms = (stamped - sent) * 1_000
    return Seen(
        events=len(sent),
        mean_ms=float(delays_ms.mean()),
        p50_ms=float(np.percentile(delays_ms, 50)),
        p99_ms=float(np.percentile(delays_ms, 99)),
        stamps_per_s=float(len(sent) / (stamped.max() - sent.min())),
        event_bytes=event_bytes / len(sent),
        stamp_bytes=stamp_bytes / len(sent),
    )
