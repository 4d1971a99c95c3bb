"""A broker that freezes under the job: an outage that is borne, however the broker says so, and then named."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_shared import settings_for
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable
from totalorder.streaming.runner import Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark]
BOUND_S = 150.0


@contextmanager
def frozen(broker: LocalBroker) -> Iterator[None]:
    """The broker stands still: its connections stay open, and nothing is answered."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


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
        assert (begins["event"], begins["gives_up_after_s"]) == ("the broker does not answer", 60)
        assert "did not answer in time" in begins["reason"]
        assert ends["event"] == "the broker answers again"
        with frozen(broker), pytest.raises(BrokerUnavailable):
            Sequencer(settings, spark=spark).start()


def until(sequencer: Sequencer, condition: Callable[[], bool]) -> None:
    """Waits, and raises what ended the job."""
    wait_until(lambda: sequencer.wait(0) or condition(), "what the broker's state leads to", bound_s=BOUND_S)
    assert not sequencer.wait(0)
