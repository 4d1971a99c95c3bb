"""What both Kafka clients have in common as a Transport: outages, topics by their ids, what is lost, writing.

Errors are kafka-python's, by Kafka's own table of codes, whichever client meets them: so it is decided once what passes
by itself, and what is told of what does not.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar

from kafka.errors import (
    BrokerResponseError,
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnsupportedCodecError,
)

from totalorder import kafka_clients
from totalorder.errors import BrokerUnavailable, Error, EventsLost
from totalorder.kafka_errors import is_outage
from totalorder.subscriber import kafka_losses
from totalorder.subscriber.kafka_identities import Identities, Place, Reading
from totalorder.subscriber.outage import TAKES, Outage
from totalorder.subscriber.transport import Partition, Record

T = TypeVar("T")
MAX_REQUEST_BYTES = 16 << 20
"""What the positions topic takes: a position holds every topic of its set and of changes that lie ahead."""
ANSWER_S = 3.0
"""A broker that takes longer to answer a question counts as one that does not."""
SLICE_S = 0.05
"""How often events are fetched that come one by one: a fetch for each would keep client and broker busy, and they wait
for their stamps, which take longer and are fetched at once."""
_LIVELY_S = 1.0
PROMPT_S = 0.1
"""How long the broker holds a fetch of what is prompt when there is nothing."""
PROMPT_BYTES = 1 << 14
"""Of what is prompt so much is returned at a time, or one record. Stamps take twenty times that when they are decoded,
and more where values repeat; where enough of them wait, no more are returned the next time.
"""
KEPT_RECORDS, KEPT_BYTES = 10_000, 4 << 20
"""Of events that came and are not returned yet, since their partition is paused or others have their turn: so much is
kept, by all partitions together. A fetch that is under way comes on top.
"""
MANY_BYTES = 1 << 16
"""Of events, a fetch with so many is answered at once."""
IDENTIFY_S = 2.0
"""How often Kafka is asked whether it still has the topics that are read by their ids, when no records come of them."""
_RETRY_S = 0.2
_UNREADABLE = (CorruptRecordError, UnsupportedCodecError)


class Described(NamedTuple):
    """A topic that is there."""

    topic_id: str
    partitions: int


class NamedReading(Reading, Protocol):
    """A consumer of topics by name."""

    ids: dict[str, str]
    """Kafka's ids of the topics that were read: one that is created again under its name has another."""

    def position(self, at: Place) -> int:
        """The offset to be read next, gaps at the end included; asks nobody."""
        ...

    def positions_to_ask(self) -> dict[Place, int]:
        """Of all of which nothing is here any more: what is to be asked of Kafka next."""
        ...


