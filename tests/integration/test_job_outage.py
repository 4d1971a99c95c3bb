"""A broker that freezes under the job: an outage that is borne, however the broker says so, and then named."""

import os
import signal
import time
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
from totalorder.streaming.topics import Topics

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


def test_a_broker_that_freezes_is_borne_named_and_does_not_hold_up_a_stop(
    spark: SparkSession, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    with LocalBroker() as broker:
        with kafka_clients.admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"a": {"num_partitions": 1}})
        more = {"topics": ("a",), "topic_poll_s": 0.2, "broker_timeout_s": 1}
        settings = settings_for(unique_name("frozen"), broker.bootstrap_servers, tmp_path, **more)
        topics = Topics(settings)
        with Sequencer(settings, spark=spark) as sequencer, capture_logs() as logs:
            with frozen(broker):
                wait_until(lambda: sequencer.wait(0) or sequencer.broker_is_away, "the broker missed", bound_s=BOUND_S)
                with pytest.raises(BrokerUnavailable, match="did not answer in time"):
                    topics.facts(("a",))
            wait_until(lambda: not sequencer.broker_is_away, "the broker found again", bound_s=BOUND_S)
            with kafka_clients.producer(broker.bootstrap_servers) as producer:
                producer.send("a", value=b"after").get(60)
            wait_until(lambda: sequencer.wait(0) or sequencer.processed.events == 1, "stamped", bound_s=BOUND_S)
        topics.close()
        assert _of(logs, "the broker does not answer")[0]["gives_up_after_s"] == 60
        assert _of(logs, "the broker answers again")
        stopped = Sequencer(settings, spark=spark)
        stopped.start()
        with frozen(broker):
            begun = time.monotonic()
            stopped.stop()
            assert time.monotonic() - begun < BOUND_S
            with pytest.raises(BrokerUnavailable):
                Sequencer(settings, spark=spark).start()


def _of(logs: list[dict[str, object]], event: str) -> list[dict[str, object]]:
    return [line for line in logs if line["event"] == event]
