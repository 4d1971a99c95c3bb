"""What is kept of what kafka-python fetched: nothing is lost, doubled or returned while it is paused."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings, strategies as st
from kafka import TopicPartition
from kafka.consumer.fetcher import ConsumerRecord

from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.kafka_reader import Reader

A, B, C = Place("a", 0), Place("a", 1), Place("b", 0)
MOST, KEPT = 4, 10


class Consumer:
    """Logs that never end, with nothing at offsets that are multiples of 7, and values of so many bytes."""

    def __init__(self, value_bytes: int = 1) -> None:
        self.positions: dict[TopicPartition, int] = {}
        self.value_bytes = value_bytes
        self._cluster = SimpleNamespace(topic_id=lambda _: None)
        self._fetcher = SimpleNamespace(_completed_fetches=[], _nodes_with_pending_fetch_requests={1})

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.positions = {at: self.positions.get(at, -1) for at in partitions}

    def seek(self, at: TopicPartition, offset: int) -> None:
        self.positions[at] = offset

    def position(self, at: TopicPartition, timeout_ms: int) -> int:
        return self.positions[at]

    def poll(self, timeout_ms: int, max_records: int) -> dict[TopicPartition, list[Any]]:
        found: dict[TopicPartition, list[Any]] = {}
        for at, position in self.positions.items():
            assert position >= 0, "it was told where to begin"
            logged = expected(position)
            offsets = [next(logged) for _ in range(min(6, max_records))]
            max_records -= len(offsets)
            if offsets:
                found[at] = [record(at, offset, self.value_bytes) for offset in offsets]
                self.positions[at] = offsets[-1] + 1
        return found

    def close(self, **_: object) -> None:
        """See KafkaConsumer."""


def record(at: TopicPartition, offset: int, value_bytes: int) -> Any:
    return ConsumerRecord(*at, -1, offset, 5, 0, None, b"v" * value_bytes, [], None, -1, value_bytes, -1)


def expected(begin: int) -> Iterator[int]:
    offset = begin
    while True:
        offset += offset % 7 == 0
        yield offset
        offset += 1


def reader_of(consumer: Consumer, **more: int) -> Reader:
    given: dict[str, Any] = {"most": MOST, "most_kept": KEPT, "most_bytes": 1_000} | more
    return Reader(consumer, lambda: Consumer(consumer.value_bytes), **given)


def taken(reader: Reader) -> list[Any]:
    """As the transport does it."""
    found = reader.take()
    if not found:
        for at, records in reader.poll(0).items():
            reader.keep(at, records)
        found = reader.take()
    return [one for records in found for one in records]


PLACES = st.sampled_from([A, B, C])
STEPS = st.lists(
    st.one_of(
        *[st.just(("take",))] * 3,
        st.tuples(st.sampled_from(["pause", "resume", "stop"]), PLACES),
        st.tuples(st.just("read"), PLACES, st.integers(0, 50)),
        st.just(("renew",)),
    ),
    min_size=20,
)


@settings(max_examples=300)
@given(STEPS)
def test_what_is_returned_is_what_a_plain_list_would_hold(steps: list[Any]) -> None:
    reader = reader_of(Consumer())
    twins: dict[Place, int] = {}
    """Of each partition that is read, the offset that is due next."""
    paused: set[Place] = set()
    for step in [
        *[("read", at, 1) for at in (A, B, C)],
        *steps,
        *[("resume", at) for at in (A, B, C)],
        *[("take",)] * 9,
    ]:
        match step:
            case ("read", at, offset):
                reader.read(at, offset)
                twins[at] = offset
                paused.discard(at)
            case ("stop", at):
                reader.stop(at)
                twins.pop(at, None)
                paused.discard(at)
            case ("pause", at) if at in twins:
                reader.pause(at)
                paused.add(at)
            case ("resume", at):
                reader.resume(at)
                paused.discard(at)
            case ("renew",):
                reader.renew()
            case ("take",):
                found = taken(reader)
                assert len(found) <= MOST
                assert bool(found) == bool(twins.keys() - paused)
                for one in found:
                    at = Place(one.topic, one.partition)
                    assert at not in paused
                    assert one.offset == next(expected(twins[at]))
                    twins[at] = one.offset + 1
        assert reader.next.keys() == twins.keys()
        assert sum(map(len, reader._kept.values())) <= KEPT + MOST
        for at, due in twins.items():
            assert due <= reader.next[at] <= reader.position(at) <= next(expected(due))


def test_what_is_paused_is_not_fetched_twice() -> None:
    consumer = Consumer()
    reader = reader_of(consumer)
    reader.read(A, 1)
    taken(reader)
    first = taken(reader)
    assert [one.offset for one in first] == [2, 3, 4, 5], "at first one alone, as it may have been large"
    reader.pause(A)
    assert taken(reader) == []
    reader.resume(A)
    assert [one.offset for one in taken(reader)] == [6, 8]
    assert consumer.positions == {}, "and the consumer has not been asked since"
    assert [one.offset for one in taken(reader)] == [9, 10, 11, 12]


def test_of_large_values_few_come_at_a_time() -> None:
    consumer = Consumer(value_bytes=400)
    reader = reader_of(consumer)
    reader.read(A, 1)
    assert [len(taken(reader)) for _ in range(3)] == [1, 2, 2]
    consumer.value_bytes = 5_000
    assert [len(taken(reader)) for _ in range(3)] == [2, 1, 1]
    consumer.value_bytes = 0
    assert [len(taken(reader)) for _ in range(3)] == [1, 4, 2]


def test_what_is_kept_of_paused_partitions_is_bounded() -> None:
    reader = reader_of(Consumer(), most=1)
    for number in range(8):
        reader.read(Place("a", number), 1)
    while found := taken(reader):
        reader.pause(Place(found[0].topic, found[0].partition))
        assert sum(map(len, reader._kept.values())) <= KEPT
