"""One local broker and one Spark session, with the queries that benchmarks compare; all of it is gone at the end."""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog
from pyspark.sql import SparkSession, functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings, make_settings
from totalorder.sequencer.wire.control import Subscribe, encode_request
from totalorder.streaming import session
from totalorder.streaming.preflight import own_topics
from totalorder.streaming.query import sink_options
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.service import configure_logging
from totalorder.streaming.topics import Topics

_COPIES = "copy."
_CHECKPOINT_FILES = {"spark.sql.streaming.checkpointFileManagerClass"}
_SEND_S = 30
_LEAST_FETCH, _MOST_FETCH, _ALL_FETCHES = 2**20, 2**23, 2**26
"""Bytes: what one fetch of a tuned copy brings of a partition, and what those of all may hold in memory together."""
# Consumers of queries that are over, each with megabytes that it fetched, would stay for five minutes: with a few
# queries in one Java they fill the heap, and every batch of the next one has a full collection.
# One stays open for each Kafka partition that a copy reads; with Spark's default of 64, more of them thrash.
_CONSUMERS = {"spark.kafka.consumer.cache.capacity": "4096"} | {
    f"spark.kafka.consumer.{cache}.{setting}": value
    for cache in ("cache", "fetchedData.cache")
    for setting, value in (("timeout", "5s"), ("evictorThreadRunInterval", "1s"))
}
_TOPICS_MS = 120_000
"""A thousand partitions take a broker some ten seconds."""


def copy_of(topic: str) -> str:
    """The topic that a copying query writes to."""
    return _COPIES + topic


class Cluster:
    """A context manager. `spark` is started with `settings`, such as the master, and serves every query in turn: so
    all of them have the same Java, and one that runs later profits from what it compiled as much as another.
    """

    spark: SparkSession
    session_s: float
    """How long starting it took."""

    def __init__(self, topics: Sequence[str], *, partitions: int = 1, **settings: object) -> None:
        self.topics = tuple(topics)
        self._partitions = partitions
        self._given = {"spark": _CONSUMERS, **settings}
        self._left = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            configure_logging("console")
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
            self.folder = Path(tempfile.mkdtemp(prefix="totalorder-bench-"))
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            # Executors of a local cluster: where they log, and the address that they listen at.
            os.environ.update(SPARK_WORKER_DIR=str(self.folder / "work"), SPARK_LOCAL_IP="127.0.0.1")
            self.servers = stack.enter_context(LocalBroker()).bootstrap_servers
            self.make_topics([*self.topics, *map(copy_of, self.topics)], self._partitions)
            began = time.monotonic()
            self.spark = session.start_session(self.settings("session"))
            self.session_s = time.monotonic() - began
            stack.callback(session.stop_session, self.spark)
            self._left = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.close()

    def make_topics(self, topics: Sequence[str], partitions: int, **configs: str) -> None:
        """Makes topics of so many partitions; `configs` have _ for the dots of their names."""
        given = {name.replace("_", "."): value for name, value in configs.items()}
        with kafka_clients.admin(self.servers) as admin:
            admin.create_topics({name: {"num_partitions": partitions, "configs": given} for name in topics})
            admin.wait_for_topics(topics, timeout_ms=_TOPICS_MS)

    def settings(self, domain: str, **more: object) -> Settings:
        """Settings of a domain of its own over the topics."""
        own = {"domain": domain, "bootstrap_servers": self.servers, "checkpoint_dir": str(self.folder / domain)}
        return make_settings(**{"topics": self.topics, **self._given, **more, **own})

    def subscribe(self, settings: Settings, subscriptions: Sequence[Sequence[str]]) -> None:
        """Makes the domain's own topics, and asks for subscriptions before its job has ever run."""
        topics = Topics(settings)
        topics.create(own_topics(settings))
        topics.close()
        with kafka_clients.producer(self.servers) as producer:
            for number, names in enumerate(subscriptions):
                request = Subscribe(
                    id=f"s{number}", generation=1, nonce="n", topics=tuple(names), lease_s=0, stamps_ends={}
                )
                producer.send(settings.own_topics.control, value=encode_request(request))
            producer.flush(_SEND_S)

    @contextmanager
    def sequencing(self, settings: Settings) -> Iterator[StreamingQuery]:
        """The query of the sequencer job, while it runs."""
        with Sequencer(settings, spark=self.spark):
            (query,) = self.spark.streams.active
            yield query

    @contextmanager
    def copying(self, settings: Settings, *, tuned: bool, partitions: int = 1) -> Iterator[StreamingQuery]:
        """A query that copies the events with their keys and values, topic by topic, and does nothing else.

        It is as anybody would write it: with Spark's and Kafka's own settings, but for the checkpoint's file system,
        which is the job's. `tuned`: it also reads, writes and is compiled as the job is. Each of the settings' topics
        has so many `partitions`.
        """
        conf = session.query_conf(settings)
        if (
            settings.starting_offsets == "earliest"
        ):  # a backlog's rows are many: compiled code reads one three times faster
            conf["spark.sql.codegen.factoryMode"] = "FALLBACK"
        for name in conf.keys() - _CHECKPOINT_FILES:
            self.spark.conf.unset(name)
        session.apply(self.spark, conf if tuned else {name: conf[name] for name in conf.keys() & _CHECKPOINT_FILES})
        events = (
            self.spark.readStream.format("kafka").options(**self._reading(settings, partitions, tuned=tuned)).load()
        )
        copies = events.select(F.concat(F.lit(_COPIES), "topic").alias("topic"), "key", "value")
        written = sink_options(settings) | {"kafka.compression.type": "none"}
        query = (
            copies.writeStream.format("kafka")
            .options(**(written if tuned else {"kafka.bootstrap.servers": self.servers}))
            .option("checkpointLocation", str(self.folder / settings.domain / "query"))
            .start()
        )
        try:
            yield query
        finally:
            query.stop()

    def _reading(self, settings: Settings, partitions: int, *, tuned: bool) -> dict[str, str]:
        """Options of a copy's source. A long poll at a log's end delays the offset lookups behind it on the same
        connection, and Spark looks two offsets up after each poll, so that 500 records or one megabyte are few for a
        backlog; a consumer for each partition holds what it fetched ahead.
        """
        options = {
            "kafka.bootstrap.servers": self.servers,
            "subscribe": ",".join(settings.topics),
            "startingOffsets": settings.starting_offsets,
            "maxOffsetsPerTrigger": str(settings.max_events_per_batch),
        }
        if not tuned:
            return options
        fetched = max(_LEAST_FETCH, min(_MOST_FETCH, _ALL_FETCHES // (partitions * len(settings.topics))))
        return options | {
            "kafka.fetch.max.wait.ms": "0",
            "kafka.max.poll.records": "50000",
            "kafka.max.partition.fetch.bytes": str(fetched),
            "kafka.isolation.level": "read_committed",
        }
