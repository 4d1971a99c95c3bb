"""What is kept of what librdkafka fetched: nothing is lost, doubled or returned too early, and there is a bound."""

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer as RealConsumer, KafkaError as Told, KafkaException, Message, Producer
from hypothesis import example, given, settings, strategies as st
from kafka.errors import CorruptRecordError, OffsetOutOfRangeError, TopicAuthorizationFailedError
from waiting import BOUND_S, wait_until

from totalorder.broker import LocalBroker
from totalorder.librdkafka_consumer import DECIDED
from totalorder.subscriber import librdkafka_reader
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.librdkafka_reader import LibrdkafkaReader
from totalorder.subscriber.transport import Record

A, B, NAMED = Place("a", 0), Place("b", 1), Place("named", 0)
BY_ID = {"a": "id-a", "b": "id-b"}
MAKE: Any = Message
"""Its stubs know names of arguments only."""


def message(at: Place, offset: int, *, code: int = 0, value: bytes | None = b"v", **more: Any) -> Message:
    """confluent-kafka's own."""
    error = Told(code) if code else None
    given: dict[str, Any] = {"headers": None, "leader_epoch": 7} | more
    made: Message = MAKE(*at, offset, value=value, error=error, timestamp=(1, 5), **given)
    return made


class Broken(Message):
    """Its header has a name that is not UTF-8."""

    def headers(self) -> None:
        raise SystemError("returned a result with an exception set") from UnicodeDecodeError("utf-8", b"x", 0, 1, "why")


def broken(at: Place, offset: int) -> Message:
    return Broken(topic=at.topic, partition=at.partition, offset=offset, value=b"v")


class Consumer:
    """Logs that never end, with nothing at offsets that are multiples of 7. A fetch begins one offset too early;
    what was fetched of a partition is dropped when that is stopped. `ahead` messages are fetched ahead.
    """

    def __init__(self, ahead: int = 30) -> None:
        self.assigned: dict[Place, int] = {}
        self.queue: list[Message] = []
        self._ahead = ahead
        self.fetched = 0
        self.led: list[set[str]] = []
        """The topics whose leaders were asked for, each time."""
        self.silent = False

    def offsets_for_times(self, partitions: list[Any], *, timeout: float) -> None:
        assert timeout < 1, "librdkafka asks by itself after a second"
        self.led.append({at.topic for at in partitions})
        if self.silent:
            raise KafkaException(Told(Told._TIMED_OUT))

    def incremental_assign(self, partitions: list[Any]) -> None:
        for at in partitions:
            place = Place(at.topic, at.partition)
            assert place not in self.assigned, "it is stopped before"
            assert any(at.topic in topics for topics in self.led), "else it waits for librdkafka's next look"
            self.assigned[place] = max(0, at.offset - 1)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for at in partitions:
            place = Place(at.topic, at.partition)
            del self.assigned[place]
            self.queue = [one for one in self.queue if (one.topic(), one.partition()) != place]

    def fetch(self) -> None:
        while self.assigned and len(self.queue) < self._ahead:
            for at, offset in self.assigned.items():
                offset += offset % 7 == 0
                self.queue.append(message(at, offset))
                self.assigned[at] = offset + 1
                self.fetched += 1

    def poll(self, _: float) -> Message | None:
        self.fetch()
        return self.queue.pop(0) if self.queue else None

    def consume(self, most: int, _: float) -> list[Message]:
        found, self.queue = self.queue[:most], self.queue[most:]
        return found


def reader_of(consumer: Consumer, most: int = 10, **more: int) -> LibrdkafkaReader:
    return LibrdkafkaReader(consumer, most, lambda topic: BY_ID.get(topic, ""), **more)


def offsets(records: list[Record], at: Place) -> list[int]:
    return [record.offset for record in records if (record.topic, record.partition) == at]


def expected(begin: int) -> Iterator[int]:
    offset = begin
    while True:
        offset += offset % 7 == 0
        yield offset
        offset += 1


