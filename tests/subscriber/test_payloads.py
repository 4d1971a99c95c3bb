"""Typed payloads are made when they are asked for: what cannot be read is delivered, and fails where it is handled."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.serialization import Deserializer, MessageField, SerializationContext
from run_faces import Face, rest, world_with
from sim_small import World, await_ready

from totalorder.errors import HandlerFailed, PayloadError, SettingsError
from totalorder.subscriber import Event, Lost, Reader, Retry, Subscriber, TypedEvent, payloads
from totalorder.subscriber.parked import Parked
from totalorder.subscriber.transport import Partition


@dataclass
class Order:
    amount: int


@dataclass
class Payment:
    cents: int


def event(value: bytes | None, topic: str = "orders") -> Event:
    return Event(topic, f"of-{topic}", "i", 0, 4, None, value, (("h", b"1"),), 5, 1, 3, {}, None, 1)


def payload(value: bytes | None, deserializer: Callable[[Event], Any], topic: str = "orders") -> Any:
    return TypedEvent.of(event(value, topic), deserializer).payload


def test_json_by_python() -> None:
    assert payload(b'{"a": [1, "\xc3\xa4"]}', payloads.json) == {"a": [1, "ä"]}
    assert payload(None, payloads.json) is None
    for value in (b"", b"{", b"\xff"):
        with pytest.raises(PayloadError, match=r"the payload of orders#1 \(of-orders\[0\]@4, g 3\) cannot be read: "):
            payload(value, payloads.json)


def test_json_of_a_type() -> None:
    read = payloads.msgspec(Order)
    assert payload(b'{"amount": 7}', read) == Order(7)
    for value, said in ((b'{"amount": "7"}', "Expected `int`"), (None, "got `null`"), (b"{", "truncated")):
        with pytest.raises(PayloadError, match=said):
            payload(value, read)


def test_json_of_a_type_for_each_topic() -> None:
    read = payloads.msgspec({"orders": Order, "payments": Payment | None})
    assert payload(b'{"amount": 7}', read) == Order(7)
    assert payload(b'{"cents": 7}', read, "payments") == Payment(7)
    assert payload(None, read, "payments") is None
    with pytest.raises(PayloadError, match="no type for the topic 'stock'"):
        payload(b"{}", read, "stock")


def test_deserializers_of_confluent_are_told_where_the_value_is_from() -> None:
    asked: list[object] = []

    class Own(Deserializer):
        def __call__(self, value: bytes | None, ctx: SerializationContext | None = None) -> Any:
            assert ctx is not None
            asked.append((value, ctx.topic, ctx.field, ctx.headers))
            return 7

    assert payload(b"v", payloads.confluent(Own())) == 7
    assert asked == [(b"v", "of-orders", MessageField.VALUE, [("h", b"1")])]


def test_a_registry_that_does_not_answer_is_named() -> None:
    """The HTTP clients' errors say what happened, and their request where; no password is told."""

    class Unanswered(Exception):
        request = SimpleNamespace(url="http://user:secret@registry.example:8081/schemas/ids/1?subject=s")

    def ask(value: bytes | None, context: SerializationContext) -> Any:
        raise Unanswered("timed out")

    with pytest.raises(PayloadError, match=r"the schema registry at registry\.example:8081 did not answer") as told:
        payload(b"v", payloads.confluent(ask))
    assert "Unanswered: timed out" in str(told.value)
    assert "secret" not in str(told.value)


