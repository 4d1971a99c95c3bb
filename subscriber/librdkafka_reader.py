"""A consumer of librdkafka, and what it reads.

It fetches behind our back, and all partitions feed one queue. What is here and not to be returned yet, since its
partition is paused or Kafka has yet to confirm the topic's id, is kept: librdkafka's own pause drops what it has
fetched, and fetches it again. Where too much is kept of a partition it is not fetched for the time being.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import TopicPartition
from kafka.errors import CorruptRecordError, KafkaError

from totalorder.librdkafka_consumer import headers_of
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.librdkafka_errors import END_OF_PARTITION, OFFSET_MISSING, translated
from totalorder.subscriber.transport import Record

KEPT_RECORDS, KEPT_BYTES = 10_000, 4 << 20
"""Shared by the partitions of which something is kept. A fetch that is under way comes on top."""
_LEAST_KEPT = 200
_ALL = 1 << 62


class _Flow:
    """A partition that is read. `fetched` is behind what came out of librdkafka, gaps included; what lies before
    `confirmed` is of the topic that was to be read.
    """

    __slots__ = (
        *("confirmed", "failure", "fetched", "first", "is_asked", "is_paused", "kept", "kept_bytes"),
        *("leader_epoch", "missed", "topic_id"),
    )

    def __init__(self, topic_id: str, offset: int) -> None:
        self.topic_id = topic_id
        self.first = self.fetched = offset
        self.confirmed = offset if topic_id else _ALL
        self.kept: deque[Record] = deque()
        self.kept_bytes = 0
        self.is_paused = False
        self.is_asked = False
        """Whether librdkafka is told to fetch it, or will be."""
        self.failure: KafkaError | None = None
        """Why nothing comes behind what is kept."""
        self.missed: int | None = None
        """The offset that is not there, if that is why."""
        self.leader_epoch: int | None = None
        """Of the last record that came."""

    @property
    def next(self) -> int:
        """The offset behind what was returned, and gaps behind that as far as they are confirmed."""
        return min(self.kept[0].offset if self.kept else self.fetched, self.confirmed)

    def is_kept_beyond(self, share: int) -> bool:
        """Whether more is kept than one of so many partitions may."""
        return len(self.kept) > max(_LEAST_KEPT, KEPT_RECORDS // share) or self.kept_bytes > KEPT_BYTES // share

    def take(self, most: int) -> list[Record]:
        """Up to so many of the records that may be returned."""
        kept, confirmed = self.kept, self.confirmed
        if len(kept) <= most and self.fetched <= confirmed:
            taken = list(kept)
            kept.clear()
            self.kept_bytes = 0
            return taken
        taken = []
        while kept and len(taken) < most and kept[0].offset < confirmed:
            taken.append(kept.popleft())
            self.kept_bytes -= _size(taken[-1])
        return taken


class Failed(NamedTuple):
    """A partition of which nothing more comes, and whose kept records are returned.

    `offset` was to be read; `missed` is the one that is not there, if that is why. `leader_epoch`: of the last record
    that came since reading began at `first`; None when none did.
    """

    at: Place
    offset: int
    error: KafkaError
    missed: int | None
    first: int
    leader_epoch: int | None


class LibrdkafkaReader:
    """Reads topics by name; those of which `id_of` knows an id return nothing that `confirm` has not seen."""

    def __init__(self, consumer: Any, most: int, id_of: Callable[[str], str]) -> None:
        """`most`: records that are fetched from librdkafka's queue at a time."""
        self._consumer, self._most, self._id_of = consumer, most, id_of
        self.ids: dict[str, str] = {}
        """Kafka's ids of the topics that are read by name: one that is created again under its name has another."""
        self._flows: dict[Place, _Flow] = {}
        self._full: dict[Place, _Flow] = {}
        """Those of which something is kept, in the order of their turns."""
        self._failed: set[Place] = set()
        self._told: set[Place] = set()
        """What librdkafka fetches."""
        self._to_stop: set[Place] = set()
        self._to_start: set[Place] = set()
        self._doubtful: dict[Place, _Flow] = {}

    @property
    def next(self) -> Mapping[Place, int]:
        """Of every partition that is read: the offset behind the last record that was returned."""
        return {at: flow.next for at, flow in self._flows.items()}

    @property
    def is_reading(self) -> bool:
        """Whether anything is read."""
        return bool(self._flows)

    def position(self, at: Place) -> int:
        """The offset to be read next, gaps at the end included; asks nobody."""
        return self._flows[at].next

    def positions_to_ask(self) -> dict[Place, int]:
        """Of all of which nothing is kept: what is to be asked of Kafka next."""
        return {at: flow.fetched for at, flow in self._flows.items() if not flow.kept}

    def read(self, at: Place, offset: int) -> None:
        """From `offset` on, unpaused, be it read already or not."""
        self.stop(at)
        flow = self._flows[at] = _Flow(self._id_of(at.topic), offset)
        self._doubtful[at] = flow
        self._start(at, flow)

    def stop(self, at: Place) -> None:
        """Reads it no longer."""
        if (flow := self._flows.pop(at, None)) is not None:
            for known in (self._full, self._doubtful):
                known.pop(at, None)
            self._failed.discard(at)
            self._stop(at, flow)

    def pause(self, at: Place) -> None:
        """Returns nothing of it until `resume`."""
        self._flows[at].is_paused = True

    def resume(self, at: Place) -> None:
        """Ends `pause`."""
        if (flow := self._flows.get(at)) is not None:
            flow.is_paused = False

    def is_paused(self, at: Place) -> bool:
        """Whether it is."""
        return self._flows[at].is_paused

    def renew(self) -> None:
        """librdkafka drops what it has fetched of a partition when that is stopped."""

    # --- what came ----------------------------------------------------------------------------------------------------

    def receive(self, timeout_s: float) -> int:
        """Takes in what has come, waiting so long for something; how much that is."""
        self._tell()
        if not self._told and timeout_s == 0:
            return 0
        first = self._consumer.poll(timeout_s)
        if first is None:
            return 0
        more = self._consumer.consume(self._most - 1, 0) if self._most > 1 else []
        came: dict[Place, _Flow] = {}
        for message in (first, *more):
            self._note(message, came)
        self._doubtful |= came
        self._balance(came)
        return 1 + len(more)

    def _note(self, message: Any, came: dict[Place, _Flow]) -> None:
        topic, number, offset, error = message.topic(), message.partition(), message.offset(), message.error()
        flow = self._flows.get((topic, number))  # type: ignore[call-overload]
        if flow is None or not flow.is_asked:
            if error is not None and topic is not None and number < 0:
                self._fail([at for at in self._flows if at.topic == topic], error)
            return
        at = Place(topic, number)
        if error is None:
            if offset < flow.fetched:
                return
            self._keep(at, flow, message)
            came[at] = flow
        elif error.code() != END_OF_PARTITION:
            self._fail([at], error, offset if error.code() == OFFSET_MISSING else None)
        elif offset > flow.fetched:
            flow.fetched = offset
            came[at] = flow

    def _keep(self, at: Place, flow: _Flow, message: Any) -> None:
        try:
            headers = headers_of(message)
        except SystemError as error:
            flow.failure = CorruptRecordError(str(error.__cause__ or error))
            self._failed.add(at)
            self._stop(at, flow)
            return
        record = Record(
            at.topic,
            at.partition,
            message.offset(),
            message.key(),
            message.value(),
            tuple(headers) if headers else (),
            message.timestamp()[1],
            flow.topic_id,
        )
        flow.fetched = record.offset + 1
        flow.leader_epoch = message.leader_epoch()
        flow.kept_bytes += _size(record)
        if not flow.kept:
            self._full[at] = flow
        flow.kept.append(record)

    def _fail(self, places: Iterable[Place], error: Any, missed: int | None = None) -> None:
        for at in places:
            flow = self._flows[at]
            flow.failure, flow.missed = translated(error), missed
            self._failed.add(at)

    def failed(self) -> Failed | None:
        """A partition of which nothing more comes, whose kept records are returned."""
        for at in [at for at in self._failed if not self._flows[at].kept]:
            flow = self._flows[at]
            # That an offset is not there is told once more, also where reading went on behind it meanwhile.
            if flow.missed is not None and flow.missed < flow.fetched:
                self._failed.discard(at)
                flow.failure = flow.missed = None
            elif flow.failure is not None:
                return Failed(at, flow.fetched, flow.failure, flow.missed, flow.first, flow.leader_epoch)
        return None

    def again(self, at: Place) -> None:
        """Tries to fetch a failed partition once more."""
        if (flow := self._flows.get(at)) is not None:
            self._failed.discard(at)
            flow.failure = flow.missed = None
            self._stop(at, flow)
            self._start(at, flow)

    def take(self, most: int) -> list[Record]:
        """Up to so many records that may be returned, in offset order of each partition; partitions take turns."""
        found: list[Record] = []
        served = []
        for at, flow in list(self._full.items()):
            if flow.is_paused or flow.kept[0].offset >= flow.confirmed:
                continue
            del self._full[at]
            found += flow.take(most - len(found))
            served.append(at)
            if flow.kept:
                self._full[at] = flow
            if len(found) >= most:
                break
        self._balance(served)
        return found

    # --- topics' ids --------------------------------------------------------------------------------------------------

    @property
    def doubtful(self) -> set[str]:
        """The topics of which something came since they were taken by `doubts`."""
        return {at.topic for at in self._doubtful}

    def doubts(self) -> "Doubts":
        """How far everything is here now: `confirm` it when Kafka, asked from now on, still has the same topics."""
        taken = [(at, flow, flow.fetched) for at, flow in self._doubtful.items()]
        self._doubtful = {}
        return taken

    def doubt(self, doubts: "Doubts") -> None:
        """They were not confirmed."""
        self._doubtful = {at: flow for at, flow, _ in doubts if self._flows.get(at) is flow} | self._doubtful

    def confirm(self, doubts: "Doubts") -> None:
        """What is read no longer, or was begun to be read anew meanwhile, is passed over."""
        for at, flow, fetched in doubts:
            if self._flows.get(at) is flow:
                flow.confirmed = max(flow.confirmed, fetched)

    # --- what librdkafka is told --------------------------------------------------------------------------------------

    def _balance(self, places: Iterable[Place]) -> None:
        """Of these, no more is kept than there is room, and what is not fetched is when there is room again."""
        share = max(1, len(self._full))
        for at in places:
            flow = self._flows[at]
            if flow.is_asked:
                if flow.is_kept_beyond(share):
                    self._stop(at, flow)
            elif flow.failure is None and not flow.is_kept_beyond(2 * share):
                self._start(at, flow)

    def _start(self, at: Place, flow: _Flow) -> None:
        flow.is_asked = True
        self._to_start.add(at)

    def _stop(self, at: Place, flow: _Flow) -> None:
        flow.is_asked = False
        self._to_start.discard(at)
        if at in self._told:
            self._to_stop.add(at)

    def _tell(self) -> None:
        """In one go; what is started anew must be stopped before, so that nothing that was fetched of it comes."""
        if self._to_stop:
            self._consumer.incremental_unassign([TopicPartition(*at) for at in self._to_stop])
            self._told -= self._to_stop
            self._to_stop = set()
        if self._to_start:
            started = [TopicPartition(*at, self._flows[at].fetched) for at in self._to_start]
            self._consumer.incremental_assign(started)
            self._told |= self._to_start
            self._to_start = set()


Doubts = list[tuple[Place, _Flow, int]]
"""Partitions, as they are read now, each with the offset behind what is here of it."""


def _size(record: Record) -> int:
    return len(record.value or b"") + len(record.key or b"")
