"""A broker that freezes under the job: an outage that is borne, however the broker says so, and then named."""

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest
from frozen import frozen
from pyspark.sql import SparkSession
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable
from totalorder.sinks.runner import Lineage
from totalorder.sinks.settings import load_lineage_settings
from totalorder.streaming.preflight import TopicFacts
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.topics import Topics

pytestmark = [pytest.mark.broker, pytest.mark.spark]
BOUND_S = 150.0


def test_a_broker_that_freezes_is_borne_and_named(
    spark: SparkSession, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    with LocalBroker() as broker:
        with kafka_clients.admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"a": {"num_partitions": 1}})
        more = {"topics": ("a",), "topic_poll_s": 0.2, "broker_timeout_s": 1}
        settings = settings_for(unique_name("frozen"), broker.bootstrap_servers, tmp_path, **more)
        with Sequencer(settings, spark=spark) as sequencer, capture_logs() as logs:
            with frozen(broker):
                until(sequencer, lambda: sequencer.broker_is_away)
            until(sequencer, lambda: not sequencer.broker_is_away)
            with kafka_clients.producer(broker.bootstrap_servers) as producer:
                producer.send("a", value=b"after").get(60)
            until(sequencer, lambda: sequencer.processed.events == 1)
        begins, *_, ends = [line for line in logs if line["event"].startswith("the broker")]
        assert (begins["event"], begins["gives_up_in_s"]) == ("the broker does not answer", 60)
        assert "did not answer in time" in begins["reason"]
        assert ends["event"] == "the broker answers again"
        assert ends["away_s"] >= begins["away_s"] >= 1, "counted from the question that had no answer"
        with frozen(broker), pytest.raises(BrokerUnavailable):
            Sequencer(settings, spark=spark).start()


@pytest.mark.long
def test_lineage_asks_a_broker_again_that_does_not_answer_at_once(
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    domain, topic = unique_name("lineage"), new_topic("a")
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        producer.send(topic, value=b"v").get(60)
    with Sequencer(settings_for(domain, broker.bootstrap_servers, tmp_path / "c", topics=(topic,)), spark=spark) as job:
        until(job, lambda: job.processed.events == 1)
    facts, asked = Topics.facts, count()

    def every_other(topics: Topics, names: Iterable[str]) -> dict[str, TopicFacts]:
        if next(asked) % 2 == 0:
            raise BrokerUnavailable("the broker elects a leader")
        return facts(topics, names)

    monkeypatch.setattr(Topics, "facts", every_other)
    given = {"domain": domain, "bootstrap_servers": broker.bootstrap_servers, "tables": str(tmp_path / "tables")}
    with Lineage(load_lineage_settings(None, given), until_caught_up=True, spark=spark) as lineage:
        assert lineage.wait(BOUND_S)
        assert lineage.written.events == 1
    assert next(asked) == 8, "at the start, behind Spark's, before events are read and behind that"


def until(sequencer: Sequencer, condition: Callable[[], bool]) -> None:
    """Waits, and raises what ended the job."""
    wait_until(lambda: sequencer.wait(0) or condition(), "what the broker's state leads to", bound_s=BOUND_S)
    assert not sequencer.wait(0)
