"""Constant questions and the reading of answers, beside kafka-python's own classes; and answers that are broken."""

import random
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, strategies as st
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import MetadataRequest, MetadataResponse

from totalorder.streaming.cut.requests import (
    EARLIEST,
    LATEST,
    LIST_OFFSETS,
    METADATA,
    AnswerError,
    OffsetsQuestion,
    Topic,
    metadata_request,
    read_metadata,
)

NAMES = st.text(min_size=1, max_size=200)
ASKED = st.lists(st.tuples(NAMES, st.integers(0, 1 << 20)), unique=True, min_size=1, max_size=30)
INT64, INT32 = st.integers(-1, (1 << 63) - 1), st.integers(-1, (1 << 31) - 1)
SEEDS = st.integers(0, 1 << 32)


def encoded(message: Any, version: int, number: int, client_id: str | None = None) -> bytes:
    """With its header, without its length in front, by kafka-python."""
    message.API_VERSION = version
    message.with_header(correlation_id=number, **({"client_id": client_id} if client_id else {}))
    return bytes(message.encode(header=True))


def unframed(request: bytes) -> bytes:
    assert int.from_bytes(request[:4], "big") == len(request) - 4
    return request[4:]


# --- offsets ----------------------------------------------------------------------------------------------------------


def offsets_answer(told: list[tuple[str, int, int, int, int]], throttle_ms: int = 0) -> bytes:
    """`told`: topic, partition, error, offset, epoch; topics in the order in which they come first."""
    topics: dict[str, list[Any]] = {}
    for topic, partition, error, offset, epoch in told:
        entry = ListOffsetsResponse.ListOffsetsTopicResponse.ListOffsetsPartitionResponse(
            partition_index=partition, error_code=error, timestamp=-1, offset=offset, leader_epoch=epoch
        )
        topics.setdefault(topic, []).append(entry)
    listed = [
        ListOffsetsResponse.ListOffsetsTopicResponse(name=name, partitions=parts) for name, parts in topics.items()
    ]
    return encoded(ListOffsetsResponse(throttle_time_ms=throttle_ms, topics=listed), 6, LIST_OFFSETS)


@given(ASKED, st.one_of(st.just(LATEST), st.just(EARLIEST), INT64))
def test_the_question_for_offsets_has_kafka_pythons_bytes(asked: list[tuple[str, int]], time_ms: int) -> None:
    topics: dict[str, list[Any]] = {}
    for topic, partition in asked:
        entry = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=partition, current_leader_epoch=-1, timestamp=time_ms
        )
        topics.setdefault(topic, []).append(entry)
    listed = [ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=parts) for name, parts in topics.items()]
    twin = ListOffsetsRequest(replica_id=-1, isolation_level=1, topics=listed)
    assert unframed(OffsetsQuestion(asked, time_ms).request) == encoded(twin, 6, LIST_OFFSETS, "totalorder-look")


@given(ASKED, SEEDS)
def test_offsets_come_in_the_order_of_the_question(asked: list[tuple[str, int]], seed: int) -> None:
    """Whatever the order of the answer, and also when the next one comes in another."""
    chance = random.Random(seed)
    question = OffsetsQuestion(asked)
    for _ in range(3):
        numbers = [
            (chance.choice([0, 0, 6]), chance.randrange(-1, 1 << 63), chance.randrange(-1, 1 << 31)) for _ in asked
        ]
        told = [(*source, *found) for source, found in zip(asked, numbers, strict=True)]
        if chance.random() < 0.5:
            chance.shuffle(told)
        read = question.read(offsets_answer(told, throttle_ms=7))
        assert read.throttle_ms == 7
        columns = zip(read.error.tolist(), read.offset.tolist(), read.epoch.tolist(), strict=True)
        assert list(columns) == numbers


def test_an_equal_answer_is_the_same_object() -> None:
    question = OffsetsQuestion([("orders", 0), ("orders", 1)])
    told = [("orders", 0, 0, 5, 1), ("orders", 1, 0, 6, 1)]
    first = question.read(offsets_answer(told))
    assert question.read(offsets_answer(told)) is first
    told[1] = ("orders", 1, 0, 7, 1)
    second = question.read(offsets_answer(told))
    assert second.offset.tolist() == [5, 7]
    assert first.offset.tolist() == [5, 6]


