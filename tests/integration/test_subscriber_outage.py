"""A broker that goes away under a subscriber: borne for a while, then named."""

import re
import time
from collections.abc import Callable, Iterator

import pytest
from frozen import frozen
from sim_kafka_sequencer import ThreadSequencer
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, Error
from totalorder.subscriber import Event, Subscriber

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def own() -> Iterator[LocalBroker]:
    """A broker that may be stopped, with the topic orders."""
    with LocalBroker() as broker:
        with kafka_clients.admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"orders": {"num_partitions": 2}})
            admin.wait_for_topics(["orders"])
        yield broker


def test_bears_a_restart_of_the_broker_and_names_one_that_stays_away(own: LocalBroker) -> None:
    servers = own.bootstrap_servers
    with ThreadSequencer(servers, "d", ["orders"]):
        subscriber = Subscriber(
            ["orders"], id="s", domain="d", bootstrap_servers=servers, outage_timeout_s=10, save_interval_s=1
        )
        with kafka_clients.producer(servers) as producer:
            producer.send("orders", value=b"1").get(10)
            event = subscriber.poll(30)
            assert event is not None
            own.kill()
            subscriber.ack(event)
            assert subscriber.poll(1) is None
            own.start()
            producer.send("orders", value=b"2").get(30)
        assert _until(lambda: subscriber.poll(1), 40).value == b"2"
    own.kill()
    started = time.monotonic()
    with pytest.raises(BrokerUnavailable, match="Kafka broker"):
        _until(lambda: subscriber.poll(1), 90)
    assert time.monotonic() - started < 60
    subscriber.close()


def test_a_frozen_broker_is_borne_and_ends_the_subscriber_at_the_time_set(own: LocalBroker) -> None:
    if not own.running:
        own.start()
    servers, bearable_s = own.bootstrap_servers, 12.0
    with ThreadSequencer(servers, "frozen", ["orders"]):
        subscriber = Subscriber(
            ["orders"],
            id="s",
            domain="frozen",
            bootstrap_servers=servers,
            outage_timeout_s=bearable_s,
            save_interval_s=1,
        )
        with kafka_clients.producer(servers) as producer:
            producer.send("orders", value=b"1").get(10)
            event = _until(lambda: subscriber.poll(1), 30)
            with frozen(own):
                subscriber.ack(event)
                assert subscriber.poll(3) is None
            producer.send("orders", value=b"2").get(30)
        subscriber.ack(_until(lambda: subscriber.poll(1), 30))
    with frozen(own):
        begun = time.monotonic()
        with pytest.raises(BrokerUnavailable) as told:
            _until(lambda: _in_time(subscriber, bearable_s), 3 * bearable_s)
        took_s = time.monotonic() - begun
        subscriber.close()
    said_s = float(re.search(r"has answered for (\d+) s", str(told.value))[1])  # type: ignore[index]
    assert bearable_s - 1 < said_s <= took_s + 1 < 2 * bearable_s


def _in_time(subscriber: Subscriber, bound_s: float) -> Event | None:
    """A poll of a second, which comes back though nobody answers."""
    asked = time.monotonic()
    event = subscriber.poll(1)
    assert time.monotonic() - asked < bound_s
    return event


def test_names_a_deleted_topic_that_it_must_write_to(
    broker: LocalBroker, new_topic: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    with (
        ThreadSequencer(servers, domain, [topic]),
        kafka_clients.producer(servers) as producer,
        kafka_clients.admin(servers) as admin,
    ):
        subscriber = Subscriber([topic], id="s", domain=domain, bootstrap_servers=servers, outage_timeout_s=3)
        producer.send(topic, value=b"1").get(10)
        event = _until(lambda: subscriber.poll(1), 30)
        admin.delete_topics([f"{domain}.receipts"])
        wait_until(lambda: f"{domain}.receipts" not in admin.list_topics(), "the topic is gone")
        with pytest.raises(Error, match=rf"{domain}\.receipts was deleted"):
            subscriber.ack(event)
        with pytest.raises(Error, match=rf"{domain}\.receipts was deleted"):
            subscriber.close()


def _until(look: Callable[[], Event | None], timeout_s: float) -> Event:
    deadline = time.monotonic() + timeout_s
    while (found := look()) is None:
        assert time.monotonic() < deadline
    return found