class KafkaTransport(ABC):
    """See Transport. No broker for `outage_timeout_s` is borne, then BrokerUnavailable.

    `first` reads the `prompt` topics, `others` those that may be fetched at leisure, of them those by their ids.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        outage_timeout_s: float,
        *,
        prompt: Collection[str],
        first: NamedReading,
        others: NamedReading,
    ) -> None:
        self._servers, self._prompt = bootstrap_servers, prompt
        self._outage = Outage(bootstrap_servers, outage_timeout_s)
        self._unwritten = Outage(bootstrap_servers, outage_timeout_s, TAKES)
        """Of writing alone: a broker that answers need not take a record, whose topic may have too few replicas."""
        self._readers = (first, others)
        self._by_id = Identities(others, time.monotonic)
        self._identify_at = -math.inf

    # --- what a client does -------------------------------------------------------------------------------------------

    @abstractmethod
    def _described(self, topics: Collection[str]) -> dict[str, Described]:
        """Those of the topics that exist."""

    @abstractmethod
    def _policy(self, topic: str) -> str | None:
        """The setting cleanup.policy of a topic; None where ACLs hide it."""

    @abstractmethod
    def _ends(self, partitions: Collection[Place], *, begin: bool) -> dict[Place, int]:
        """The ends of what is committed, or the begins, in one question of its own, which waits behind no fetch."""

    @abstractmethod
    def _poll(self, timeout_s: float) -> list[Record]:
        """What has come, waiting for some at most so long; nothing while no broker answers."""

    @abstractmethod
    def _check_answers(self) -> None:
        """Asks those that lead what is read; raises what ails them."""

    @abstractmethod
    def _failure(self) -> Exception | str | None:
        """Why there is no connection, as far as it is known."""

    @abstractmethod
    def _sent(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        waits: Iterable[float],
    ) -> int:
        """Writes a record, which is never given up; its offset. `waits` are so many seconds at most, one after another;
        KafkaTimeoutError behind them.
        """

    @abstractmethod
    def close(self) -> None:
        """See Transport."""

    # --- questions ----------------------------------------------------------------------------------------------------

    def partitions(self, topic: str, *, once: bool = False) -> int:
        """See Transport."""
        ask = self._once if once else self._bearing
        described = ask(lambda: self._described([topic]))
        return described[topic].partitions if topic in described else 0

    def topic_id(self, topic: str) -> str:
        """See Transport."""
        described = self._bearing(lambda: self._described([topic]))
        return described[topic].topic_id if topic in described else ""

    def cleanup(self, topic: str) -> frozenset[str] | None:
        """See Transport."""
        policy = self._bearing(lambda: self._policy(topic))
        return None if policy is None else frozenset(policy.split(","))

    def beginning_offsets(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """See Transport."""
        return self._bearing(lambda: self._offsets(partitions, begin=True))

    def end_offsets(self, partitions: Collection[Partition], *, once: bool = False) -> dict[Partition, int]:
        """See Transport."""
        ask = self._once if once else self._bearing
        return ask(lambda: self._offsets(partitions, begin=False))

    def _offsets(self, partitions: Collection[Partition], *, begin: bool) -> dict[Partition, int]:
        wanted = {Place.of(partition): partition for partition in partitions}
        found = self._ends(wanted, begin=begin) if wanted else {}
        return {wanted[at]: offset for at, offset in found.items()}

    def _bearing(self, ask: Callable[[], T]) -> T:
        """Asks the broker, again and again while it cannot be reached."""
        while True:
            with suppress(BrokerUnavailable):
                return self._once(ask)
            self._outage.raise_if_over()
            time.sleep(_RETRY_S)

    def _once(self, ask: Callable[[], T]) -> T:
        """Asks the broker; BrokerUnavailable when it does not answer."""
        asked = time.monotonic()
        try:
            answer = ask()
        except KafkaError as error:
            self._bear(error, asked)
            raise kafka_clients.explained(self._servers, error) from error
        self._outage.heard()
        return answer

    def _bear(self, error: KafkaError, asked: float) -> None:
        """Raises what is no outage, or one that lasts too long."""
        if not is_outage(error):
            raise kafka_clients.explained(self._servers, error) from error
        reason = None if isinstance(error, KafkaTimeoutError) else error
        said = isinstance(error, BrokerResponseError)  # so there is a connection
        self._outage.missed(asked, reason if said else self._failure() or reason)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _reader(self, topic: str) -> NamedReading:
        """What reads a topic that is read by its name alone."""
        return self._readers[0 if topic in self._prompt else 1]

    def read(self, partition: Partition, offset: int) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.read(partition, offset)
        else:
            self._reader(partition.topic).read(Place.of(partition), offset)

    def stop(self, partition: Partition) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.stop(partition)
        else:
            self._reader(partition.topic).stop(Place.of(partition))

    def pause(self, partition: Partition) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.pause(partition)
        else:
            self._reader(partition.topic).pause(Place.of(partition))

    def resume(self, partition: Partition) -> None:
        """See Transport."""
        if partition.topic_id:
            self._by_id.resume(partition)
        else:
            self._reader(partition.topic).resume(Place.of(partition))

    def position(self, partition: Partition) -> int:
        """See Transport."""
        try:
            reader = self._readers[1] if partition.topic_id else self._reader(partition.topic)
            return reader.position(Place.of(partition))
        except KafkaError as error:
            raise kafka_clients.explained(self._servers, error) from error

    def poll(self, timeout_s: float) -> list[Record]:
        """See Transport."""
        deadline = time.monotonic() + timeout_s
        self._raise_if_unwritten()
        found = self._poll(timeout_s)
        while not found and (left_s := deadline - time.monotonic()) > 0:
            found = self._poll(left_s)
        if found:
            self._outage.heard()
        elif self._outage.wants_question or self._outage.left_s <= 0:
            self._probe()  # what was in vain so far may have been writing alone
        return found

    def _raise_if_unwritten(self) -> None:
        """Raises BrokerUnavailable when none took a record for long enough; where none answers, that is told."""
        try:
            self._unwritten.raise_if_over()
        except BrokerUnavailable:
            self._probe()
            raise

    @property
    def silent_s(self) -> float:
        """See Transport."""
        return max(self._outage.lasts_s, self._unwritten.lasts_s)

    def vanished(self) -> list[Partition]:
        """See Transport."""
        return self._by_id.vanished()

    def _identify(self, names: Collection[str]) -> bool:
        """Asks for the ids of topics that are read by them; False when no broker answers."""
        if not names:
            return True

        def compare() -> None:
            self._by_id.compare(names, {name: topic.topic_id for name, topic in self._described(names).items()})

        if self._by_id.names <= set(names):  # a question for some must not put off the one for all
            self._identify_at = time.monotonic() + IDENTIFY_S
        with suppress(BrokerUnavailable):
            self._once(compare)
            return True
        self._outage.raise_if_over()
        return False

    def _probe(self) -> None:
        """Asks the broker for the topics and ends of what is read, when nothing came for a while."""
        with suppress(BrokerUnavailable):
            self._once(self._check_all)
        self._outage.raise_if_over()

    def _check_all(self) -> None:
        self._check_topics()
        self._identify(self._by_id.names)
        # Whoever knows the topics may not be the one that is to give the records.
        self._check_answers()

    def _check_topics(self) -> None:
        """Raises EventsLost when a topic that is read by its name is gone, or is another one now."""
        for reader in self._readers:
            topics = {at.topic for at in reader.next} - self._by_id.names
            ids = {name: topic.topic_id for name, topic in self._described(topics).items()}
            others = {name for name, found in ids.items() if reader.ids.setdefault(name, found) != found}
            if others or topics - ids.keys():
                raise kafka_losses.gone(self._named(reader.next), topics - ids.keys(), others)

    # --- what is lost -------------------------------------------------------------------------------------------------

    def _explained(self, error: KafkaError, met_at: Mapping[Place, int] | None = None) -> Error | None:
        """An error of a consumer that is no outage, as totalorder's; None when it is of topics that are gone.

        `met_at`: where it was met, if the client says so.
        """
        if isinstance(error, LogTruncationError):
            read = self._reader(next(iter(error.divergent_offsets)).topic).next
            return self._lost({at: read[at] for at in error.divergent_offsets if at in read})
        if isinstance(error, OffsetOutOfRangeError):
            wanted = error.args[0] if error.args else {}
            still_read = {at for reader in self._readers for at in reader.next}
            return self._lost({at: offset for at, offset in wanted.items() if at in still_read})
        if isinstance(error, _UNREADABLE):
            read = {at: offset for reader in self._readers for at, offset in reader.next.items()}
            return kafka_losses.unreadable(self._named(met_at or read), error)
        return kafka_clients.explained(self._servers, error)

    def _lost(self, wanted: Mapping[Place, int]) -> EventsLost | None:
        """What became of offsets that Kafka does not have; of all that is read, where retention removed them."""
        self._bearing(self._check_topics)
        if not wanted:
            return None
        positions = {at: next_ for reader in self._readers for at, next_ in reader.positions_to_ask().items()}
        named = self._named(positions | dict(wanted))
        removed = kafka_losses.removed(named, self.beginning_offsets(named))
        if removed is not None:
            return removed
        ends = self.end_offsets(self._named(wanted))
        return kafka_losses.cut_short(self._named(wanted), ends)

    def _named(self, offsets: Mapping[Place, int]) -> dict[Partition, int]:
        """The same by partitions with the ids that they are read by."""
        return {Partition(at.topic, at.partition, self._by_id.id_of(at.topic)): end for at, end in offsets.items()}

    # --- writing ------------------------------------------------------------------------------------------------------

    def send(
        self,
        partition: Partition,
        key: bytes | None,
        value: bytes | None,
        *,
        headers: Sequence[tuple[str, bytes | None]] = (),
        timeout_s: float | None = None,
    ) -> int:
        """See Transport."""
        asked = time.monotonic()
        left_s = min(self._outage.left_s, self._unwritten.left_s)
        deadline = asked + (max(ANSWER_S, left_s) if timeout_s is None else timeout_s)
        try:
            offset = self._sent(partition, key, value, list(headers), self._waits(partition, asked, deadline))
        except KafkaError as error:
            if timeout_s is None:
                self._refuse_deleted(partition.topic, error)
            try:
                self._bear(error, asked)
            except BrokerUnavailable:
                with suppress(BrokerUnavailable):
                    self._unwritten.missed(asked, f"{partition.topic}[{partition.number}]")
                raise
            self._unwritten.missed(asked, f"{partition.topic}[{partition.number}]")
            raise kafka_clients.explained(self._servers, error) from error
        self._outage.heard()
        self._unwritten.heard()
        return offset

    def _waits(self, partition: Partition, asked: float, deadline: float) -> Iterator[float]:
        """Slices of the time until the deadline. Says that it is waited for, where that takes longer than an answer."""
        tell_at = asked + ANSWER_S
        while (now := time.monotonic()) < deadline:
            if now >= tell_at:
                self._unwritten.missed(asked, f"{partition.topic}[{partition.number}]")
                tell_at = now + ANSWER_S
            yield min(deadline, tell_at) - now

    def _refuse_deleted(self, topic: str, error: KafkaError) -> None:
        """To a producer a topic that is gone is one that the broker does not know yet."""
        try:
            there = topic in self._described([topic])
        except KafkaError:
            return  # then the first error is the one to tell
        if not there:
            raise Error(
                f"the Kafka topic {topic} was deleted, and this subscriber must write there",
                remedy="`totalorder sequence` stops for the same reason, and says what can be done",
            ) from error


def is_lively(came_at: float) -> bool:
    """Whether something came lately."""
    return time.monotonic() - came_at < _LIVELY_S


def no_such_partition(partition: Partition) -> Error:
    """Of one that is to be written."""
    return Error(
        f"the Kafka topic {partition.topic} has no partition {partition.number} to write to",
        remedy="It was created again with fewer: `totalorder sequence` says what can be done",
    )
