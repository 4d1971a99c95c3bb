"""What a broker keeps of cuts: a topic like the domain's own, written as the job's source writes it."""

from types import TracebackType
from typing import Self

import numpy as np

from totalorder import kafka_clients
from totalorder.bench.bytes.stamps_log import log_bytes
from totalorder.bench.domain import EVENT_PARTITIONS
from totalorder.config import make_settings
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.wire.cuts import Cut, CutEncoder
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.publisher import Publisher
from totalorder.streaming.preflight import own_topics
from totalorder.streaming.topics import Topics

LOOK_MS = 5
_TIMEOUT_S = 60.0
_ID = "AAAAAAAA-AAAA-AAAA-AAAA-AAAAAAAAAAAA"


class CutsLog:
    """The topic of cuts of a domain of its own, and its size in bytes."""

    def __init__(self, bootstrap_servers: str, domain: str) -> None:
        """Makes the topic as the job's preflight does, and the publisher of its source."""
        settings = make_settings(
            domain=domain, bootstrap_servers=bootstrap_servers, topics=("events",), checkpoint_dir="unused"
        )
        self._domain, self._topic = domain, settings.own_topics.cuts
        topics = Topics(settings)
        topics.create(topic for topic in own_topics(settings) if topic.name == self._topic)
        topics.close()
        self._admin = kafka_clients.admin(bootstrap_servers)
        self._publisher = Publisher(bootstrap_servers, {}, self._topic)
        self._encoder = CutEncoder()
        control = DomainTopics(domain=domain).control
        places = [(control, 0), *(("events", partition) for partition in range(EVENT_PARTITIONS))]
        self._sources = tuple(Source(topic, _ID, partition) for topic, partition in places)
        self._ends = np.zeros(len(places), dtype=np.int64)
        self._cuts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._publisher.close()
        self._admin.close()

    def write(self, batch: Batch, *, is_backlog: bool) -> None:
        """Sends the cut of a batch of `Domain`, and waits until the broker has it."""
        self._publisher.send(self._encoder.encode(self.cut_of(batch, is_backlog=is_backlog)))
        self._publisher.await_acknowledged(_TIMEOUT_S)

    def cut_of(self, batch: Batch, *, is_backlog: bool) -> Cut:
        """The cut of the next batch: a look each LOOK_MS, or one slice where all of it waited already."""
        slices = np.zeros_like(batch.timestamp_ms) if is_backlog else batch.timestamp_ms // LOOK_MS
        place = 1 + batch.partition  # control stands first, and stands still
        used, slice_ = np.unique(slices, return_inverse=True)
        advances = np.zeros((len(used), len(self._sources)), dtype=np.int64)
        np.add.at(advances, (slice_, place), 1)
        of_slice, places = np.nonzero(advances)
        self._cuts += 1
        begins, self._ends = self._ends, self._ends + advances.sum(axis=0)
        return Cut(
            domain=self._domain,
            incarnation=1,
            cut=self._cuts,
            sources=self._sources,
            begins=begins,
            slice_start=np.searchsorted(of_slice, np.arange(len(used) + 1)),
            place=places,
            count=advances[of_slice, places],
        )

    def size(self) -> int:
        """Bytes of the topic's log: batch headers, record headers and values."""
        return log_bytes(self._admin, self._topic)
