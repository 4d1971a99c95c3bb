"""What a log may hold besides plain records, and what may happen to it while it is read; each read both ways."""

import random
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from cut_world import CODECS, World, chunks, plan_of, rows_of, whole
from frozen import frozen
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from odd_headers import NotUtf8
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, SettingsError, StateError
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES, MAX_TOPIC_CHARS
from totalorder.streaming.cut import consumers, fast, reading
from totalorder.streaming.cut.chunk import MAX_EVENTS, Chunk
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.plain import PlainReader
from totalorder.streaming.cut.ranges import Range, SliceEnd
from totalorder.streaming.cut.records import Reader

pytestmark = pytest.mark.broker
Kind = Callable[[dict[str, str]], Reader]
KINDS: list[Kind] = [PlainReader, FastReader]
NewTopic = Callable[..., str]
NOW_MS = int(time.time() * 1000) - 10_000_000
"""Not so long ago that the broker would remove such records: retention goes by their times."""
LONG_S = 1_000.0
"""Longer than a test may take: what ends, ended for another reason."""


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def reader(kind: Kind, broker: LocalBroker) -> Iterator[Reader]:
    made = kind(consumers.client_settings(broker.bootstrap_servers, {}))
    yield made
    made.close()


@pytest.fixture
def world(broker: LocalBroker) -> World:
    return World(broker.bootstrap_servers)