PLACES = st.sampled_from([A, B, NAMED])
RECEIVE, DOUBTS, CONFIRM, DOUBT = (st.just((name,)) for name in ("receive", "doubts", "confirm", "doubt"))
TAKE, READ = st.tuples(st.just("take"), st.integers(1, 40)), st.tuples(st.just("read"), PLACES, st.integers(0, 50))
CHANGE = st.tuples(st.sampled_from(["pause", "resume", "stop"]), PLACES)
STEPS = st.lists(
    st.one_of(RECEIVE, RECEIVE, RECEIVE, TAKE, TAKE, DOUBTS, CONFIRM, DOUBTS, CONFIRM, DOUBT, READ, CHANGE), min_size=30
)
END: list[Any] = [
    *[("resume", at) for at in (A, B, NAMED)],
    ("doubt",),
    *[("doubts",), ("confirm",), ("take", 1_000)],
]


@settings(max_examples=300)
@given(STEPS)
def test_what_is_returned_is_what_a_plain_list_would_hold(steps: list[Any]) -> None:
    """The twin of each partition: a log from where it was read, and whether anything may come of it now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(librdkafka_reader, "_LEAST_KEPT", 8)
        patch.setattr(librdkafka_reader, "KEPT_RECORDS", 20)
        consumer = Consumer()
        reader = reader_of(consumer)
        twins: dict[Place, Iterator[int]] = {}
        reads: dict[Place, int] = {}
        """How often each was begun to be read."""
        paused: set[Place] = set()
        received: dict[Place, int] = {}
        confirmed: dict[Place, int] = {}
        asked: Any = None
        last: dict[Place, int] = {}
        for step in [*[("read", at, 1) for at in (A, B, NAMED)], *steps, *END]:
            match step:
                case ("read", at, offset):
                    reader.read(at, offset)
                    twins[at], last[at] = expected(offset), offset
                    reads[at] = reads.get(at, 0) + 1
                    received[at] = confirmed[at] = offset
                    paused.discard(at)
                case ("stop", at):
                    reader.stop(at)
                    twins.pop(at, None)
                case ("pause", at) if at in twins:
                    reader.pause(at)
                    paused.add(at)
                case ("resume", at) if at in twins:
                    reader.resume(at)
                    paused.discard(at)
                case ("receive",):
                    reader.receive(0)
                    for at in twins:
                        received[at] = reader._flows[at].fetched
                case ("doubts",) if asked is None:
                    asked = reader.doubts(), dict(received), dict(reads)
                case ("confirm",) if asked is not None:
                    reader.confirm(asked[0])
                    for at, through in asked[1].items():
                        if asked[2].get(at) == reads.get(at) and at in twins:
                            confirmed[at] = max(confirmed[at], through)
                    asked = None
                case ("doubt",) if asked is not None:
                    reader.doubt(asked[0])
                    asked = None
                case ("take", most):
                    found = reader.take(most)
                    assert len(found) <= most
                    assert {Place(record.topic, record.partition) for record in found} <= twins.keys() - paused
                    for at in twins:
                        for offset in offsets(found, at):
                            assert offset == next(twins[at])
                            assert at == NAMED or offset < confirmed[at], "not before Kafka was asked"
                            last[at] = offset + 1
            for at in twins:
                assert last[at] <= reader.position(at) <= received[at]
                assert len(reader._flows[at].kept) <= 20 + 10, "no more than there is room, and what came at once"
        for at in twins:
            assert reader.position(at) == received[at], "nothing stays behind"
            assert next(twins[at]) >= received[at]


@pytest.mark.parametrize("silent", [False, True])
def test_leaders_of_new_topics_are_asked_for_once_and_together(silent: bool) -> None:
    consumer = Consumer()
    consumer.silent = silent
    reader = reader_of(consumer)
    for places in ([A, NAMED, Place("a", 1)], [B], [A, B, NAMED]):
        for at in places:
            reader.read(at, 1)
        reader.receive(0)
    assert consumer.led == [{"a", "named"}, {"b"}]
    assert consumer.assigned.keys() == {A, B, NAMED, Place("a", 1)}


@pytest.mark.broker
def test_librdkafka_does_not_wait_for_its_next_look_at_new_topics(
    broker: LocalBroker, new_topic: Callable[..., str]
) -> None:
    logged: list[str] = []
    log = logging.getLogger("librdkafka's own")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(SimpleNamespace(level=0, handle=lambda line: logged.append(line.getMessage())))  # type: ignore[arg-type]
    settings = DECIDED | {"bootstrap.servers": broker.bootstrap_servers, "debug": "metadata"}
    consumer = RealConsumer(settings, logger=log)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    reader = LibrdkafkaReader(consumer, 10, lambda _topic: "")
    for at in [Place(new_topic("led"), 0) for _ in range(3)]:
        producer.produce(at.topic, b"v")
        assert producer.flush(BOUND_S) == 0
        reader.read(at, 0)
        wait_until(lambda: reader.receive(0.1) > 0 and reader.take(10) != [], f"the record of {at.topic} comes")
    consumer.close()
    looks = [line for line in logged if "refresh unavailable topics" in line and "Request metadata" in line]
    assert any("query partition leaders" in line for line in logged)
    assert len(looks) <= 1, "one may come while the broker takes its time"


def test_a_paused_partition_is_not_fetched_twice_when_it_goes_on_soon() -> None:
    consumer = Consumer()
    reader = reader_of(consumer)
    reader.read(NAMED, 1)
    reader.receive(0)
    assert offsets(reader.take(4), NAMED) == [1, 2, 3, 4]
    reader.pause(NAMED)
    for _ in range(5):
        reader.receive(0)
    assert reader.take(100) == []
    reader.resume(NAMED)
    assert offsets(reader.take(3), NAMED) == [5, 6, 8]
    assert consumer.fetched == 6 * 10 + 20, "and nothing was dropped"
    assert offsets(reader.take(100), NAMED)[-1] == 69


def test_what_is_paused_for_long_is_fetched_no_more_and_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka_reader, "_LEAST_KEPT", 20)
    monkeypatch.setattr(librdkafka_reader, "KEPT_RECORDS", 20)
    consumer = Consumer()
    reader = reader_of(consumer)
    for at in (NAMED, A):
        reader.read(at, 1)
    reader.pause(NAMED)
    taken: list[Record] = []
    for _ in range(20):
        reader.receive(0)
        reader.confirm(reader.doubts())
        taken += reader.take(10)
    assert consumer.assigned.keys() == {A}
    assert len(offsets(taken, A)) > 100
    reader.resume(NAMED)
    for _ in range(20):
        taken += reader.take(10)
        reader.receive(0)
        reader.confirm(reader.doubts())
    assert offsets(taken, NAMED)[:30] == [at for at, _ in zip(expected(1), range(30), strict=False)]
    assert consumer.assigned.keys() == {A, NAMED}


def test_large_values_are_kept_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(librdkafka_reader, "KEPT_BYTES", 2_500)
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer, most=1)
    reader.read(NAMED, 0)
    reader.pause(NAMED)
    for offset in range(4):
        consumer.queue.append(message(NAMED, offset, value=b"x" * 1_000))
        reader.receive(0)
    assert [flow.fetched for flow in reader._flows.values()] == [3]
    assert consumer.assigned == {}


def test_of_large_values_few_are_returned_at_a_time() -> None:
    other = Place("other", 0)
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer, at_once_bytes=2_500)
    for at in (NAMED, other):
        reader.read(at, 0)
        consumer.queue += [message(at, offset, value=b"x" * 1_000) for offset in range(4)]
    reader.receive(0)
    found = [[(record.topic, record.offset) for record in reader.take(10)] for _ in range(4)]
    assert found == [
        [("named", 0), ("named", 1), ("other", 0)],
        [("named", 2), ("named", 3), ("other", 1)],
        [("other", 2), ("other", 3)],
        [],
    ]


def test_a_gap_at_the_end_is_known_by_the_partitions_end() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    for at in (NAMED, A):
        reader.read(at, 3)
    consumer.queue = [message(at, 5, code=Told._PARTITION_EOF) for at in (NAMED, A)]
    reader.receive(0)
    assert (reader.position(NAMED), reader.position(A)) == (5, 3)
    reader.confirm(reader.doubts())
    assert reader.position(A) == 5


def test_what_is_amiss_is_told_behind_what_came_before_it() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    reader.read(NAMED, 0)
    reader.read(A, 0)
    consumer.queue = [
        message(NAMED, 0),
        message(NAMED, 1, code=Told._AUTO_OFFSET_RESET),
        message(Place("a", -1), 0, code=Told.TOPIC_AUTHORIZATION_FAILED),
    ]
    reader.receive(0)
    found = reader.failed()
    assert found is not None
    assert (found.at, found.offset, type(found.error)) == (A, 0, TopicAuthorizationFailedError)
    reader.stop(A)
    assert reader.failed() is None, "something of the other is still to be returned"
    assert len(reader.take(10)) == 1
    found = reader.failed()
    assert found is not None
    assert (found.at, found.offset, type(found.error)) == (NAMED, 1, OffsetOutOfRangeError)
    assert (found.missed, found.first, found.leader_epoch) == (1, 0, 7)
    reader.again(NAMED)
    assert reader.failed() is None
    reader.receive(0)
    consumer.queue = [message(NAMED, 1)]
    reader.receive(0)
    assert offsets(reader.take(10), NAMED) == [1]


def test_an_offset_from_which_reading_went_on_is_not_missed_once_more() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    reader.read(NAMED, 0)
    reader.receive(0)
    reader.read(NAMED, 5)
    reader.receive(0)
    consumer.queue = [message(NAMED, 0, code=Told._AUTO_OFFSET_RESET)]
    reader.receive(0)
    assert reader.failed() is None
    consumer.queue = [message(NAMED, 8, code=Told._AUTO_OFFSET_RESET)]
    reader.receive(0)
    found = reader.failed()
    assert found is not None
    assert (found.offset, found.missed, found.first, found.leader_epoch) == (5, 8, 5, None)
    consumer.queue = [message(NAMED, offset) for offset in range(5, 9)]
    reader.receive(0)
    assert offsets(reader.take(10), NAMED) == [5, 6, 7, 8]
    assert reader.failed() is None, "what was missed came"
    for amiss in (
        message(NAMED, 0, code=Told.TOPIC_AUTHORIZATION_FAILED),
        message(NAMED, 8, code=Told._LOG_TRUNCATION),
    ):
        reader.receive(0)
        consumer.queue = [amiss]
        reader.receive(0)
        assert reader.failed() is not None
        reader.again(NAMED)


def test_nothing_comes_behind_a_record_that_cannot_be_read() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    reader.read(NAMED, 1)
    consumer.queue = [message(NAMED, 1), broken(NAMED, 2), message(NAMED, 3, leader_epoch=8)]
    reader.receive(0)
    assert offsets(reader.take(10), NAMED) == [1]
    found = reader.failed()
    assert found is not None
    assert (found[0], found[1], type(found[2]), found.leader_epoch) == (NAMED, 2, CorruptRecordError, 7)
    assert reader.position(NAMED) == 2


# --- messages by columns, and one by one ------------------------------------------------------------------------------


class OneByOne:
    """The twin of what a reader takes in of a partition."""

    def __init__(self, topic_id: str) -> None:
        self.topic_id, self.records = topic_id, list[Record]()
        self.fetched, self.bytes = 3, 0
        self.leader_epoch: int | None = None
        self.failure, self.is_over = "", False

    def note(self, one: Any) -> None:
        topic, number, offset, error = one.topic(), one.partition(), one.offset(), one.error()
        if error is not None and number is None:
            self.failure = "TopicAuthorizationFailedError"
        elif self.is_over:
            return
        elif error is not None:
            if error.code() == Told._PARTITION_EOF:
                self.fetched = max(self.fetched, offset)
            else:
                self.failure = "TopicAuthorizationFailedError"
        elif offset >= self.fetched:
            try:
                headers = tuple(one.headers() or ())
            except SystemError:
                self.failure, self.is_over = "CorruptRecordError", True
                return
            key, value = one.key(), one.value()
            time_ms = one.timestamp()[1]
            self.records.append(Record(topic, number, offset, key, value, headers, time_ms, self.topic_id))
            self.fetched, self.leader_epoch = offset + 1, one.leader_epoch()
            self.bytes += len(key or b"") + len(value or b"")


PAYLOADS = st.none() | st.binary(max_size=3)
HEADERS = st.none() | st.lists(st.tuples(st.sampled_from(["", "a", "b"]), PAYLOADS), max_size=2)
SOUND = st.builds(
    lambda at, offset, key, value, headers, epoch, time: MAKE(
        *at, offset, key, value, headers, timestamp=time, leader_epoch=epoch
    ),
    *(st.sampled_from([A, B, NAMED, Place("unread", 0)]), st.integers(0, 12), PAYLOADS, PAYLOADS, HEADERS),
    *(st.sampled_from([-1, 0, 7]), st.tuples(st.sampled_from([0, 1, 2]), st.integers(-1, 9))),
)
RISING = st.builds(
    lambda at, begin, count: [message(at, offset) for offset in range(begin, begin + count)],
    *(st.sampled_from([A, NAMED]), st.integers(0, 9), st.integers(1, 9)),
)
AMISS = st.builds(
    lambda at, offset, code: message(at, offset, code=code),
    *(st.sampled_from([A, B, NAMED, Place("unread", 0)]), st.integers(0, 12)),
    st.sampled_from([Told._PARTITION_EOF, Told.TOPIC_AUTHORIZATION_FAILED]),
) | st.just(message(Place("b", -1), 0, code=Told.TOPIC_AUTHORIZATION_FAILED))
UNREADABLE = st.builds(lambda at, offset: broken(at, offset), st.sampled_from([A, NAMED]), st.integers(4, 12))
CAME = st.lists(RISING | st.lists(SOUND | SOUND | AMISS | UNREADABLE, max_size=5), max_size=6)


@settings(max_examples=300)
@example([[[message(NAMED, 5, code=Told._PARTITION_EOF), message(NAMED, 9, code=Told._PARTITION_EOF)]]])
@given(st.lists(CAME, max_size=3))
def test_columns_have_what_the_messages_have_one_by_one(calls: list[list[list[Message]]]) -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer, most=1_000)
    twins = {at: OneByOne(BY_ID.get(at.topic, "")) for at in (A, B, NAMED)}
    for at in twins:
        reader.read(at, 3)
    for call in calls:
        reader._tell()
        consumer.queue = [one for part in call for one in part]
        for one in consumer.queue:
            for at, twin in twins.items():
                if (one.topic(), one.partition() if one.partition() is not None else at.partition) == at:
                    twin.note(one)
        assert reader.receive(0) == sum(map(len, call))
        for at, twin in twins.items():
            flow = reader._flows[at]
            assert flow.kept == twin.records
            assert (flow.fetched, flow.kept_bytes, flow.leader_epoch) == (twin.fetched, twin.bytes, twin.leader_epoch)
            assert type(flow.failure).__name__ == (twin.failure or "NoneType")
            assert flow.is_asked != twin.is_over