def test_without_msgspec_it_is_named() -> None:
    code = (
        "import sys; sys.modules['msgspec'] = sys.modules['msgspec.json'] = None\n"
        "import totalorder as to\n"
        "try: to.payloads.msgspec(int)\n"
        "except to.EnvironmentProblem as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'totalorder[msgspec]'" in done.stdout


def test_a_payload_is_made_once_and_asked_for_again_when_it_failed() -> None:
    asked = 0

    def read(_: Event) -> Order:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionError("no registry")
        return Order(7)

    typed: TypedEvent[Order] = TypedEvent.of(event(b"v"), read)
    assert asked == 0
    with pytest.raises(PayloadError, match="ConnectionError: no registry") as told:
        _ = typed.payload
    assert isinstance(told.value.__cause__, ConnectionError)
    assert typed.payload is typed.payload
    assert asked == 2
    assert typed == event(b"v")


def reader_of(world: World, **settings: Any) -> Reader[Any]:
    return Reader(
        list("abc"), domain="d", transport=world.transport(), clock=lambda: world.now, until="now", **settings
    )


def poll(subscriber: Subscriber[TypedEvent[Any]]) -> list[TypedEvent[Any]]:
    return [found for _ in range(4) if (found := subscriber.poll(20)) is not None]


def batches(subscriber: Subscriber[TypedEvent[Any]]) -> list[TypedEvent[Any]]:
    events: list[TypedEvent[Any]] = []
    while batch := subscriber.poll_batch(4, 20):
        for part in batch.split(1):
            events += part
    return events


def numbers() -> World:
    world = world_with(0)
    for text in ("0", "1", "2", "3"):
        world.publish("a", text)
    return world


@pytest.mark.parametrize("take", [poll, batches])
def test_events_have_payloads_however_they_are_taken(take: Callable[..., list[TypedEvent[Any]]]) -> None:
    with numbers().subscriber("abc", deserializer=payloads.json) as subscriber:
        await_ready(subscriber, 4)
        events = take(subscriber)
        assert [found.payload for found in events] == [0, 1, 2, 3]
        subscriber.ack(events[-1])
        assert subscriber.position.g >= events[-1].g


def read_batches(reader: Reader[TypedEvent[Any]]) -> list[TypedEvent[Any]]:
    events: list[TypedEvent[Any]] = []
    while not reader.finished:
        events += reader.poll_batch(3)
    return events


def stamped() -> World:
    world = numbers()
    world.tick(1)
    return world


@pytest.mark.parametrize("take", [list, read_batches])
def test_a_reader_has_payloads_too(take: Callable[..., list[TypedEvent[Any]]]) -> None:
    with reader_of(stamped(), deserializer=payloads.json) as reader:
        assert [found.payload for found in take(reader)] == [0, 1, 2, 3]


def test_what_a_reader_is_told_of_a_loss_has_no_payload() -> None:
    world = stamped()
    with reader_of(world) as reader:
        beginning = next(reader).position.at(0)
    world.kafka.trim(Partition("a", 1), 1)
    with reader_of(world, deserializer=payloads.json, on_lost="skip", start=beginning) as reader:
        told = [found.payload if isinstance(found, TypedEvent) else type(found) for found in reader]
    assert told == [Lost, 1, 2, 3]


def test_an_async_subscriber_has_payloads_too() -> None:
    world = numbers()

    async def main() -> None:
        async with world.async_subscriber("abc", deserializer=payloads.json) as subscriber:
            first = await subscriber.poll(20)
            assert first is not None
            assert first.payload == 0
            batch = await subscriber.poll_batch(1, 20)
            assert [found.payload for found in batch] == [1]
            subscriber.stop()

    asyncio.run(main())


def test_without_a_deserializer_events_are_as_ever() -> None:
    with numbers().subscriber("abc") as subscriber:
        await_ready(subscriber, 4)
        assert {type(found) for found in [subscriber.poll(), *subscriber.poll_batch()]} == {Event}


@pytest.fixture(params=["run", "async run"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def damaged() -> World:
    world = world_with(0)
    for text in ("0", "damaged", "2"):
        world.publish("a", text)
    return world


def test_one_that_cannot_be_read_ends_run_where_it_is(face: Face) -> None:
    world, seen = damaged(), list[Any]()
    with pytest.raises(HandlerFailed, match=r"a#2 .*PayloadError: the payload of a#2 .*JSONDecodeError"):
        face.run(world, lambda _, found: seen.append(found.payload), settings={"deserializer": payloads.json})
    assert seen == [0]
    assert [found.value for found in rest(world)] == [b"damaged", b"2"]


def test_one_that_cannot_be_read_is_parked_with_its_bytes(face: Face) -> None:
    world, seen = damaged(), list[Any]()
    world.kafka.create("s.parked", 1)
    world.kafka.policies["s.parked"] = "compact"

    def handle(subscriber: Any, found: TypedEvent[Any]) -> None:
        seen.append(found.payload)
        if len(seen) == 2:
            subscriber.stop()

    settings = {"deserializer": payloads.json}
    face.run(world, handle, settings=settings, retry=Retry(times=1), park="s.parked")
    assert seen == [0, 2]
    (record,) = world.kafka.ever(Partition("s.parked", 0))
    parked = Parked.read(record)
    assert (parked.value, parked.about.attempts, parked.about.n) == (b"damaged", 2, 2)


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"deserializer is 'json'.*function of an Event"):
        World().subscriber("abc", deserializer="json")
    with pytest.raises(SettingsError, match=r"deserializer is 'json'.*function of an Event"):
        reader_of(World(), deserializer="json")