def rows(topic: str, count: int, *, partition: int = 0, size: int = 20) -> list[tuple[tuple[str, int], bytes, int]]:
    return [((topic, partition), b"%d" % at + b"x" * size, NOW_MS + at) for at in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec(world: World, reader: Reader, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic("codec")
    world.write(codec, rows(topic, 200))
    plan = plan_of(world.servers, [whole(topic, 0, 13, 187)])
    assert rows_of(chunks(plan, reader)) == world.expected(plan)


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_a_range_of_markers_ends_at_once(world: World, reader: Reader, new_topic: NewTopic, outcome: str) -> None:
    topic = new_topic("markers")
    world.write("none", rows(topic, 2), outcome=outcome)
    world.write("none", rows(topic, 3), outcome=outcome)
    for begin, end in ((2, 3), (0, 7), (5, 7), (6, 7), (0, 1), (1, 6)):
        plan = plan_of(world.servers, [whole(topic, 0, begin, end)], silence_s=LONG_S)
        assert rows_of(chunks(plan, reader)) == world.expected(plan)


def test_an_open_transaction_behind_the_range(world: World, reader: Reader, new_topic: NewTopic) -> None:
    topic = new_topic("open")
    world.write("none", rows(topic, 4), outcome="commit")
    settings = {"bootstrap.servers": world.servers, "transactional.id": f"open-{topic}"}
    producer: Any = Producer(settings)
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"open", partition=0)
    assert producer.flush(60) == 0
    try:
        plan = plan_of(world.servers, [whole(topic, 0, 1, 5)], silence_s=LONG_S)
        assert rows_of(chunks(plan, reader)) == world.expected(plan)
    finally:
        producer.abort_transaction(60)


def test_values_of_every_kind(world: World, reader: Reader, new_topic: NewTopic) -> None:
    topic = new_topic("values", max_message_bytes="9000000")
    values = [b"", None, b"x", bytes(range(256)), random.Random(3).randbytes(8_000_000), b"z" * 8_000_000, b"end"]
    world.write("none", [((topic, 0), value, NOW_MS) for value in values])
    plan = plan_of(world.servers, [whole(topic, 0, 0, len(values))])
    found = rows_of(chunks(plan, reader))
    assert found == world.expected(plan)
    assert [row.crc for row in found] == [zlib.crc32(value or b"") for value in values]


@pytest.mark.parametrize("kind_of_time", ["CreateTime", "LogAppendTime"])
def test_times_as_they_are(
    world: World, reader: Reader, new_topic: NewTopic, kind_of_time: str, broker: LocalBroker
) -> None:
    topic = new_topic("times", message_timestamp_type=kind_of_time)
    times_ms = [0, 1, 999, NOW_MS, 5, 0]
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        sending = [producer.send(topic, b"v", partition=0, timestamp_ms=time_ms) for time_ms in times_ms]
        sent = [each.get(30).timestamp for each in sending]
    found = rows_of(chunks(plan_of(world.servers, [whole(topic, 0, 0, len(times_ms))]), reader))
    assert [row.timestamp_ms for row in found] == sent
    if kind_of_time == "CreateTime":
        assert sent == times_ms


KEYS = [
    b"orders",
    None,
    b"",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    "größe ☃".encode(),
    ("x" * MAX_TOPIC_CHARS).encode(),
    ("ä" * MAX_TOPIC_CHARS).encode(),
    ("x" * (MAX_TOPIC_CHARS + 1)).encode(),
    b"\x00",
    b"nan",
    b" a ",
    b"orders",
    b"orders\x00",
    b"\xf4\x90\x80\x80",
]
LONGEST = ["x" * MAX_TOPIC_CHARS, "ä" * MAX_TOPIC_CHARS]
NAMED = ["orders", "", "", "", "", "größe ☃", *LONGEST, "", "\x00", "nan", " a ", "orders", "orders\x00", ""]
HEADERS: list[list[tuple[str, bytes | None]]] = [
    [("kind", b"orders")],
    [("kind", b"first"), ("other", b"x"), ("kind", b"last")],
    [("kind", b"first"), ("kind", None)],
    [("Kind", b"orders")],
    [],
    [("kind", b"\xff")],
    [("kind", b"")],
    [("kin", b"a"), ("kinds", b"b")],
]


def produce(servers: str, topic: str, records: list[dict[str, Any]]) -> None:
    producer: Any = Producer({"bootstrap.servers": servers, "message.max.bytes": 2_000_000})
    for record in records:
        producer.produce(topic, record.pop("value", b"v"), partition=0, **record)
    assert producer.flush(60) == 0


def test_topic_by_key(reader: Reader, broker: LocalBroker, new_topic: NewTopic) -> None:
    topic = new_topic("keys")
    produce(broker.bootstrap_servers, topic, [{"key": key} for key in KEYS])
    plan = plan_of(broker.bootstrap_servers, [whole(topic, 0, 0, len(KEYS))], topic_by="key")
    (found,) = chunks(plan, reader)
    assert [row.name for row in rows_of([found])] == NAMED
    assert len(set(found.names)) == len(found.names) == len(set(NAMED) - {""})


def test_topic_by_header(reader: Reader, broker: LocalBroker, new_topic: NewTopic) -> None:
    topic = new_topic("headers")
    produce(broker.bootstrap_servers, topic, [{"headers": headers} for headers in HEADERS])
    plan = plan_of(broker.bootstrap_servers, [whole(topic, 0, 0, len(HEADERS))], topic_by="header:kind")
    assert [row.name for row in rows_of(chunks(plan, reader))] == ["orders", "last", "", "", "", "", "", ""]


def test_a_header_whose_name_is_not_utf8_is_read_or_named(
    reader: Reader, broker: LocalBroker, new_topic: NewTopic
) -> None:
    """Behind so many that Python has compiled the way there: it then looks less closely at what C returns."""
    topic, count = new_topic("headers"), 100
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        for odd in (*[()] * count, ((NotUtf8("name"), b""),)):
            producer.send(topic, value=b"v", headers=[*odd, ("kind", b"orders")])
        producer.flush(60)
    plan = plan_of(broker.bootstrap_servers, [whole(topic, 0, 0, count + 1)], topic_by="header:kind")
    if isinstance(reader, PlainReader):
        with pytest.raises(StateError, match=rf"{topic}\[0\]@{count} has a header whose name is not UTF-8"):
            chunks(plan, reader)
    else:
        assert [row.name for row in rows_of(chunks(plan, reader))] == ["orders"] * (count + 1)


@pytest.mark.parametrize("topic_by", ["topic", "key"])
def test_control_records_bring_their_values(
    reader: Reader, broker: LocalBroker, new_topic: NewTopic, topic_by: str
) -> None:
    control, events = new_topic("control", max_message_bytes="2000000"), new_topic("beside")
    values = [b"one", None, b"", b"y" * (MAX_CONTROL_BYTES + 1), b"z" * (MAX_CONTROL_BYTES + 9), b"last"]
    produce(broker.bootstrap_servers, control, [{"value": value, "key": b"me"} for value in values])
    produce(broker.bootstrap_servers, events, [{"value": b"event", "key": b"me"}])
    ranges = [whole(events, 0, 0, 1), whole(control, 0, 0, len(values))]
    found = rows_of(chunks(plan_of(broker.bootstrap_servers, ranges, control=control, topic_by=topic_by), reader))
    of_control = [row for row in found if row.topic == control]
    assert [row.control for row in of_control] == [(value or b"")[: MAX_CONTROL_BYTES + 1] for value in values]
    assert [row.crc for row in of_control] == [zlib.crc32(value or b"") for value in values]
    assert {row.name for row in of_control} == {""}
    (event,) = (row for row in found if row.topic == events)
    assert (event.control, event.name) == (None, "me" if topic_by == "key" else "")


def test_what_was_removed_is_told(
    world: World, reader: Reader, new_topic: NewTopic, kafka_admin: KafkaAdminClient
) -> None:
    topic = new_topic("short", partitions=2)
    world.write("none", rows(topic, 20) + rows(topic, 20, partition=1))
    kafka_admin.delete_records({TopicPartition(topic, 1): 10})
    plan = plan_of(world.servers, [whole(topic, 0, 0, 20), whole(topic, 1, 5, 15)], silence_s=LONG_S)
    with pytest.raises(StateError, match=rf"{topic}\[1\]: offsets 5 to 15 were removed from Kafka before they were"):
        chunks(plan, reader)
    plan = plan_of(world.servers, [whole(topic, 0, 0, 20), whole(topic, 1, 10, 20)])
    assert rows_of(chunks(plan, reader)) == world.expected(plan)


def test_many_partitions_and_many_slices(world: World, reader: Reader, new_topic: NewTopic) -> None:
    chance, topic = random.Random(5), new_topic("wide", partitions=256)
    for _ in range(3):
        places = [(topic, chance.randrange(256)) for _ in range(1_500)]
        world.write("lz4", [(place, chance.randbytes(10), NOW_MS) for place in places])
    ranges = []
    for (name, partition), end in sorted(world.ends.items()):
        slices = tuple(SliceEnd(3 * at + chance.randint(0, 2), at + 1) for at in range(end))
        ranges.append(Range(topic=name, topic_id="id", partition=partition, begin=0, end=end, slices=slices))
    plan = plan_of(world.servers, ranges)
    found = rows_of(chunks(plan, reader))
    assert found == world.expected(plan)
    assert len(found) == 4_500


def test_a_large_range_comes_in_several_chunks(world: World, reader: Reader, new_topic: NewTopic) -> None:
    topic, count = new_topic("large", partitions=2), 40_000
    world.write("zstd", rows(topic, count, size=5) + rows(topic, count, partition=1, size=5))
    plan = plan_of(world.servers, [whole(topic, part, 100, count - 100) for part in range(2)])
    found = chunks(plan, reader)
    assert len(found) > 1
    assert max(len(chunk) for chunk in found) <= MAX_EVENTS
    assert rows_of(found) == world.expected(plan)


def test_a_backlog_is_read_ahead_and_what_is_not_asked_for_is_let_go(
    world: World, broker: LocalBroker, new_topic: NewTopic
) -> None:
    topic, other, step = new_topic("backlog", partitions=2), new_topic("other"), 2_000
    world.write("none", [row for part in range(2) for row in rows(topic, 10 * step, partition=part)])
    world.write("none", rows(other, 5))
    reader = FastReader(consumers.client_settings(broker.bootstrap_servers, {}))
    held = reader._held

    def is_ahead(partition: int, end: int) -> bool:
        return held[topic, partition].is_fetched or held[topic, partition].end > end

    def go_on() -> None:
        if not held[topic, 0].is_fetched:
            reader._fetch([(topic, 0)])

    for begin in range(0, 4 * step, step):
        plan = plan_of(world.servers, [whole(topic, part, begin, begin + step) for part in range(2)])
        assert rows_of(chunks(plan, reader)) == world.expected(plan)
        assert is_ahead(0, begin + step), "a backlog is fetched further"
        assert is_ahead(1, begin + step), "a backlog is fetched further"
    go_on()
    plan = plan_of(world.servers, [whole(topic, 0, 0, step), whole(other, 0, 0, 5)])
    assert rows_of(chunks(plan, reader)) == world.expected(plan)
    assert (topic, 1) not in held
    assert not any(each.is_fetched for each in held.values()), "what came to nothing is spared"
    reader._spared = 0
    go_on()
    reader.release()
    assert not held
    reader.close()


def test_what_is_kept_is_bounded(
    world: World, broker: LocalBroker, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition has a backlog, of the other one record is wanted, which comes late."""
    monkeypatch.setattr(fast, "MAX_KEPT", 3_000)
    topic = new_topic("kept", partitions=2)
    world.write("none", rows(topic, 60_000))
    world.write("none", rows(topic, 1, partition=1))
    reader = FastReader(consumers.client_settings(broker.bootstrap_servers, {}))
    for begin in range(0, 60_000, 6_000):
        plan = plan_of(world.servers, [whole(topic, 0, begin, begin + 6_000), whole(topic, 1, 0, 1)])
        assert rows_of(chunks(plan, reader)) == world.expected(plan)
        assert reader._kept() <= 3_000 + fast.MOST
    reader.close()


def test_a_topic_that_was_created_again(
    world: World, reader: Reader, new_topic: NewTopic, kafka_admin: KafkaAdminClient
) -> None:
    """What was read ahead under the old id is not taken for the new one's, though the offsets are the same."""
    topic = new_topic("again")
    world.write("none", rows(topic, 4_000))
    plan = plan_of(world.servers, [whole(topic, 0, 0, 10, topic_id="old")])
    assert rows_of(chunks(plan, reader, lambda _: {topic: "old"})) == world.expected(plan)
    kafka_admin.delete_topics([topic])
    wait_until(lambda: topic not in kafka_admin.list_topics(), "the topic is gone")
    kafka_admin.create_topics({topic: {"num_partitions": 1}})
    kafka_admin.wait_for_topics([topic])
    world.records.clear()
    world.write("none", rows(topic, 4_000, size=7))
    plan = plan_of(world.servers, [whole(topic, 0, 10, 20, topic_id="new")])
    assert rows_of(chunks(plan, reader, lambda _: {topic: "new"})) == world.expected(plan)
    stale = plan_of(world.servers, [whole(topic, 0, 10, 20, topic_id="old")])
    with pytest.raises(StateError, match=rf"{topic} was deleted and created again .*id old, now it is new"):
        chunks(stale, reader, lambda _: {topic: "new"})
    with pytest.raises(StateError, match=rf"{topic} was deleted before"):
        chunks(stale, reader, lambda _: {topic: None})


def test_topics_and_partitions_that_come_later(
    world: World, reader: Reader, new_topic: NewTopic, kafka_admin: KafkaAdminClient
) -> None:
    first = new_topic("grows")
    world.write("none", rows(first, 5))
    plan = plan_of(world.servers, [whole(first, 0, 0, 5)])
    assert rows_of(chunks(plan, reader)) == world.expected(plan)
    kafka_admin.create_partitions({first: 3})
    second = new_topic("later")
    wait_until(lambda: len(kafka_admin.describe_topics([first])[0]["partitions"]) == 3, "three partitions")
    later = World(world.servers)
    later.write("none", rows(first, 5, partition=2) + rows(second, 5))
    plan = plan_of(world.servers, [whole(first, 2, 0, 5), whole(second, 0, 0, 5)])
    assert rows_of(chunks(plan, reader)) == later.expected(plan)


def test_settings_that_cannot_be(kind: Kind, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "is_fast", lambda: kind is FastReader)
    plan = plan_of(broker.bootstrap_servers, [], kafka={"fetch.min.bytes": "many"})
    with pytest.raises(SettingsError, match=r"librdkafka refuses its settings: .*fetch\.min\.bytes"):
        consumers.of(plan)


def test_one_reader_for_the_same_settings(broker: LocalBroker) -> None:
    plans = [plan_of(broker.bootstrap_servers, [], kafka={"client.id": str(at)}) for at in range(6)]
    try:
        made = [consumers.of(plan) for plan in plans]
        assert consumers.of(plans[-1]) is made[-1]
        assert consumers.of(plans[0]) is not made[0], "no more than a few live"
        assert len(consumers._readers) == consumers.MAX_READERS
        assert isinstance(made[0], FastReader)
    finally:
        consumers.close()


# --- with a broker of its own -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_broker() -> Iterator[LocalBroker]:
    with LocalBroker(settings={"log.cleaner.backoff.ms": "100", "log.retention.check.interval.ms": "1000"}) as running:
        yield running


def create(broker: LocalBroker, topic: str, partitions: int = 1, **configs: str) -> None:
    with kafka_clients.admin(broker.bootstrap_servers) as admin:
        admin.create_topics({topic: {"num_partitions": partitions, "configs": configs}})
        admin.wait_for_topics([topic])


def test_a_broker_that_restarts_amid_a_read(kind: Kind, own_broker: LocalBroker, unique_name: Any) -> None:
    topic, count = unique_name("restart"), 150_000
    create(own_broker, topic)
    world = World(own_broker.bootstrap_servers)
    world.write("none", rows(topic, count, size=100))
    reader = kind(consumers.client_settings(own_broker.bootstrap_servers, {}))
    plan = plan_of(own_broker.bootstrap_servers, [whole(topic, 0, 0, count)])
    found: list[Chunk] = []
    for chunk in reading.read(plan, reader=reader):
        if not found:
            own_broker.kill()
            own_broker.start()
        found.append(chunk)
    assert rows_of(found) == world.expected(plan)
    reader.close()


def test_a_silent_broker_is_told_of_and_forgiven(kind: Kind, own_broker: LocalBroker, unique_name: Any) -> None:
    topic = unique_name("silent")
    create(own_broker, topic)
    world = World(own_broker.bootstrap_servers)
    world.write("none", rows(topic, 20))
    reader = kind(consumers.client_settings(own_broker.bootstrap_servers, {}))
    first = plan_of(own_broker.bootstrap_servers, [whole(topic, 0, 0, 3)])
    assert rows_of(chunks(first, reader)) == world.expected(first)
    plan = plan_of(own_broker.bootstrap_servers, [whole(topic, 0, 3, 9)], silence_s=0.5)
    said = rf"sent nothing for 0\.5 s of what is missing: {topic}\[0\] 3 to 9"
    with frozen(own_broker), pytest.raises(BrokerUnavailable, match=said):
        chunks(plan, reader)
    own_broker.kill()
    with pytest.raises(BrokerUnavailable, match=said):
        chunks(plan, reader)
    own_broker.start()
    plan = plan_of(own_broker.bootstrap_servers, [whole(topic, 0, 3, 9)])
    assert rows_of(chunks(plan, reader)) == world.expected(plan)
    reader.close()


def test_gaps_of_compaction(kind: Kind, own_broker: LocalBroker, unique_name: Any) -> None:
    topic = unique_name("compacted")
    configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.0"}
    create(own_broker, topic, 1, **configs, **{"min.compaction.lag.ms": "0"})
    size, count = 4_000, 1_000
    producer: Any = Producer({"bootstrap.servers": own_broker.bootstrap_servers})
    for at in range(count):
        producer.produce(topic, b"x" * size, key=b"%d" % (at % 7), partition=0, timestamp=NOW_MS + at)
        if at % 10 == 9:
            assert producer.flush(60) == 0
    reader = kind(consumers.client_settings(own_broker.bootstrap_servers, {}))
    plan = plan_of(own_broker.bootstrap_servers, [whole(topic, 0, 0, count)], silence_s=LONG_S)

    def offsets() -> list[int]:
        return [row.offset for row in rows_of(chunks(plan, reader))]

    # All but the last segment, of 230 records: as long as another one is left, the log may change while it is read.
    wait_until(lambda: len(offsets()) < 300, "the log is compacted", bound_s=60)
    kept = offsets()
    assert kept[-1] == count - 1
    gap = next(at for at in range(count) if at not in kept)
    for begin, end in ((0, gap + 1), (gap, gap + 1), (gap, count)):
        part = plan_of(own_broker.bootstrap_servers, [whole(topic, 0, begin, end)], silence_s=LONG_S)
        assert [row.offset for row in rows_of(chunks(part, reader))] == [at for at in kept if begin <= at < end]
    reader.close()
