"""A small sequencer over a real Kafka broker, in a thread of the test: the engine and the codec without Spark.

For tests of the subscriber alone; it has no checkpoint and no preflight.
"""

import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from kafka import TopicPartition

from totalorder import kafka_clients
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import EngineConfig, initial_state, step
from totalorder.sequencer.state import State
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import Retire, answer_key, encode_answer, encode_request
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.subscriber.naming import topic_of
from totalorder.subscriber.transport import Record


class ThreadSequencer:
    """Runs from entry to exit."""

    def __init__(
        self, bootstrap_servers: str, domain: str, event_topics: Iterable[str], *, partitions: int = 2, **engine: Any
    ) -> None:
        self.servers, self.domain, self.event_topics = bootstrap_servers, domain, list(event_topics)
        self.names = DomainTopics(domain=domain)
        self.config = EngineConfig(domain=domain, identity="thread", stamps_partitions=partitions, **engine)
        self.failure: BaseException | None = None
        self._ids: dict[str, str] = {}
        self._next: dict[TopicPartition, int] = {}
        self._read: list[str] = []
        """The event topics that are to be read."""
        self._asked, self._reading = threading.Event(), threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded, name=f"sequencer-{domain}")

    def __enter__(self) -> Self:
        with kafka_clients.admin(self.servers) as admin:
            compact = {"cleanup.policy": "compact"}
            admin.create_topics(
                {
                    self.names.control: {"num_partitions": 1},
                    self.names.grants: {"num_partitions": 1, "configs": compact},
                    self.names.positions: {"num_partitions": self.config.stamps_partitions, "configs": compact},
                    self.names.stamps: {"num_partitions": self.config.stamps_partitions},
                    self.names.receipts: {"num_partitions": self.config.stamps_partitions},
                    self.names.cuts: {"num_partitions": 1},
                    self.names.state: {"num_partitions": 1},
                }
            )
            admin.wait_for_topics(sorted(self.names.own()))
        self._ask(self.event_topics)
        self._thread.start()
        assert self._reading.wait(30)
        return self

    @contextmanager
    def apart_from(self, topic: str) -> Iterator[None]:
        """Within this block the topic is not read, and may be deleted and created again. It is retired at the end."""
        former, seen = self._ids[topic], {at.partition: end for at, end in self._next.items() if at.topic == topic}
        self._ask([name for name in self.event_topics if name != topic])
        assert self._reading.wait(30)
        yield
        for partition in seen:
            self._next.pop(TopicPartition(topic, partition))
        request = Retire(id="thread", nonce="n", topic=topic, topic_id=former, seen=seen)
        with kafka_clients.producer(self.servers) as producer:
            producer.send(self.names.control, value=encode_request(request), partition=0).get(10)
        self._ask(self.event_topics)
        assert self._reading.wait(30)

    def _ask(self, topics: Iterable[str]) -> None:
        """The thread is to read these event topics."""
        self._read = list(topics)
        with kafka_clients.admin(self.servers) as admin:
            self._ids |= {topic["name"]: str(topic["topic_id"]) for topic in admin.describe_topics(self._read)}
        self._reading.clear()
        self._asked.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _run(self) -> None:
        state = initial_state(self.config)
        with kafka_clients.producer(self.servers) as producer:
            while not self._stop.is_set():
                with kafka_clients.consumer(self.servers, fetch_max_wait_ms=20) as consumer:
                    self._asked.clear()
                    self._assign(consumer)
                    self._reading.set()
                    state = self._sequence(state, consumer, producer)

    def _assign(self, consumer: Any) -> None:
        topics = [self.names.control, *self._read]
        partitions = [TopicPartition(topic, n) for topic in topics for n in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)
        for at in partitions:
            consumer.seek(at, self._next.setdefault(at, 0))

    def _sequence(self, state: State, consumer: Any, producer: Any) -> State:
        """Until other topics are to be read."""
        while not self._stop.is_set() and not self._asked.is_set():
            found = consumer.poll(timeout_ms=50)
            rows = [self._row(record) for records in found.values() for record in records]
            self._next |= {at: records[-1].offset + 1 for at, records in found.items()}
            state, effects = step(state, Batch.of(time.time_ns() // 1_000_000, rows), {})
            for answer in effects.answers:
                producer.send(self.names.grants, key=answer_key(answer), value=encode_answer(answer), partition=0)
            for stamped in effects.stamps:
                for part in encode_stamps(stamped):
                    producer.send(
                        self.names.stamps,
                        value=part.value,
                        headers=list(part.headers),
                        partition=stamped.partition,
                    )
            producer.flush(10)
        return state

    def _row(self, record: Any) -> Row:
        control = record.topic == self.names.control
        value = record.value
        seen = Record(
            record.topic, record.partition, record.offset, record.key, value, tuple(record.headers), record.timestamp
        )
        return Row(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            "" if control else topic_of(seen, self.config.topic_by) or "",
            0 if value is None else zlib.crc32(value),
            (value or b"") if control else None,
            topic_id="" if control else self._ids[record.topic],
        )
