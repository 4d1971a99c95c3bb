"""What is read off the ends of stamps and grants, on a real broker."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient

from totalorder.broker import LocalBroker
from totalorder.config import Settings, make_settings
from totalorder.errors import WireError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, EngineConfig, initial_state, step
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import encode_answer
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.written import Tail, Written, read_written

pytestmark = pytest.mark.broker
PARTITIONS = 3


class Domain:
    """The topics of a domain, and three batches of it: events alone, a request alone, events alone."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.topics = settings.own_topics
        self.producer = Producer({"bootstrap.servers": settings.bootstrap_servers})
        state = initial_state(EngineConfig(domain=settings.domain, identity="i", stamps_partitions=PARTITIONS))
        self.effects: list[Effects] = []
        for number in range(3):
            events = [Row("a", part, 5 * number + at, 0, "a") for part in (0, 1) for at in range(5)]
            rows = [Row(self.topics.control, 0, 7, control=b"?")] if number == 1 else events
            state, effects = step(state, Batch.of(100 + number, rows), {})
            self.effects.append(effects)

    def write(self, batch: int, partition: int, *, parts: slice = slice(None)) -> None:
        stamped = self.effects[batch - 1].stamps[partition]
        for record in encode_stamps(stamped, max_part_bytes=1)[parts]:
            self.producer.produce(self.topics.stamps, record.value, partition=partition, headers=list(record.headers))

    def answer(self, batch: int) -> None:
        for answer in self.effects[batch - 1].answers:
            self.producer.produce(self.topics.grants, encode_answer(answer), partition=0)

    def tail(self, batch: int, partition: int) -> Tail:
        return Tail(batch=batch, time_ms=99 + batch, digest=self.effects[batch - 1].stamps[partition].digest)

    def read(self) -> Written:
        self.producer.flush(30)
        return read_written(self.settings, {self.topics.stamps: PARTITIONS, self.topics.grants: 1})


@pytest.fixture
def domain(broker: LocalBroker, kafka_admin: KafkaAdminClient, unique_name: Callable[[str], str]) -> Domain:
    settings = make_settings(
        domain=unique_name("written"),
        bootstrap_servers=broker.bootstrap_servers,
        topics=("a",),
        checkpoint_dir="x",
        broker_timeout_s=20,
    )
    names = {settings.own_topics.stamps: {"num_partitions": PARTITIONS}, settings.own_topics.grants: {}}
    kafka_admin.create_topics(names)
    kafka_admin.wait_for_topics(list(names))
    return Domain(settings)


def test_the_newest_batch_of_each_partition_and_the_newest_answer(domain: Domain) -> None:
    assert domain.read() == Written()
    for batch in (1, 2, 3):
        domain.write(batch, 0)
        domain.answer(batch)
    domain.write(1, 2)
    domain.write(2, 2)
    found = domain.read()
    assert found.tails == {0: domain.tail(3, 0), 2: domain.tail(2, 2)}
    assert (found.stamped, found.newest) == (domain.tail(3, 0), 3)
    assert found.next_offsets == {Source("a", "", 0): 15, Source("a", "", 1): 15}
    assert found.answered == (2, 7)


def test_a_batch_that_breaks_off_and_one_that_is_repeated_behind_a_newer_one(domain: Domain) -> None:
    (own,) = np.unique([stamped.partition for stamped in domain.effects[2].stamps if len(stamped.rows)])
    domain.write(2, own)
    domain.write(3, own, parts=slice(0, 2))
    domain.write(2, own)
    assert domain.read().tails == {own: domain.tail(3, own)}


def test_aborted_records_and_markers_at_the_end(domain: Domain) -> None:
    domain.write(1, 0)
    domain.producer.flush(30)
    for kept in (False, True, False):
        domain.producer = Producer(
            {"bootstrap.servers": domain.settings.bootstrap_servers, "transactional.id": domain.settings.domain}
        )
        domain.producer.init_transactions(60)
        domain.producer.begin_transaction()
        domain.write(2 if kept else 3, 0, parts=slice(0, 1))
        domain.producer.flush(30)
        domain.producer.commit_transaction(60) if kept else domain.producer.abort_transaction(60)
    assert domain.read().tails == {0: domain.tail(2, 0)}


def test_what_the_sequencer_cannot_have_written(domain: Domain) -> None:
    stamped = replace(domain.effects[0].stamps[0], partition=1).sealed()
    domain.producer.produce(domain.topics.stamps, encode_stamps(stamped)[0].value, partition=0)
    with pytest.raises(WireError, match=r"stamps.0. has a stamp of written-.*.1. at 0"):
        domain.read()
