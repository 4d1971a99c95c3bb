"""The Reader on a real broker, with both clients, and its command; the sequencer is a thread without Spark."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaProducer
from sim_kafka_sequencer import ThreadSequencer

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.cli.app import main
from totalorder.errors import Error
from totalorder.subscriber import Event, Reader, Subscriber
from totalorder.subscriber.clients import CLIENTS

pytestmark = pytest.mark.broker


def publish(producer: KafkaProducer, topics: list[str], count: int) -> None:
    for number in range(count):
        producer.send(topics[number % len(topics)], value=b"%d" % number, partition=number // 2 % 2)
    producer.flush(10)


def said(events: list[Any]) -> list[tuple[Any, ...]]:
    return [(e.g, e.n, e.topic, e.topic_id, e.partition, e.offset, e.value, e.timestamp_ms, e.position) for e in events]


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(["read", *args])
    captured = capsys.readouterr()
    return int(done.value.code or 0), captured.out, captured.err


def test_a_reader_and_its_command_give_what_a_subscriber_got(
    broker: LocalBroker,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    topics, domain = [new_topic(stem, partitions=2) for stem in "abc"], unique_name("domain")
    servers = broker.bootstrap_servers
    events: list[Event] = []
    with kafka_clients.producer(servers) as producer:
        publish(producer, topics, 60)
        with (
            ThreadSequencer(servers, domain, topics),
            Subscriber(topics, id="s", domain=domain, bootstrap_servers=servers) as subscriber,
            Reader(topics[:2], domain=domain, bootstrap_servers=servers, start="now", client="confluent") as follows,
        ):
            history = subscriber.granted_g
            publish(producer, topics, 240)
            while len(events) < 240:
                event = subscriber.poll(30)
                assert event is not None, f"{len(events)} of 240 came"
                events.append(event)
            live = [follows.poll(30) for _ in range(160)]
            assert said(live) == said([event for event in events if event.topic in topics[:2]])
            behind = [event for event in events[100:] if event.topic in topics[1:]]
            for client in CLIENTS:
                place: dict[str, Any] = {"start": events[99].position, "client": client}
                with Subscriber(topics[1:], id=client, domain=domain, bootstrap_servers=servers, **place) as late:
                    assert said([late.poll(30) for _ in behind]) == said(behind)
    # The job is down.
    for client in CLIENTS:
        settings: dict[str, Any] = {"domain": domain, "bootstrap_servers": servers, "client": client}
        with Reader(topics, until="now", **settings) as reader:
            everything = list(reader)
        assert said([event for event in everything if event.g > history]) == said(events)
        assert [event.n for event in everything if event.topic == topics[1]] == list(range(1, 101))
        with Reader(topics[:1], start=events[99].position, until=events[200].position, **settings) as reader:
            part = [event for event in events[100:201] if event.topic == topics[0]]
            assert said(list(reader)) == said(part)
    where = ("--domain", domain, "-b", servers)
    code, out, err = run(capsys, *topics, "--start", str(events[9].position), "--max", "5", "--json", *where)
    assert (code, [json.loads(line)["g"] for line in out.splitlines()]) == (0, [event.g for event in events[10:15]])
    assert json.loads(err) == {"position": str(events[14].position)}
    code, out, err = run(capsys, "--pattern", topics[2], "--start", str(events[236].position), *where)
    last = [event for event in events[237:] if event.topic == topics[2]]
    assert [line.split()[:2] for line in out.splitlines()] == [[str(e.g), f"{topics[2]}#{e.n}"] for e in last]
    assert err == f"read through {last[-1].position}\n"


def test_bad_input_is_told(
    broker: LocalBroker, unique_name: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--domain", unique_name("domain"), "-b", broker.bootstrap_servers)
    code, _, err = run(capsys, "a", *where)
    assert code == 1
    assert f"there is no domain {where[1]!r} on this broker: it has no topic {where[1]}.stamps" in err
    assert "--start 'yesterday' is unknown" in run(capsys, "a", "--start", "yesterday", *where)[2]
    assert "is no position" in run(capsys, "a", "--start", "a/b/c/d", *where)[2]
    assert "--follow has no end" in run(capsys, "a", "--follow", "--until", "2026-01-01", *where)[2]
    assert run(capsys, *where)[0] == 2
    with pytest.raises(Error, match="there is no domain"):
        Reader(["a"], domain="nobody", bootstrap_servers=broker.bootstrap_servers)