@pytest.mark.parametrize(
    "told",
    [
        [("orders", 0, 0, 5, 1)],
        [("orders", 0, 0, 5, 1), ("orders", 0, 0, 5, 1)],
        [("orders", 0, 0, 5, 1), ("orders", 2, 0, 5, 1)],
        [("orders", 0, 0, 5, 1), ("payments", 1, 0, 5, 1)],
        [("orders", 0, 0, 5, 1), ("orders", 1, 0, 6, 1), ("orders", 2, 0, 6, 1)],
        [("orders", 0, 0, -2, 1), ("orders", 1, 0, 6, 1)],
        [("orders", 0, 0, 0, -2), ("orders", 1, 0, 6, 1)],
    ],
)
def test_an_answer_to_another_question_is_refused(told: list[tuple[str, int, int, int, int]]) -> None:
    """Also after one that was as it should be."""
    right = offsets_answer([("orders", 0, 0, 5, 1), ("orders", 1, 0, 6, 1)])
    for answers in ([], [right]):
        question = OffsetsQuestion([("orders", 0), ("orders", 1)])
        for answer in answers:
            question.read(answer)
        with pytest.raises(AnswerError):
            question.read(offsets_answer(told))
        assert question.read(right).offset.tolist() == [5, 6]


def test_an_answer_with_something_behind_it_is_refused() -> None:
    for longer in (b"\0", bytes(27)):
        with pytest.raises(AnswerError, match="longer than it should be"):
            OffsetsQuestion([("orders", 0)]).read(offsets_answer([("orders", 0, 0, 5, 1)]) + longer)
        with pytest.raises(AnswerError, match="longer than it should be"):
            read_metadata(metadata_answer({1: ("localhost", 9092)}, {}, {}) + longer)


def mutated(answer: bytes, chance: random.Random) -> bytes:
    """Some bytes changed, taken out, put in, or cut off."""
    data = bytearray(answer)
    for _ in range(chance.choice([1, 1, 2, 5])):
        at = chance.randrange(len(data) + 1)
        kind = chance.randrange(4)
        if kind == 0 and at < len(data):
            data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)])
        elif kind == 1:
            data[at : at + chance.randrange(1, 9)] = b""
        elif kind == 2:
            data[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            del data[at:]
    return bytes(data)


@given(SEEDS)
def test_a_broken_answer_about_offsets_is_an_error_of_ours_or_has_only_other_numbers(seed: int) -> None:
    chance = random.Random(seed)
    asked = [(topic, partition) for topic in ("orders", "payments") for partition in range(chance.randrange(1, 9))]
    right = offsets_answer([(*source, 0, 5, 1) for source in asked])
    question = OffsetsQuestion(asked)
    if chance.random() < 0.5:
        question.read(right)
    broken = mutated(right, chance)
    try:
        read = question.read(broken)
    except AnswerError:
        return
    assert len(read.offset) == len(read.error) == len(read.epoch) == len(asked)
    assert int(read.offset.min()) >= -1
    # A dumb reader of the same bytes finds the same.
    twin = ListOffsetsResponse.decode(broken, version=6, header=True)
    found = {(topic.name, part.partition_index): part for topic in twin.topics for part in topic.partitions}
    assert [found[source].offset for source in asked] == read.offset.tolist()
    assert [found[source].error_code for source in asked] == read.error.tolist()


# --- topics -----------------------------------------------------------------------------------------------------------

BROKERS = st.dictionaries(INT32, st.tuples(NAMES, st.integers(1, 65535)), min_size=1, max_size=4)
TOPICS = st.dictionaries(NAMES, st.tuples(st.uuids(), st.lists(INT32, min_size=1, max_size=9)), max_size=5)


def metadata_answer(
    brokers: dict[int, tuple[str, int]],
    topics: dict[str, tuple[UUID, list[int]]],
    errors: dict[str, int],
    *,
    shuffled: random.Random | None = None,
) -> bytes:
    def partition(index: int, leader: int) -> Any:
        return MetadataResponse.MetadataResponseTopic.MetadataResponsePartition(
            error_code=0 if leader >= 0 else 5,
            partition_index=index,
            leader_id=leader,
            leader_epoch=3,
            replica_nodes=[leader, 2],
            isr_nodes=[leader],
            offline_replicas=[2],
        )

    listed = []
    for name, (topic_id, leaders) in topics.items():
        parts = [partition(index, leader) for index, leader in enumerate(leaders)]
        if shuffled is not None:
            shuffled.shuffle(parts)
        listed.append(topic_of(0, name, topic_id, parts))
    listed += [topic_of(code, name, UUID(int=0), []) for name, code in errors.items()]
    named = [
        MetadataResponse.MetadataResponseBroker(node_id=number, host=host, port=at, rack=None)
        for number, (host, at) in brokers.items()
    ]
    answer = MetadataResponse(
        throttle_time_ms=0, brokers=named, cluster_id="c", controller_id=1, topics=listed, error_code=0
    )
    return encoded(answer, 11, METADATA)


def topic_of(code: int, name: str, topic_id: UUID, partitions: list[Any]) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        error_code=code,
        name=name,
        topic_id=topic_id,
        is_internal=False,
        partitions=partitions,
    )


