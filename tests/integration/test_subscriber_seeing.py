"""What a Subscriber on a real broker shows when something stands still; the sequencer is a thread without Spark."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from frozen import frozen
from logged import by_us
from sim_kafka_sequencer import ThreadSequencer

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Fenced
from totalorder.subscriber import Event, Stalled, Subscriber

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def own() -> Iterator[LocalBroker]:
    """A broker that may be stopped for a while, with the topic orders."""
    with LocalBroker() as running:
        with kafka_clients.admin(running.bootstrap_servers) as admin:
            admin.create_topics({"orders": {"num_partitions": 1}})
            admin.wait_for_topics(["orders"])
        yield running


class Told:
    """A subscriber, and what its callback was told."""

    def __init__(self, servers: str, domain: str) -> None:
        self.servers = servers
        self.stalls: list[Stalled] = []
        self.subscriber = Subscriber(
            ["orders"],
            id="s",
            domain=domain,
            bootstrap_servers=servers,
            stalled_after_s=1.0,
            on_stalled=self.stalls.append,
            save_interval_s=30,
        )

    def publish(self) -> None:
        with kafka_clients.producer(self.servers) as producer:
            producer.send("orders", value=b"1").get(30)

    def take(self) -> Event:
        return self.until(lambda event: event is not None)  # type: ignore[return-value]

    def until(self, holds: Callable[[Event | None], bool]) -> Event | None:
        """Polls until something holds."""
        deadline = time.monotonic() + 60
        while not holds(event := self.subscriber.poll(0.5)):
            assert time.monotonic() < deadline
        return event


@contextmanager
def subscribed(own: LocalBroker, domain: str) -> Iterator[Told]:
    """One that has had an event of a sequencer that is no more when the block begins."""
    with ThreadSequencer(own.bootstrap_servers, domain, ["orders"]):
        told = Told(own.bootstrap_servers, domain)
        told.publish()
        told.take()
    with told.subscriber:
        yield told


def test_a_dead_sequencer_is_told_when_events_come_and_a_broker_that_stops_for_a_while_too(
    own: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    with subscribed(own, "dead") as told:
        told.publish()
        told.until(lambda _: bool(told.stalls))
        (stall,) = told.stalls
        assert (stall.wait.kind, stall.wait.topic, stall.over) == ("stamps", "orders", False)
        assert stall.wait.offset is not None
        metrics = told.subscriber.metrics()
        assert metrics.hold is not None
        assert (metrics.hold.wait, metrics.stalled, metrics.lag_events) == (stall.wait, True, 1)
        assert 0 < metrics.lag_s < 60
        (line,) = [line for line in by_us(caplog) if line.startswith("subscriber")]
        assert "Check that `totalorder sequence` runs for domain 'dead' and reads topic 'orders'" in line
        with frozen(own):
            told.until(lambda _: told.stalls[-1].wait.kind == "broker")
            assert told.subscriber.metrics().silent_s > 0
        told.until(lambda _: told.stalls[-1].over and told.stalls[-1].wait.kind == "broker")


def test_who_is_fenced_says_so_in_the_log(own: LocalBroker, caplog: pytest.LogCaptureFixture) -> None:
    domain = "fenced"
    with ThreadSequencer(own.bootstrap_servers, domain, ["orders"]):
        old = Told(own.bootstrap_servers, domain)
        with Told(own.bootstrap_servers, domain).subscriber, pytest.raises(Fenced):
            old.take()
        old.subscriber.close()
    (line,) = by_us(caplog, logging.ERROR)
    assert "has stopped: another process took over subscriber id 's'" in line
