"""The command line as a user meets it: in a process of its own."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from totalorder.broker import LocalBroker

NOWHERE = "127.0.0.1:1"


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "totalorder.cli", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topics", "--nope"], "No such option"),
        (["nope"], "No such command"),
        (["topics", "--create", "orders:none"], "not NAME or NAME:PARTITIONS"),
        (["topics", "--kafka", "group.id=x"], "kafka.group.id cannot be set"),
        (["topics", "--kafka", "securty.protocol=SSL"], "Did you mean kafka.security.protocol?"),
        (["topics", "--kafka", "nonsense"], "is not KEY=VALUE"),
        (["topics", "--bootstrap-servers", "nonsense"], "is not HOST:PORT"),
        (["publish", "orders", "/no/such/file"], "/no/such/file cannot be read"),
        (["publish", "orders", "--header", "nonsense"], "is not NAME=VALUE"),
        (["publish", "orders", "--key", "k", "--key-separator", ":"], "exclude each other"),
        (["broker", "--port", "70000"], "less than or equal to 65535"),
    ],
)
def test_wrong_usage_is_a_message_and_exit_code_2(words: list[str], message: str) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_missing_extra_is_named(tmp_path: Path) -> None:
    hidden = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None; from totalorder.cli.app import main; main()"
    )
    words = ["sequence", "--topics", "orders", "--checkpoint-dir", str(tmp_path / "state"), "-b", NOWHERE]
    done = subprocess.run(
        [sys.executable, "-c", hidden, *words], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "pip install 'totalorder[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("starting Spark for domain totalorder"), "said before Spark is even loaded"


def test_absent_broker_is_a_message_and_exit_code_1() -> None:
    done = run("topics", "--bootstrap-servers", NOWHERE)
    assert done.returncode == 1
    assert f"No Kafka broker at {NOWHERE} could be used" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.broker
def test_port_in_use_is_a_message_and_exit_code_1(broker: LocalBroker) -> None:
    done = run("broker", "--port", str(broker.port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"totalorder: Port {broker.port} on 127.0.0.1 is in use.")


@pytest.mark.broker
def test_publish_lines_and_list_topics(broker: LocalBroker, unique_name: Callable[[str], str]) -> None:
    topic, servers = unique_name("lines"), ["--bootstrap-servers", broker.bootstrap_servers]
    created = run("topics", "--create", f"{topic}:2", *servers)
    assert (created.returncode, created.stderr) == (0, "")
    published = run("publish", topic, "--key", "k", "-H", "a=1", "-H", "a=2", *servers, stdin="first\n\nä\r\nlast")
    assert (published.returncode, published.stdout) == (0, f"Published 4 events to {topic}.\n"), published.stderr
    listed = run("topics", "--json", *servers)
    described = {entry["name"]: entry for entry in map(json.loads, listed.stdout.splitlines())}[topic]
    assert (described["partitions"], sum(described["end_offsets"]), described["cleanup_policy"]) == (2, 4, "delete")
    records = read_all(broker, topic)
    assert [record.value for record in records] == [b"first", b"", "ä".encode(), b"last"]
    assert {record.key for record in records} == {b"k"}
    assert records[0].headers == [("a", b"1"), ("a", b"2")]


@pytest.mark.broker
def test_publish_a_file_with_keys(broker: LocalBroker, new_topic: Callable[[str], str], tmp_path: Path) -> None:
    topic = new_topic("keyed")
    file = tmp_path / "events"
    file.write_bytes(b"a:1\nb:x:y\n:empty key\n")
    done = run("publish", topic, str(file), "--key-separator", ":", "-b", broker.bootstrap_servers, "--json")
    assert json.loads(done.stdout) == {"topic": topic, "published": 3}
    assert [(r.key, r.value) for r in read_all(broker, topic)] == [(b"a", b"1"), (b"b", b"x:y"), (b"", b"empty key")]


@pytest.mark.broker
@pytest.mark.parametrize(
    ("stdin", "words", "message"),
    [
        ("x" * 2_000_000, [], "MessageSizeTooLargeError"),
        ("a:1\nb\n", ["--key-separator", ":"], "Line 2 has no ':'"),
    ],
)
def test_refused_line_is_named(
    broker: LocalBroker, new_topic: Callable[[str], str], stdin: str, words: list[str], message: str
) -> None:
    done = run("publish", new_topic("refused"), *words, "-b", broker.bootstrap_servers, stdin=stdin)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.broker
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["publish", "not-there"], "There is no topic 'not-there'. Create it: totalorder topics --create not-there"),
        (["topics", "--create", "bad name"], "Topic name is invalid"),
    ],
)
def test_what_the_broker_cannot_do(broker: LocalBroker, words: list[str], message: str) -> None:
    done = run(*words, "-b", broker.bootstrap_servers)
    assert done.returncode == 1
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def read_all(broker: LocalBroker, topic: str) -> list[Any]:
    from kafka import TopicPartition

    from totalorder import kafka_clients

    consumer = kafka_clients.consumer(broker.bootstrap_servers, consumer_timeout_ms=20_000)
    places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    left = sum(consumer.end_offsets(places).values())
    records = [record for _, record in zip(range(left), consumer, strict=False)]
    consumer.close()
    return records