@given(st.sets(NAMES, max_size=9))
def test_the_question_for_topics_has_kafka_pythons_bytes(names: set[str]) -> None:
    topics = [MetadataRequest.MetadataRequestTopic(topic_id=UUID(int=0), name=name) for name in sorted(names)]
    twin = MetadataRequest(topics=topics, allow_auto_topic_creation=False, include_topic_authorized_operations=False)
    assert unframed(metadata_request(names)) == encoded(twin, 11, METADATA, "totalorder-look")


@given(BROKERS, TOPICS, SEEDS)
def test_topics_are_read(
    brokers: dict[int, tuple[str, int]], topics: dict[str, tuple[UUID, list[int]]], seed: int
) -> None:
    codes = zip(topics, (3, 29, 3, 5, 17), strict=False)
    errors = {name + "?": code for name, code in codes if name + "?" not in topics}
    cluster = read_metadata(metadata_answer(brokers, topics, errors, shuffled=random.Random(seed)))
    assert cluster.brokers == brokers
    assert cluster.topics == {name: Topic(str(found), tuple(leaders)) for name, (found, leaders) in topics.items()}
    assert cluster.errors == {name: code for name, code in errors.items() if code != 3}


@pytest.mark.parametrize("port", [0, -1, 1 << 16])
def test_a_broker_without_an_address_is_refused(port: int) -> None:
    with pytest.raises(AnswerError, match="no address"):
        read_metadata(metadata_answer({1: ("localhost", port)}, {}, {}))


def test_a_topic_whose_partitions_have_gaps_is_refused() -> None:
    answer = metadata_answer({1: ("localhost", 9092)}, {"orders": (UUID(int=1), [1, 1])}, {})
    entry = np.array([0, 1, 1], ">i4").tobytes()[2:]
    assert answer.count(entry) == 1
    with pytest.raises(AnswerError, match="gaps"):
        read_metadata(answer.replace(entry, np.array([0, 2, 1], ">i4").tobytes()[2:]))


@given(SEEDS)
def test_a_broken_answer_about_topics_is_an_error_of_ours_or_well_formed(seed: int) -> None:
    chance = random.Random(seed)
    topics = {"orders": (UUID(int=7), [1, 2, -1]), "payments": (UUID(int=8), [1])}
    right = metadata_answer({1: ("a", 1), 2: ("b", 2)}, topics, {"gone": 3})
    try:
        cluster = read_metadata(mutated(right, chance))
    except AnswerError:
        return
    assert all(host and 0 < port < 1 << 16 for host, port in cluster.brokers.values())
    assert all(topic.leaders for topic in cluster.topics.values())


@pytest.mark.parametrize("size", [0, 1, 1000])
def test_noise_is_an_error_of_ours(size: int) -> None:
    chance = random.Random(size)
    for noise in (bytes(size), b"\xff" * size, chance.randbytes(size)):
        for head in (b"", METADATA.to_bytes(4, "big"), LIST_OFFSETS.to_bytes(4, "big")):
            with pytest.raises(AnswerError):
                read_metadata(head + noise)
            with pytest.raises(AnswerError):
                OffsetsQuestion([("orders", 0)]).read(head + noise)


def test_an_answer_that_promises_too_much_is_refused_before_it_is_believed() -> None:
    """Two thousand million entries in twelve bytes."""
    promise = METADATA.to_bytes(4, "big") + b"\0" + bytes(4) + b"\xff\xff\xff\xff\x07"
    with pytest.raises(AnswerError, match="cut short"):
        read_metadata(promise)
