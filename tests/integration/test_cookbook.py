"""The scripts of docs/cookbook, as processes on a real broker; one is killed now and then."""

import json
import random
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from kafka import KafkaProducer
from schema_registry import SchemaRegistry
from sim_kafka_sequencer import ThreadSequencer
from waiting import wait_until

import totalorder as to
from totalorder import kafka_clients
from totalorder.broker import LocalBroker

pytestmark = pytest.mark.broker
SHOP = ("customers", "orders", "prices", "discounts", "invoices")
COOKBOOK = Path(__file__).parents[2] / "docs/cookbook"
NewTopic = Callable[..., str]


@pytest.fixture(scope="module")
def own() -> Iterator[LocalBroker]:
    """A broker of its own, as the scripts' topics and domains have names of their own."""
    with LocalBroker() as running:
        with kafka_clients.admin(running.bootstrap_servers) as admin:
            topics = ("payments", "tickets", *SHOP)
            admin.create_topics({name: {"num_partitions": 2} for name in topics})
            admin.wait_for_topics(list(topics))
        yield running


@pytest.fixture(scope="module")
def shop_servers(own: LocalBroker) -> Iterator[str]:
    """Where the domain shop has its sequencer."""
    with ThreadSequencer(own.bootstrap_servers, "shop", list(SHOP)):
        yield own.bootstrap_servers


@contextmanager
def running(script: str, *given: object, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, str(COOKBOOK / script), *map(str, given)], stdout=stdout)
    try:
        yield process
    finally:
        process.terminate()
        try:
            assert process.wait(30) in (0, -9)
        finally:
            process.kill()
            process.wait(30)


def asked(path: Path, question: str) -> list[Any]:
    """What a database that others write to says; nothing before there is a table. It is not made by asking."""
    where = f"{path.as_uri()}?mode=ro"
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(where, uri=True)) as database:
        return database.execute(question).fetchall()
    return []


def send(producer: KafkaProducer, topic: str, key: str, **value: object) -> None:
    producer.send(topic, key=key.encode(), value=json.dumps(value).encode())


def subscribed(path: Path) -> None:
    wait_until(lambda: asked(path, "SELECT 1 FROM totalorder_positions") != [], "the script subscribes")


def test_balances_are_right_though_the_process_is_killed(own: LocalBroker, tmp_path: Path) -> None:
    path, servers, rng = tmp_path / "balances.db", own.bootstrap_servers, random.Random(1)
    sums = dict.fromkeys(("ann", "bob"), 0)

    def seen() -> dict[str, int]:
        return dict(asked(path, "SELECT account, balance FROM balances"))

    with ThreadSequencer(servers, "bank", ["payments"]), kafka_clients.producer(servers) as producer:
        for _ in range(2):
            with running("effects_once.py", path, servers) as process:
                subscribed(path)
                before = seen()
                for _ in range(200):
                    account, amount = rng.choice(("ann", "bob")), rng.randint(1, 9)
                    sums[account] += amount
                    send(producer, "payments", account, account=account, amount=amount)
                producer.flush(30)
                wait_until(lambda before=before: seen() != before, "it handles some")  # type: ignore[misc]
                process.kill()
        with running("effects_once.py", path, servers):
            wait_until(lambda: sum(seen().values()) >= sum(sums.values()), "all is handled")
    assert seen() == sums


def test_no_order_comes_before_its_customer_and_replicas_agree(shop_servers: str, tmp_path: Path) -> None:
    servers, shop = shop_servers, tmp_path / "shop.db"
    replicas = [tmp_path / f"{name}.db" for name in ("one", "two", "late")]
    with (
        ExitStack() as joined,
        kafka_clients.producer(servers) as producer,
        running("parent_and_child.py", shop, servers) as process,
        running("two_replicas.py", "one", replicas[0], servers),
        running("two_replicas.py", "two", replicas[1], servers),
    ):
        for path in (shop, *replicas[:2]):
            subscribed(path)
        for number in range(50):
            if number == 25:
                wait_until(lambda: asked(replicas[0], "SELECT 1 FROM state") != [], "there is something to copy")
                joined.enter_context(running("late_joiner.py", replicas[0], "late", replicas[2], servers))
            send(producer, "customers", str(number), id=number, name=f"customer {number}")
            producer.flush(30)
            send(producer, "orders", str(number), id=number, customer=number)
            for topic in ("prices", "discounts"):
                send(producer, topic, str(number % 5), number=number)
        producer.flush(30)
        send(producer, "prices", "last", number=-1)
        producer.flush(30)
        wait_until(lambda: asked(shop, "SELECT count(*) FROM orders") == [(50,)], "all orders are there")
        last = "SELECT 1 FROM state WHERE key = CAST('last' AS BLOB)"
        wait_until(lambda: all(asked(path, last) for path in replicas), "the replicas have the last price", bound_s=60)
        assert process.poll() is None
    states = [
        asked(path, "SELECT * FROM state ORDER BY key") + asked(path, "SELECT * FROM history") for path in replicas
    ]
    assert states[0] == states[1] == states[2]
    assert len(states[0]) == 7


