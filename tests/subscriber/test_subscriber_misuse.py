"""What a programmer can do wrong: each is told by its name, in place, and as an error of totalorder's."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from forked import in_a_fork
from sim_kafka import SimTransport
from sim_small import World, take
from two_threads import within

from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.subscriber import Subscriber
from totalorder.subscriber.clients import CLIENTS, Client
from totalorder.subscriber.guard import Guard

NAN = float("nan")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lease_s": 1.5}, "lease_s = 1.5 is no whole number"),
        ({"lease_s": True}, "lease_s = True is no whole number"),
        ({"lease_s": "60"}, "lease_s = '60' is no whole number"),
        ({"lease_s": -1}, "lease_s = -1 is not 0 (never ends) to"),
        ({"lease_s": 1 << 40}, "is not 0 (never ends) to"),
        ({"max_buffered": 0}, "max_buffered = 0 must be at least 1"),
        ({"max_buffered": 1.0}, "max_buffered = 1.0 is no whole number"),
        ({"start_timeout_s": 0}, "start_timeout_s = 0 must be more than 0"),
        ({"start_timeout_s": NAN}, "start_timeout_s = nan must be more than 0"),
        ({"start_timeout_s": "1"}, "start_timeout_s = '1' is no number"),
        ({"start_timeout_s": None}, "start_timeout_s = None is no number"),
        ({"outage_timeout_s": 0.0}, "outage_timeout_s = 0.0 must be more than 0"),
        ({"outage_timeout_s": True}, "outage_timeout_s = True is no number"),
        ({"save_interval_s": -0.5}, "save_interval_s = -0.5 must be at least 0"),
        ({"id": None}, "subscriber id None is not usable"),
        ({"domain": None}, "domain None is not a usable name"),
        ({"topics": None}, "a Subscriber wants topics or a pattern"),
        ({"topics": "orders"}, "topics is 'orders'"),
        ({"topics": ["a", None]}, "None cannot name a topic"),
        ({"topics": []}, "0 topics"),
        ({"start": "then"}, "start = 'then' is unknown"),
        ({"on_lost": None}, "on_lost = None is unknown"),
        ({"bootstrap_servers": ["localhost:9092"]}, "bootstrap_servers is ['localhost:9092'], and no text"),
        ({"bootstrap_servers": None}, "bootstrap_servers is None, and no text"),
        ({"bootstrap_servers": "http://localhost:9092"}, "'http://localhost:9092' is not HOST:PORT"),
        ({"positions": "shop.db"}, "positions is 'shop.db'. Give a store"),
        ({"on_granted": 5}, "on_granted is 5"),
        ({"on_change": "print"}, "on_change is 'print'"),
        ({"on_stalled": ()}, "on_stalled is ()"),
        ({"kafka": ["security.protocol=SSL"]}, "kafka is ['security.protocol=SSL'], and no table"),
        ({"kafka": {"security.protocol": "SASL-SSL"}}, "kafka.security.protocol='SASL-SSL' is not known here"),
    ],
)
@pytest.mark.parametrize("client", CLIENTS)
def test_settings_are_refused_by_name_before_anything_is_asked(
    settings: dict[str, Any], said: str, client: Client
) -> None:
    given: dict[str, Any] = {"topics": ["a"], "id": "s", "domain": "d", "bootstrap_servers": "127.0.0.1:1"}
    given["client"] = client
    with pytest.raises(SettingsError) as told:
        Subscriber(**given | settings)
    assert said in str(told.value)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_start_without_a_broker_takes_no_longer_than_told(client: Client) -> None:
    times: dict[str, Any] = {"start_timeout_s": 0.2, "outage_timeout_s": 3}
    with pytest.raises(BrokerUnavailable, match=r"could be used within 0\.2 s"):
        Subscriber(["a"], id="s", domain="d", bootstrap_servers="127.0.0.1:1", client=client, **times)


@pytest.mark.parametrize("given", [None, "orders", 7])
def test_only_events_are_acknowledged(given: Any) -> None:
    world = World()
    subscriber = world.subscriber("a")
    with pytest.raises(Error, match=r"ack\(\) takes an event or a batch that .* gave, and not"):
        subscriber.ack(given)
    world.publish("a")
    take(subscriber, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda subscriber: subscriber.poll(0),
        next,
        lambda subscriber: subscriber.subscribe(["b"]),
        lambda subscriber: subscriber.unsubscribe(),
        lambda subscriber: subscriber.save(),
        lambda subscriber: subscriber.close(),
    ],
)
def test_a_second_thread_is_told_which_rule_it_breaks(call: Callable[[Subscriber], object]) -> None:
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport)
    with within(subscriber.poll, transport), pytest.raises(Error, match=r"two threads .*at once.*only stop"):
        call(subscriber)
    transport.on_poll = world.tick
    world.publish("a")
    take(subscriber, 1)
    subscriber.close()
    assert transport.closed


def test_a_signal_handler_is_told_which_rule_it_breaks() -> None:
    """It runs in the thread that polls, in the middle of that."""
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport)
    transport.on_poll = lambda _: subscriber.close()
    with pytest.raises(Error, match=r"in the middle of another call.*only stop"):
        subscriber.poll(0)
    transport.on_poll = world.tick
    world.publish("a")
    take(subscriber, 1)


def test_a_setting_that_cannot_be_ends_a_subscriber_only_where_something_was_touched() -> None:
    guard, error = Guard("Subscriber", goes_on=""), SettingsError("it cannot be", remedy="")
    with pytest.raises(SettingsError), guard, guard.sparing():
        raise error
    assert guard.failure is None
    with pytest.raises(SettingsError), guard:
        raise error
    assert guard.failure is error, "also the one that was spared"


@pytest.mark.parametrize("timeout_s", [NAN, None, "1"])
def test_a_time_to_wait_is_a_number(timeout_s: Any) -> None:
    subscriber = World().subscriber("a")
    for call in (subscriber.poll, lambda given: subscriber.poll_batch(1, given)):
        with pytest.raises(SettingsError, match=r"timeout_s = .* is no number"):
            call(timeout_s)
    assert subscriber.poll(-1) is None


def test_in_a_fork_of_its_process_a_subscriber_is_refused_and_close_leaves_kafka_alone() -> None:
    """Its connections are the other process's, and the threads of a client are not there to end."""
    world = World()
    subscriber = world.subscriber("a")
    world.publish("a")
    transport = subscriber._session._transport
    assert isinstance(transport, SimTransport)

    def tried() -> str:
        before, said = list(transport.sent), []
        for call in (subscriber.poll, subscriber.save, lambda: subscriber.subscribe(["b"]), subscriber.unsubscribe):
            try:
                call()
            except Error as error:
                said.append(error.what)
        subscriber.close()
        assert not transport.closed
        assert transport.sent == before
        return " ".join(said)

    said = in_a_fork(tried)
    assert said.count(f"a Subscriber of process {os.getpid()} was called in process ") == 4
    assert [event.value for event in take(subscriber, 1)] == [b"a1"]
    subscriber.close()
    assert transport.closed
