"""Reading a domain's log back, and running the pure engine over what the job read."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from kafka import KafkaConsumer, TopicPartition
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.config import Settings
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.codec import StampsAssembler
from totalorder.sequencer.control import Answer, decode_answer
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.limits import MAX_CONTROL_BYTES
from totalorder.sequencer.stamps import Source, StampedBatch
from totalorder.streaming.record import DomainRecord


@dataclass(frozen=True, kw_only=True)
class DomainLog:
    """Everything that the job wrote: stamped batches in log order with repetitions, and answers likewise."""

    stamped: list[StampedBatch]
    answers: list[Answer]

    def batches(self) -> dict[int, dict[int, StampedBatch]]:
        """Batch number → partition → content; fails when one was written twice with two contents."""
        found: dict[int, dict[int, StampedBatch]] = {}
        for stamped in self.stamped:
            known = found.setdefault(stamped.batch, {}).setdefault(stamped.partition, stamped)
            assert known.digest == stamped.digest, f"two contents of batch {stamped.batch}[{stamped.partition}]"
        return found

    def events(self) -> dict[tuple[str, int, int], tuple[str, int, int]]:
        """(Kafka topic, partition, offset) → (topic, n, g)."""
        found = {}
        for partitions in self.batches().values():
            for stamped in partitions.values():
                rows = stamped.rows
                for row in range(len(rows)):
                    source = stamped.sources[int(rows.source[row])]
                    key = (*source, int(rows.offset[row]))
                    assert key not in found
                    found[key] = (stamped.names[int(rows.topic[row])], int(rows.n[row]), int(rows.g[row]))
        return found


def records(bootstrap_servers: str, topic: str) -> Iterator[Any]:
    """All committed records of a topic, up to its present end, partition by partition."""
    consumer: KafkaConsumer = kafka_clients.consumer(bootstrap_servers)
    try:
        wait_until(lambda: bool(consumer.partitions_for_topic(topic)), f"the partitions of {topic} are known")
        for partition in sorted(consumer.partitions_for_topic(topic)):
            source = TopicPartition(topic, partition)
            consumer.assign([source])
            consumer.seek_to_beginning(source)
            end = consumer.end_offsets([source])[source]
            while consumer.position(source) < end:
                for found in consumer.poll(timeout_ms=500).values():
                    yield from (record for record in found if record.offset < end)
    finally:
        consumer.close()


def read_log(settings: Settings) -> DomainLog:
    """The domain's stamps and grants, decoded."""
    own = settings.own_topics
    assemblers = [
        StampsAssembler(domain=settings.domain, partition=partition) for partition in range(settings.stamps_partitions)
    ]
    stamped = []
    for record in records(settings.bootstrap_servers, own.stamps):
        done = assemblers[record.partition].add(record.value, dict(record.headers))
        if done is not None:
            stamped.append(done)
    answers = [decode_answer(record.value) for record in records(settings.bootstrap_servers, own.grants)]
    return DomainLog(stamped=stamped, answers=answers)


def by_engine(settings: Settings, record: DomainRecord, log: DomainLog) -> tuple[list[Answer], list[StampedBatch]]:
    """What the pure engine gives for the very batches that the job cut: their ends are in the stamps."""
    events = _event_rows(settings, record)
    controls = {}
    for found in records(settings.bootstrap_servers, settings.own_topics.control):
        value = (found.value or b"")[: MAX_CONTROL_BYTES + 1]
        controls[found.offset] = Row(found.topic, 0, found.offset, found.timestamp, control=value)
    config = record.engine_config()
    states = [initial_state(replace(config, shard=shard)) for shard in range(config.shards)]
    answers: list[Answer] = []
    stamped: list[StampedBatch] = []
    done: dict[Source, int] = dict(record.starts)
    for number, partitions in sorted(log.batches().items()):
        ends = partitions[0].next_offsets
        rows = [row for row in events if done.get(row[:2], 0) <= row.offset < ends.get(row[:2], 0)]
        asked = {answer.offset for answer in log.answers if answer.batch == number}
        rows += [controls[offset] for offset in sorted(asked) if offset >= 0]
        batch = Batch.of(partitions[0].time_ms, rows, cut=partitions[0].cut)
        for shard, state in enumerate(states):
            states[shard], effects = step(state, batch, record.starts)
            answers += effects.answers
            stamped += effects.stamps
        done |= ends
    return answers, stamped


def _event_rows(settings: Settings, record: DomainRecord) -> list[Row]:
    rows = []
    for topic in sorted(record.event_topics(settings.own_topics.own())):
        for found in records(settings.bootstrap_servers, topic):
            key = found.key.decode("utf-8", errors="replace") if found.key else ""
            name = topic if settings.topic_by == "topic" else key
            crc = crc32(found.value) if found.value is not None else 0
            rows.append(Row(topic, found.partition, found.offset, found.timestamp, name, crc))
    return rows
