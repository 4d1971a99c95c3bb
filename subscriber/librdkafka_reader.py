"""A consumer of librdkafka, and what it reads.

It fetches behind our back, and all partitions feed one queue. What is here and not to be returned yet, since its
partition is paused or Kafka has yet to confirm the topic's id, is kept: librdkafka's own pause drops what it has
fetched, and fetches it again. Where too much is kept of a partition it is not fetched for the time being.

Messages are taken apart by columns, one method of all that follow each other in a partition at a time: called by C it
takes a hundredth of a microsecond, from Python several times that (docs/adr/0025-columns-of-messages.md).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate, chain, groupby, islice, repeat
from operator import is_, itemgetter, lt
from typing import Any, NamedTuple

from confluent_kafka import OFFSET_END, KafkaException, Message, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError

from totalorder.librdkafka_consumer import headers_of
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.kafka_transport import KEPT_BYTES, KEPT_RECORDS
from totalorder.subscriber.librdkafka_errors import END_OF_PARTITION, OFFSET_MISSING, translated
from totalorder.subscriber.transport import Record, records_of

_LEAST_KEPT = 200
_ALL = 1 << 62
_LEADERS_S = 0.2
_OFFSET = itemgetter(Record._fields.index("offset"))
_TIME_MS = itemgetter(1)
"""Of what a message's timestamp() gives."""
_OF: Any = Message
"""Its methods are called of many messages at a time. To a checker of types each may give None."""


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
        self.kept: list[Record] = []
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

    def keep(self, records: list[Record], size: int, leader_epoch: int | None) -> None:
        """They came next, with so many bytes, the last of them from this epoch of the leader."""
        self.kept += records
        self.kept_bytes += size
        self.fetched, self.leader_epoch = records[-1].offset + 1, leader_epoch

    def take(self, most: int, most_bytes: int) -> list[Record]:
        """Up to so many of the records that may be returned, and so many bytes of them; but one at least."""
        end = min(most, len(self.kept))
        if self.fetched > self.confirmed:
            end = bisect_left(self.kept, self.confirmed, hi=end, key=_OFFSET)
        if self.kept_bytes > most_bytes and end > 1:
            sizes = accumulate(_bytes_of((record.key, record.value)) for record in self.kept[:end])
            end = max(1, bisect_right(list(sizes), most_bytes))
        self.kept_bytes -= self.kept_bytes * end // len(self.kept)  # as if all were alike: a look at each takes longer
        taken, self.kept = self.kept[:end], self.kept[end:]
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

    def __init__(
        self, consumer: Any, most: int, id_of: Callable[[str], str], *, at_once_bytes: int = KEPT_BYTES
    ) -> None:
        """`most`: records that are fetched from librdkafka's queue at a time. `at_once_bytes`: of what is returned at a
        time, but for one record.
        """
        self._consumer, self._most, self._id_of, self._at_once_bytes = consumer, most, id_of, at_once_bytes
        self.ids: dict[str, str] = {}
        """Kafka's ids of the topics that are read by name: one that is created again under its name has another."""
        self._flows: dict[Place, _Flow] = {}
        self._full: dict[Place, _Flow] = {}
        """Those of which something is kept, in the order of their turns."""
        self._failed: set[Place] = set()
        self._told: set[Place] = set()
        """What librdkafka fetches."""
        self._known: set[str] = set()
        """Topics whose leaders it was to find."""
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
        for messages in _runs([first, *more]):
            self._note(messages, came)
        self._doubtful |= came
        self._balance(came)
        return 1 + len(more)

    def _note(self, messages: Sequence[Any], came: dict[Place, _Flow]) -> None:
        """Takes in messages of one partition, or one that is an error."""
        topic, number, error = messages[0].topic(), messages[0].partition(), messages[0].error()
        flow = self._flows.get((topic, number))  # type: ignore[call-overload]
        if flow is None or not flow.is_asked:
            if error is not None and topic is not None and number is None:
                self._fail([at for at in self._flows if at.topic == topic], error)
            return
        at, offset = Place(topic, number), messages[0].offset()
        if error is None:
            if fresh := _behind(messages, flow.fetched):
                self._keep(at, flow, fresh)
                came[at] = flow
        elif error.code() != END_OF_PARTITION:
            self._fail([at], error, offset if error.code() == OFFSET_MISSING else None)
        elif offset > flow.fetched:
            flow.fetched = offset
            came[at] = flow

    def _keep(self, at: Place, flow: _Flow, messages: Sequence[Any]) -> None:
        """Takes messages apart, up to the first one that cannot be."""
        headers: list[tuple[tuple[str, bytes | None], ...]] = []
        try:
            headers.extend(tuple(found) if found else () for found in map(headers_of, messages))
        except SystemError as error:  # the list has those before
            flow.failure = CorruptRecordError(str(error.__cause__ or error))
            self._failed.add(at)
            self._stop(at, flow)
        if not headers:
            return
        readable = messages[: len(headers)]
        offsets, times = map(_OF.offset, readable), map(_OF.timestamp, readable)
        keys, values = list(map(_OF.key, readable)), list(map(_OF.value, readable))
        records = records_of(at, flow.topic_id, offsets, keys, values, headers, map(_TIME_MS, times))
        if not flow.kept:
            self._full[at] = flow
        flow.keep(records, _bytes_of(chain(keys, values)), readable[-1].leader_epoch())

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
        served, bytes_left = [], self._at_once_bytes
        for at, flow in list(self._full.items()):
            if flow.is_paused or flow.kept[0].offset >= flow.confirmed:
                continue
            del self._full[at]
            bytes_left -= flow.kept_bytes
            found += flow.take(most - len(found), bytes_left + flow.kept_bytes)
            bytes_left += flow.kept_bytes
            served.append(at)
            if flow.kept:
                self._full[at] = flow
            if len(found) >= most or bytes_left <= 0:
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
            self._find_leaders(self._to_start)
            started = [TopicPartition(*at, self._flows[at].fetched) for at in self._to_start]
            self._consumer.incremental_assign(started)
            self._told |= self._to_start
            self._to_start = set()

    def _find_leaders(self, places: Iterable[Place]) -> None:
        """librdkafka looks each second who leads the partitions of a topic that is new to it, unless it is asked for
        something that wants to know: here for ends, which are of no other use. Where that takes longer, it goes on.
        """
        news = {at.topic: TopicPartition(*at, OFFSET_END) for at in places if at.topic not in self._known}
        if news:
            self._known |= news.keys()
            with suppress(KafkaException):
                self._consumer.offsets_for_times(list(news.values()), timeout=_LEADERS_S)


Doubts = list[tuple[Place, _Flow, int]]
"""Partitions, as they are read now, each with the offset behind what is here of it."""


def _runs(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Messages of one partition that follow each other; each that is an error by itself."""
    topics, partitions, errors = (map(column, messages) for column in (_OF.topic, _OF.partition, _OF.error))
    whence = zip(topics, partitions, map(is_, errors, repeat(None)), strict=True)
    begin = 0
    for (*_, is_record), run in groupby(whence):
        end = begin + len(list(run))
        step = end - begin if is_record else 1
        for at in range(begin, end, step):
            yield messages[at : at + step]
        begin = end


def _behind(messages: Sequence[Any], offset: int) -> Sequence[Any]:
    """Those of a partition's messages that lie at an offset or behind, and behind all before them."""
    offsets = list(map(_OF.offset, messages))
    if offsets[0] >= offset and all(map(lt, offsets, islice(offsets, 1, None))):
        return messages
    reached = accumulate(offsets, max, initial=offset - 1)
    return [message for message, at, before in zip(messages, offsets, reached, strict=False) if at > before]


def _bytes_of(payloads: Iterable[bytes | None]) -> int:
    """Of keys and values together."""
    return sum(map(len, filter(None, payloads)))
