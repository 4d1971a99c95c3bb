"""A broker that goes away under a subscriber: borne for a while, then named."""

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from frozen import frozen
from kafka.errors import KafkaTimeoutError
from sim_kafka_sequencer import ThreadSequencer
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import BrokerUnavailable, Error
from totalorder.subscriber import Event, Subscriber
from totalorder.subscriber.clients import Client, transport_of
from totalorder.subscriber.kafka_transport import KafkaTransport
from totalorder.subscriber.transport import Partition

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def _own() -> Iterator[LocalBroker]:
    with LocalBroker() as broker:
        with kafka_clients.admin(broker.bootstrap_servers) as admin:
            admin.create_topics({"orders": {"num_partitions": 2}})
            admin.wait_for_topics(["orders"])
        yield broker


@pytest.fixture
def own(_own: LocalBroker) -> LocalBroker:
    """A broker that may be stopped, with the topic orders; it runs, whatever the test before has left."""
    if not _own.running:
        _own.start()
    return _own


def test_bears_a_restart_of_the_broker_and_names_one_that_stays_away(own: LocalBroker, client: Client) -> None:
    servers, domain = own.bootstrap_servers, f"restarted-{client}"
    with ThreadSequencer(servers, domain, ["orders"]):
        subscriber = Subscriber(
            ["orders"],
            id="s",
            domain=domain,
            bootstrap_servers=servers,
            outage_timeout_s=10,
            client=client,
            save_interval_s=1,
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


def test_a_frozen_broker_is_borne_and_ends_the_subscriber_at_the_time_set(own: LocalBroker, client: Client) -> None:
    servers, domain, bearable_s = own.bootstrap_servers, f"frozen-{client}", 12.0
    with ThreadSequencer(servers, domain, ["orders"]):
        subscriber = Subscriber(
            ["orders"],
            id="s",
            domain=domain,
            bootstrap_servers=servers,
            outage_timeout_s=bearable_s,
            client=client,
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


def test_what_was_under_way_when_a_broker_fell_silent_is_written_and_so_is_all_behind_it(
    own: LocalBroker, make_transport: Callable[..., KafkaTransport]
) -> None:
    """Also when that lasted for longer than an outage is borne, as on a machine that stood still."""
    place, bearable_s, tried = Partition("orders", 0), 2.0, list[bytes]()
    transport, reader = (
        make_transport(own.bootstrap_servers, outage_timeout_s=bearable_s if at == 0 else 60.0) for at in range(2)
    )

    def is_sent() -> bool:
        tried.append(b"%d" % len(tried))
        with contextlib.suppress(BrokerUnavailable):
            transport.send(place, b"key", tried[-1], timeout_s=0.5)
            return True
        return False

    begin = reader.end_offsets([place])[place]
    wait_until(is_sent, "a record is written")
    with frozen(own):
        begun = time.monotonic()
        wait_until(lambda: not is_sent() and time.monotonic() - begun > 3 * bearable_s, "an outage and more")
    wait_until(is_sent, "a record is written again")
    transport.close()
    reader.read(place, begin)
    found: list[bytes | None] = []

    def all_is_there() -> bool:
        found.extend(record.value for record in reader.poll(0.2))
        return len(found) >= len(tried)

    wait_until(all_is_there, "all is there")
    assert found == tried
    reader.close()


def test_a_broker_that_answers_and_takes_no_records_ends_the_subscriber_at_the_time_set(
    broker: LocalBroker,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    client: Client,
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers

    def never(*_: object) -> int:
        raise KafkaTimeoutError

    with (
        ThreadSequencer(servers, domain, [topic]),
        kafka_clients.producer(servers) as producer,
        Subscriber(
            [topic], id="s", domain=domain, bootstrap_servers=servers, outage_timeout_s=3, client=client
        ) as subscriber,
    ):
        monkeypatch.setattr(transport_of(client), "_sent", never)
        producer.send(topic, value=b"1").get(10)
        with pytest.raises(BrokerUnavailable, match=rf"taken a record for \d+ s \({domain}\.positions\[\d\]\)"):
            _until(lambda: subscriber.poll(1), 30)


def test_a_producer_ends_in_time_though_no_broker_gives_it_an_id(
    own: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_clients, "CLOSE_TIMEOUT_S", 0.2)
    with kafka_clients.producer(own.bootstrap_servers) as producer:
        assert producer.partitions_for("orders") == {0, 1}
        own.kill()
        with pytest.raises(KafkaTimeoutError):
            producer.send("orders", value=b"1", partition=0).get(0.2)
    wait_until(lambda: not producer._sender.is_alive(), "its thread has ended")


class Heard(Exception):
    """What a signal handler raises."""


@contextlib.contextmanager
def signalled(when: Callable[[], bool]) -> Iterator[None]:
    """This thread hears a signal, whose handler raises, once something is so."""

    def hear(*_: object) -> None:
        raise Heard

    def signal_it() -> None:
        wait_until(when, "it waits", bound_s=60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)  # type: ignore[arg-type]

    former, sender = signal.signal(signal.SIGUSR1, hear), threading.Thread(target=signal_it)
    sender.start()
    try:
        yield
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, former)


@pytest.mark.parametrize("waits", ["ack", "close"])
def test_a_call_that_waits_for_a_broker_says_so_and_hears_a_signal(
    waits: str, own: LocalBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It would wait for longer than any test may take."""
    servers, domain = own.bootstrap_servers, f"{waits}-{client}"
    with ThreadSequencer(servers, domain, ["orders"]):
        subscriber = Subscriber(
            ["orders"],
            id="s",
            domain=domain,
            bootstrap_servers=servers,
            outage_timeout_s=3600,
            client=client,
            save_interval_s=0 if waits == "ack" else 3600,
        )
        with kafka_clients.producer(servers) as producer:
            producer.send("orders", value=b"1").get(10)
        event = _until(lambda: subscriber.poll(1), 30)
        if waits == "close":
            subscriber.ack(event)
        with frozen(own):
            with signalled(lambda: "takes records; it is waited for, 35" in caplog.text), pytest.raises(Heard):
                subscriber.ack(event) if waits == "ack" else subscriber.close()
            subscriber.close()


def _in_time(subscriber: Subscriber, bound_s: float) -> Event | None:
    """A poll of a second, which comes back though nobody answers."""
    asked = time.monotonic()
    event = subscriber.poll(1)
    assert time.monotonic() - asked < bound_s
    return event


def test_names_a_deleted_topic_that_it_must_write_to(
    broker: LocalBroker, new_topic: Callable[..., str], unique_name: Callable[[str], str], client: Client
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    with (
        ThreadSequencer(servers, domain, [topic]),
        kafka_clients.producer(servers) as producer,
        kafka_clients.admin(servers) as admin,
    ):
        subscriber = Subscriber(
            [topic], id="s", domain=domain, bootstrap_servers=servers, outage_timeout_s=3, client=client
        )
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
