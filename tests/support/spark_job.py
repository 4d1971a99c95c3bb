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
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.control import Answer, decode_answer
from totalorder.sequencer.wire.cuts import Cut, CutsAssembler, SlicePart
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES
from totalorder.sequencer.wire.stamps import Source, StampedBatch
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
                    key = (source.topic, source.partition, int(rows.offset[row]))
                    assert key not in found, "or a topic that was made again"
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


def read_cuts(settings: Settings) -> dict[int, Cut]:
    """The domain's cuts by their numbers."""
    assembler, found = CutsAssembler(domain=settings.domain), dict[int, Cut]()
    for record in records(settings.bootstrap_servers, settings.own_topics.cuts):
        found |= {cut.cut: cut for cut in assembler.add(record.value, dict(record.headers))}
    return found


def by_engine(settings: Settings, record: DomainRecord, log: DomainLog) -> tuple[list[Answer], list[StampedBatch]]:
    """What the pure engine gives for the very batches that the job cut, by what is public of the cuts."""
    cuts, rows = read_cuts(settings), [*_event_rows(settings, record), *_control_rows(settings, record)]
    config = record.engine_config()
    states = [initial_state(replace(config, shard=shard)) for shard in range(config.shards)]
    answers: list[Answer] = []
    stamped: list[StampedBatch] = []
    for _, partitions in sorted(log.batches().items()):
        cut = cuts[partitions[0].cut]
        taken = list(_in_slices(cut, rows))
        batch = Batch.of(partitions[0].time_ms, taken, cut=cut.cut, topic_order=cut.topic_order)
        for shard, state in enumerate(states):
            states[shard], effects = step(state, batch, record.starts)
            answers += effects.answers
            stamped += effects.stamps
    return answers, stamped


def _in_slices(cut: Cut, rows: list[Row]) -> Iterator[Row]:
    """Those of the rows that the cut has, with the numbers of their slices."""
    parts: dict[Source, list[SlicePart]] = {}
    for part in cut.parts:
        parts.setdefault(part.source, []).append(part)
    for row in rows:
        for part in parts.get(Source(row.kafka_topic, row.topic_id, row.partition), ()):
            if part.begin <= row.offset < part.end:
                yield row._replace(slice=part.slice)


def _control_rows(settings: Settings, record: DomainRecord) -> list[Row]:
    topic_id = record.own_ids[settings.own_topics.control]
    return [
        Row(
            found.topic,
            0,
            found.offset,
            found.timestamp,
            control=(found.value or b"")[: MAX_CONTROL_BYTES + 1],
            topic_id=topic_id,
        )
        for found in records(settings.bootstrap_servers, settings.own_topics.control)
    ]


def _event_rows(settings: Settings, record: DomainRecord) -> list[Row]:
    rows = []
    for topic in sorted(record.event_topics):
        for found in records(settings.bootstrap_servers, topic):
            key = found.key.decode("utf-8", errors="replace") if found.key else ""
            name = topic if settings.topic_by == "topic" else key
            crc = crc32(found.value) if found.value is not None else 0
            topic_id = record.topic_ids[topic]
            rows.append(Row(topic, found.partition, found.offset, found.timestamp, name, crc, topic_id=topic_id))
    return rows
