"""All ways to take events, by both clients, on a real broker: each gives the one order, through a restart."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaProducer, TopicPartition
from sim_kafka_sequencer import ThreadSequencer
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.cli.app import main
from totalorder.subscriber import AsyncSubscriber, Event, Subscriber
from totalorder.subscriber.clients import Client

pytestmark = pytest.mark.broker
EACH = 6
ROOT = Path(__file__).parents[2]
BOUND_S = 60


@pytest.fixture(scope="module")
def domain(broker: LocalBroker, kafka_admin: Any) -> Iterator[str]:
    """A domain of the topics `faces-a` and `faces-b`, two partitions each."""
    kafka_admin.create_topics({name: {"num_partitions": 2} for name in ("faces-a", "faces-b")})
    kafka_admin.wait_for_topics(["faces-a", "faces-b"])
    with ThreadSequencer(broker.bootstrap_servers, "faces", ["faces-a", "faces-b"]):
        yield "faces"


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


# --- one life: takes so many events, and acknowledges them ------------------------------------------------------------


def iterator(subscriber: Subscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []
    for event in subscriber:
        events.append(event)
        subscriber.ack(event)
        if len(events) == count:
            break
    return events


def poll(subscriber: Subscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        event = subscriber.poll(BOUND_S)
        assert event is not None
        events.append(event)
        subscriber.ack(event)
    return events


def poll_batch(subscriber: Subscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []
    while len(events) < count:
        batch = subscriber.poll_batch(count - len(events), BOUND_S)
        assert batch
        events += batch
        subscriber.ack(batch)
    return events


def run(subscriber: Subscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []

    def handle(event: Event) -> None:
        events.append(event)
        if len(events) == count:
            subscriber.stop()

    subscriber.run(handle)
    return events


async def async_for(subscriber: AsyncSubscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []
    async for event in subscriber:
        events.append(event)
        await subscriber.ack(event)
        if len(events) == count:
            break
    return events


async def async_poll_batch(subscriber: AsyncSubscriber[Event], count: int) -> list[Event]:
    """Each second call is cancelled, wherever it is."""
    events: list[Event] = []
    while len(events) < count:
        call = asyncio.ensure_future(subscriber.poll_batch(count - len(events), BOUND_S))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        batch = await subscriber.poll_batch(3, BOUND_S) if call.cancelled() else call.result()
        if len(batch) > count - len(events):
            batch, _ = batch.split(count - len(events))
        events += batch
        await subscriber.ack(batch)
    return events


async def async_run(subscriber: AsyncSubscriber[Event], count: int) -> list[Event]:
    events: list[Event] = []

    async def handle(event: Event) -> None:
        events.append(event)
        if len(events) == count:
            subscriber.stop()

    await subscriber.run(handle)
    return events


def life(take: Any, settings: dict[str, Any], count: int, begun: Callable[[], None] = lambda: None) -> list[Event]:
    topics = ["faces-a", "faces-b"]
    if not asyncio.iscoroutinefunction(take):
        with Subscriber(topics, **settings) as subscriber:
            begun()
            return take(subscriber, count)  # type: ignore[no-any-return]

    async def main() -> list[Event]:
        async with AsyncSubscriber(topics, **settings) as subscriber:
            begun()
            return await take(subscriber, count)  # type: ignore[no-any-return]

    return asyncio.run(asyncio.wait_for(main(), 2 * BOUND_S))


def test_every_face_goes_on_with_the_one_order_where_another_one_was(
    broker: LocalBroker, producer: KafkaProducer, domain: str, client: Client
) -> None:
    """One subscriber id, whose processes take events each in its own way."""
    faces = (iterator, async_for, poll, async_poll_batch, poll_batch, async_run, run)
    settings: dict[str, Any] = {
        "id": f"faces-{client}",
        "domain": domain,
        "bootstrap_servers": broker.bootstrap_servers,
        "client": client,
    }

    def publish(first: int) -> None:
        for number in range(first, first + EACH):
            producer.send(f"faces-{'ab'[number % 2]}", value=f"{client} {number}".encode())
        producer.flush(10)

    events = life(faces[0], settings, EACH, lambda: publish(0))
    for take in faces[1:]:
        publish(len(events))
        before = len(events)
        events += life(take, settings, EACH)
        assert len(events) == before + EACH, take.__name__
        assert [event.g for event in events] == sorted({event.g for event in events}), take.__name__
    assert {event.value for event in events} == {f"{client} {number}".encode() for number in range(len(events))}


def of_readme(word: str, domain: str, servers: str) -> subprocess.Popen[str]:
    """Runs the example that has this word, on the topics and in the domain of these tests."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if word in block)
    code = code.replace('"orders"', '"faces-a"').replace('"payments"', '"faces-b"')
    code = code.replace('domain="shop"', f'domain="{domain}", bootstrap_servers="{servers}"')
    grants = TopicPartition(f"{domain}.grants", 0)
    with kafka_clients.consumer(servers) as consumer:
        before = consumer.end_offsets([grants])[grants]
        process = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, text=True)
        wait_until(
            lambda: consumer.end_offsets([grants])[grants] > before or process.poll() is not None,
            "the example subscribes",
            bound_s=BOUND_S,
        )
    return process


