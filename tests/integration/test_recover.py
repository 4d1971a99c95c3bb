"""A checkpoint that is lost is made anew from Kafka, and the subscribers, which run all the time, do not notice."""

import json
import shutil
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Self

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from spark_job import records
from spark_process import START_BOUND_S
from spark_shared import settings_for
from waiting import wait_until

import totalorder as to
from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.cli.app import main
from totalorder.config import Settings
from totalorder.errors import PreflightFailed, StateError
from totalorder.sinks.audit import Auditor, choose
from totalorder.sinks.runner import Lineage
from totalorder.sinks.settings import LineageSettings
from totalorder.streaming.recover import recover
from totalorder.streaming.runner import Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]


class Reader:
    """A subscriber in a thread of its own; `events` are those delivered, in order."""

    def __init__(self, topics: list[str], *, id_: str, settings: Settings) -> None:
        self.topics, self.events = topics, list[to.Event]()
        self._failure: BaseException | None = None
        self._subscriber = to.Subscriber(
            topics,
            id=id_,
            domain=settings.domain,
            bootstrap_servers=settings.bootstrap_servers,
            start_timeout_s=START_BOUND_S,
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=id_)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(START_BOUND_S)
        assert self._failure is None, self._failure

    def _run(self) -> None:
        try:
            with self._subscriber as subscriber:
                while not self._stop.is_set():
                    event = subscriber.poll(0.2)
                    if event is not None:
                        self.events.append(event)
                        subscriber.ack(event)
        except BaseException as error:
            self._failure = error

    def until_delivered(self, count: int) -> None:
        wait_until(
            lambda: len(self.events) >= count or self._failure is not None, "events delivered", bound_s=START_BOUND_S
        )
        assert self._failure is None, self._failure
        assert len(self.events) == count


def publish(producer: KafkaProducer, topics: list[str], numbers: range) -> None:
    for number in numbers:
        producer.send(topics[number % len(topics)], value=b"%d" % number, partition=number % 4 // 2)
    producer.flush()


def test_a_lost_checkpoint_is_made_anew_and_subscribers_go_on(
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics = [new_topic(stem, partitions=2) for stem in "ab"]
    a, b = topics
    state, old = tmp_path / "state", tmp_path / "old"
    settings = settings_for(unique_name("recover"), broker.bootstrap_servers, state, topics=(a, b))
    with kafka_clients.producer(broker.bootstrap_servers) as producer, ExitStack() as reading:
        with Sequencer(settings, spark=spark):
            readers = [
                reading.enter_context(Reader(each, id_=f"r{at}", settings=settings))
                for at, each in enumerate(([a, b], [b, a], [a]))
            ]
            publish(producer, topics, range(100))
            for reader in readers:
                reader.until_delivered(50 * len(reader.topics))
        state.rename(old)
        publish(producer, topics, range(100, 140))
        with pytest.raises(PreflightFailed, match="totalorder recover"):
            Sequencer(settings, spark=spark).start()
        shutil.rmtree(state)

        control = list(records(broker.bootstrap_servers, settings.own_topics.control))
        flags = [
            *("recover", "--domain", settings.domain, "--bootstrap-servers", broker.bootstrap_servers),
            *("--topics", ",".join(topics), "--checkpoint-dir", str(state), "--stamps-partitions", "2"),
        ]
        with pytest.raises(SystemExit) as ended:
            main([*flags, "--check", "--json"])
        assert ended.value.code == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert not state.exists()
        assert len(list(records(broker.bootstrap_servers, settings.own_topics.control))) == len(control)
        report = recover(settings.model_copy(update={"shards": 2}), settle_s=0.5)
        assert vars(report) == told
        assert (report.incarnation, report.g, report.topics, report.subscriptions) == (2, 103, 2, 3)

        with Sequencer(settings.model_copy(update={"shards": 2}), spark=spark) as sequencer:
            publish(producer, topics, range(140, 200))
            for reader in readers:
                reader.until_delivered(100 * len(reader.topics))
            readers.append(reading.enter_context(Reader([a, b], id_="late", settings=settings)))
            publish(producer, topics, range(200, 220))
            for reader, count in zip(readers, (220, 220, 110, 20), strict=True):
                reader.until_delivered(count)
            reading.close()
            third = recover(settings.model_copy(update={"checkpoint_dir": str(tmp_path / "third")}), settle_s=0.5)
            assert (third.incarnation, third.subscriptions, third.missing_stamps) == (3, 4, 0)
            with pytest.raises(StateError, match=r"taken over by .*, in incarnation 3"):
                sequencer.wait(START_BOUND_S)
        with pytest.raises(PreflightFailed, match="taken over"):
            Sequencer(settings.model_copy(update={"checkpoint_dir": str(old)}), spark=spark).start()

    for reader in readers:
        assert not any(event.tag for event in reader.events)
        assert [event.g for event in reader.events] == sorted({event.g for event in reader.events})
    for one, other in combinations(readers, 2):
        both = {event.g for event in one.events} & {event.g for event in other.events}
        assert both
        assert [event.value for event in one.events if event.g in both] == [
            event.value for event in other.events if event.g in both
        ]
    assert sorted(int(event.value or b"") for event in readers[0].events) == list(range(220))

    tables = LineageSettings(
        tables=str(tmp_path / "tables"),
        domain=settings.domain,
        bootstrap_servers=broker.bootstrap_servers,
        interval_s=0,
    )
    with Lineage(tables, until_caught_up=True, spark=spark) as lineage:
        lineage.wait()
    auditor = Auditor(spark.newSession(), tables.root)
    judged = [auditor.ask(audit) for audit in choose(())]
    assert {result.audit.name: result.rows for result in judged if result.verdict == "violated"} == {}