def test_an_incident_is_replayed_between_two_places(shop_servers: str) -> None:
    settings: dict[str, Any] = {"domain": "shop", "bootstrap_servers": shop_servers}
    with (
        kafka_clients.producer(shop_servers) as producer,
        to.Reader(["customers", "orders"], start="now", **settings) as reader,
    ):
        for number in range(30):
            send(producer, "customers", "1", id=number % 3, name="a customer")
            producer.flush(30)
            send(producer, "orders", "1", id=number, customer=number % 3)
            producer.flush(30)
        events = [reader.poll(30) for _ in range(60)]
    places = [str(event.position) for event in events if event is not None]
    command = [sys.executable, str(COOKBOOK / "incident.py"), places[9], places[49], shop_servers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["at"] for line in told] == places[10:50]
    orders = [line for line in told if line["topic"] == "orders"]
    assert [line["orders"] for line in orders] == [at // 3 + 1 for at in range(20)]


def test_a_new_version_takes_over_and_the_old_one_ends(own: LocalBroker, tmp_path: Path) -> None:
    path, servers = tmp_path / "desk.db", own.bootstrap_servers

    def done() -> list[tuple[str, str]]:
        return asked(path, "SELECT value, version FROM done ORDER BY rowid")

    with (
        ThreadSequencer(servers, "desk", ["tickets"]),
        kafka_clients.producer(servers) as producer,
        running("new_version.py", "v1", path, servers) as old,
    ):
        subscribed(path)
        for number in range(60):
            producer.send("tickets", value=b"%d" % number, partition=0)
        producer.flush(30)
        wait_until(lambda: done() != [], "the old version handles some")
        with running("new_version.py", "v2", path, servers):
            wait_until(lambda: old.poll() is not None, "the old version ends", bound_s=60)
            assert old.returncode == 0
            producer.send("tickets", value=b"60", partition=0)
            producer.flush(30)
            wait_until(lambda: len(done()) > 60, "all is handled", bound_s=60)
    assert [value for value, _ in done()] == [str(number) for number in range(61)]
    assert [version for version, _ in groupby(done(), lambda row: row[1])] == ["v1", "v2"]


def test_an_asyncio_service_answers_what_it_has_followed(shop_servers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def answered(good: str) -> str:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 30) as asking:
            asking.sendall(f"{good}\n".encode())
            return asking.makefile().readline()
        return ""

    with kafka_clients.producer(shop_servers) as producer:
        send(producer, "prices", "apple", number=3)
        producer.flush(30)
        with running("asyncio_service.py", port, shop_servers):
            wait_until(lambda: answered("apple") not in ("", "not yet\n"), "the service has caught up", bound_s=60)
            assert answered("apple") == "3\n"
            assert answered("pear") == "None\n"
            send(producer, "prices", "apple", number=4)
            producer.flush(30)
            wait_until(lambda: answered("apple") == "4\n", "it goes on")


def test_invoices_of_two_schemas_are_read_by_one(shop_servers: str) -> None:
    names = {"id": "long"}, {"id": "long", "currency": "string"}
    schemas = [
        {"type": "record", "name": "Invoice", "fields": [{"name": name, "type": type_} for name, type_ in each.items()]}
        for each in names
    ]
    context = SerializationContext("invoices", MessageField.VALUE, [])
    with SchemaRegistry() as registry, kafka_clients.producer(shop_servers) as producer:
        client = SchemaRegistryClient({"url": registry.url})
        old, new = (AvroSerializer(client, json.dumps(schema)) for schema in schemas)
        for value in (old({"id": 1}, context), new({"id": 2, "currency": "SEK"}, context), old({"id": 3}, context)):
            producer.send("invoices", value=value, partition=0)
        producer.flush(30)
        with running("avro_invoices.py", registry.url, shop_servers, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            with process.stdout as said:
                told = [json.loads(said.readline()) for _ in range(3)]
    assert told == [{"id": 1, "currency": "EUR"}, {"id": 2, "currency": "SEK"}, {"id": 3, "currency": "EUR"}]