def said_until(process: subprocess.Popen[str], number: signal.Signals, lines: int) -> list[str]:
    """What it prints; ended by a signal."""
    assert process.stdout is not None
    with process.stdout as stdout:
        try:
            said = [stdout.readline() for _ in range(lines)]
            process.send_signal(number)
            process.wait(BOUND_S)
        finally:
            process.kill()
            process.wait(BOUND_S)
    return said


def test_the_readme_s_asyncio_example(broker: LocalBroker, producer: KafkaProducer, domain: str) -> None:
    process = of_readme("AsyncSubscriber", domain, broker.bootstrap_servers)
    producer.send("faces-b", value=b"seen")
    producer.flush(10)
    (said,) = said_until(process, signal.SIGINT, 1)
    assert re.fullmatch(r"\d+ faces-b b'seen'\n", said)
    assert process.returncode != 0  # KeyboardInterrupt, as of any program


def test_the_readme_s_example_of_run(
    broker: LocalBroker,
    producer: KafkaProducer,
    domain: str,
    capsys: pytest.CaptureFixture[str],
    kafka_admin: Any,
) -> None:
    kafka_admin.create_topics({"mailer.parked": {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}}})
    kafka_admin.wait_for_topics(["mailer.parked"])
    process = of_readme("subscriber.run", domain, broker.bootstrap_servers)
    for value in (b'{"amount": 7}', b"damaged", b'{"amount": 8}'):
        producer.send("faces-a", value=value, partition=0)
    producer.flush(10)
    said = said_until(process, signal.SIGTERM, 2)
    assert process.returncode == 0
    assert [line.split()[1:] for line in said] == [["faces-a", "7"], ["faces-a", "8"]]
    with pytest.raises(SystemExit):
        main(["parked", "list", "mailer.parked", "--bootstrap-servers", broker.bootstrap_servers])
    assert re.search(r"faces-a#\d+ .*attempt 6: PayloadError: .*JSONDecodeError", capsys.readouterr().out)


def test_a_parked_event_comes_back(
    broker: LocalBroker,
    producer: KafkaProducer,
    domain: str,
    client: Client,
    unique_name: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With all that it had, as a new event; what it was is acknowledged."""
    parking, servers = unique_name("parked"), broker.bootstrap_servers

    def parked(*words: str) -> str:
        with pytest.raises(SystemExit) as done:
            main(["parked", words[0], parking, *words[1:], "--bootstrap-servers", servers])
        captured = capsys.readouterr()
        said = f"nothing is parked on {parking}\n" if words == ("list",) and not captured.out else ""
        assert (done.value.code or 0, captured.err) == (0, said)
        return captured.out

    parked("create")
    seen: list[tuple[Any, ...]] = []

    def handle(event: Event) -> None:
        seen.append((event.key, event.value, event.headers))
        if len(seen) == 1:
            raise ValueError("not today")
        subscriber.stop()

    headers: list[Any] = [("trace", b"7"), ("none", None), ("trace", b"\xff")]
    settings: dict[str, Any] = {"id": f"parking-{client}", "domain": domain, "bootstrap_servers": servers}
    with Subscriber(["faces-a"], client=client, **settings) as subscriber:
        other = Producer({"bootstrap.servers": servers})  # kafka-python writes no header that is null
        other.produce("faces-a", None, b"k", 1, headers=headers)
        assert other.flush(30) == 0
        producer.send("faces-a", value=b"last", partition=0)
        producer.flush(10)
        subscriber.run(handle, park=parking)
    lies = json.loads(parked("list", "--json"))
    assert (lies["error"], lies["attempts"], lies["value"]) == ("ValueError: not today", 1, None)
    assert "a new event" in parked("replay", lies["at"], "--client", "confluent")
    assert parked("list") == ""
    with Subscriber(["faces-a"], client=client, **settings) as subscriber:
        again = subscriber.poll(BOUND_S)
        assert again is not None
        assert (again.key, again.value, again.headers) == (b"k", None, tuple(headers)) == seen[0]
        assert (again.partition, again.tag) == (1, None)
        assert again.g > lies["g"]
