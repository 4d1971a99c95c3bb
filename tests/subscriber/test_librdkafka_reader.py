"""What is kept of what librdkafka fetched: nothing is lost, doubled or returned too early, and there is a bound."""

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError as Told
from hypothesis import given, settings, strategies as st
from kafka.errors import CorruptRecordError, OffsetOutOfRangeError, TopicAuthorizationFailedError

from totalorder.subscriber import librdkafka_reader
from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.librdkafka_reader import LibrdkafkaReader
from totalorder.subscriber.transport import Record

A, B, NAMED = Place("a", 0), Place("b", 1), Place("named", 0)
BY_ID = {"a": "id-a", "b": "id-b"}


class Error:
    """confluent-kafka's."""

    def __init__(self, code: int) -> None:
        self._code = code

    def code(self) -> int:
        return self._code

    def str(self) -> str:
        return f"error {self._code}"


class Message:
    """confluent-kafka's."""

    def __init__(self, at: Place, offset: int, *, code: int = 0, value: bytes = b"v") -> None:
        self._at, self._offset, self._code, self._value = at, offset, code, value

    def topic(self) -> str:
        return self._at.topic

    def partition(self) -> int:
        return self._at.partition

    def offset(self) -> int:
        return self._offset

    def error(self) -> Error | None:
        return Error(self._code) if self._code else None

    def key(self) -> None:
        return None

    def value(self) -> bytes:
        return self._value

    def headers(self) -> None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return 1, 5

    def leader_epoch(self) -> int:
        return 7


class Consumer:
    """Logs that never end, with nothing at offsets that are multiples of 7. A fetch begins one offset too early;
    what was fetched of a partition is dropped when that is stopped. `ahead` messages are fetched ahead.
    """

    def __init__(self, ahead: int = 30) -> None:
        self.assigned: dict[Place, int] = {}
        self.queue: list[Message] = []
        self._ahead = ahead
        self.fetched = 0

    def incremental_assign(self, partitions: list[Any]) -> None:
        for at in partitions:
            place = Place(at.topic, at.partition)
            assert place not in self.assigned, "it is stopped before"
            self.assigned[place] = max(0, at.offset - 1)

    def incremental_unassign(self, partitions: list[Any]) -> None:
        for at in partitions:
            place = Place(at.topic, at.partition)
            del self.assigned[place]
            self.queue = [message for message in self.queue if (message.topic(), message.partition()) != place]

    def fetch(self) -> None:
        while self.assigned and len(self.queue) < self._ahead:
            for at, offset in self.assigned.items():
                offset += offset % 7 == 0
                self.queue.append(Message(at, offset))
                self.assigned[at] = offset + 1
                self.fetched += 1

    def poll(self, _: float) -> Message | None:
        self.fetch()
        return self.queue.pop(0) if self.queue else None

    def consume(self, most: int, _: float) -> list[Message]:
        found, self.queue = self.queue[:most], self.queue[most:]
        return found


def reader_of(consumer: Consumer, most: int = 10) -> LibrdkafkaReader:
    return LibrdkafkaReader(consumer, most, lambda topic: BY_ID.get(topic, ""))


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
        consumer.queue.append(Message(NAMED, offset, value=b"x" * 1_000))
        reader.receive(0)
    assert [flow.fetched for flow in reader._flows.values()] == [3]
    assert consumer.assigned == {}


def test_a_gap_at_the_end_is_known_by_the_partitions_end() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    for at in (NAMED, A):
        reader.read(at, 3)
    consumer.queue = [Message(at, 5, code=Told._PARTITION_EOF) for at in (NAMED, A)]
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
        Message(NAMED, 0),
        Message(NAMED, 1, code=Told._AUTO_OFFSET_RESET),
        Message(Place("a", -1), 0, code=Told.TOPIC_AUTHORIZATION_FAILED),
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
    consumer.queue = [Message(NAMED, 1)]
    reader.receive(0)
    assert offsets(reader.take(10), NAMED) == [1]


def test_an_offset_from_which_reading_went_on_is_not_missed_once_more() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    reader.read(NAMED, 0)
    reader.receive(0)
    reader.read(NAMED, 5)
    reader.receive(0)
    consumer.queue = [Message(NAMED, 0, code=Told._AUTO_OFFSET_RESET)]
    reader.receive(0)
    assert reader.failed() is None
    consumer.queue = [Message(NAMED, 8, code=Told._AUTO_OFFSET_RESET)]
    reader.receive(0)
    found = reader.failed()
    assert found is not None
    assert (found.offset, found.missed, found.first, found.leader_epoch) == (5, 8, 5, None)
    consumer.queue = [Message(NAMED, offset) for offset in range(5, 9)]
    reader.receive(0)
    assert offsets(reader.take(10), NAMED) == [5, 6, 7, 8]
    assert reader.failed() is None, "what was missed came"
    for amiss in (
        Message(NAMED, 0, code=Told.TOPIC_AUTHORIZATION_FAILED),
        Message(NAMED, 8, code=Told._LOG_TRUNCATION),
    ):
        reader.receive(0)
        consumer.queue = [amiss]
        reader.receive(0)
        assert reader.failed() is not None
        reader.again(NAMED)


class Broken(Message):
    """Its header has a name that is not UTF-8."""

    def headers(self) -> None:
        raise SystemError("returned a result with an exception set") from UnicodeDecodeError("utf-8", b"x", 0, 1, "why")


def test_nothing_comes_behind_a_record_that_cannot_be_read() -> None:
    consumer = Consumer(ahead=0)
    reader = reader_of(consumer)
    reader.read(NAMED, 1)
    consumer.queue = [Message(NAMED, 1), Broken(NAMED, 2), Message(NAMED, 3)]
    reader.receive(0)
    assert offsets(reader.take(10), NAMED) == [1]
    found = reader.failed()
    assert found is not None
    assert (found[0], found[1], type(found[2])) == (NAMED, 2, CorruptRecordError)
    assert reader.position(NAMED) == 2
