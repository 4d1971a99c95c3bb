"""`totalorder subscribe` and `totalorder inspect` on a real broker."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from kafka import KafkaProducer, TopicPartition
from sim_kafka_sequencer import ThreadSequencer

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.cli.app import main

pytestmark = pytest.mark.broker


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line; its exit code, output and errors."""

    def call(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(args)
        captured = capsys.readouterr()
        return int(done.value.code or 0), captured.out, captured.err

    return call


def test_subscribe_and_inspect(
    broker: LocalBroker,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    run: Callable[..., tuple[int, str, str]],
) -> None:
    topic, domain, servers = new_topic("orders"), unique_name("domain"), broker.bootstrap_servers
    where = ("--domain", domain, "--bootstrap-servers", servers)
    with ThreadSequencer(servers, domain, [topic], partitions=1):
        assert run("subscribe", topic, "--id", "s", "--timeout", "0", *where) == (0, "", "subscribed at g 1\n")
        with kafka_clients.producer(servers) as producer:
            publish(producer, topic)
        code, out, err = run("subscribe", topic, "--id", "s", "--max", "2", *where)
        assert (code, err) == (0, "subscribed at g 5, going on after g 1\n")
        assert [line.split()[1:4] for line in out.splitlines()] == [
            [f"{topic}#1", f"{topic}[0]@0", "one"],
            [f"{topic}#2", f"{topic}[0]@1", "k:"],
        ]
        assert r"\x1b[31mtwo" in out
        last = ("--json", "--max", "1", "--end", "--no-receipts", "--client", "confluent")
        code, out, _ = run("subscribe", topic, "--id", "s", *last, *where)
        event = json.loads(out)
        assert (event["n"], event["value"], event["key_base64"], event["tag"]) == (3, None, "/w==", None)
        assert event["headers"] == [{"name": "h", "value": "x"}]
        assert receipts_end(servers, domain) == 2
        code, out, _ = run("inspect", *where)
        assert code == 0
        assert f"{topic}#3" in out
        assert "complete through g" in out
        code, out, _ = run("inspect", "--json", *where)
        stamps = [stamp for line in out.splitlines() for stamp in json.loads(line)["stamps"]]
        assert [(stamp["topic"], stamp["n"], stamp["offset"]) for stamp in stamps] == [
            (topic, n, n - 1) for n in (1, 2, 3)
        ]
        code, out, _ = run("inspect", "--grants", *where)
        assert [line.split()[3] for line in out.splitlines()] == ["granted", "granted", "granted", "unsubscribed"]
        assert json.loads(run("inspect", "--grants", "--json", "--max", "1", *where)[1])["kind"] == "grant"
        code, _, err = run("inspect", "--partition", "7", *where)
        assert code == 2
        assert "0 to 0" in err


def test_a_mistyped_topic_is_told_where_a_person_sees_it(
    broker: LocalBroker, new_topic: Callable[..., str], unique_name: Callable[[str], str]
) -> None:
    topic, mistyped, domain = new_topic("orders"), unique_name("oders"), unique_name("domain")
    words = ["subscribe", mistyped, topic, "--id", "s", "--timeout", "0", "--domain", domain]
    command = [sys.executable, "-m", "totalorder.cli", *words, "-b", broker.bootstrap_servers]
    with ThreadSequencer(broker.bootstrap_servers, domain, [topic], partitions=1):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    warning, granted = done.stderr.splitlines()
    assert (done.returncode, done.stdout, granted) == (0, "", "subscribed at g 1")
    assert warning.startswith(f'no Kafka topic "{mistyped}" on this broker')
    with kafka_clients.admin(broker.bootstrap_servers) as admin:
        assert mistyped not in admin.list_topics()


def receipts_end(servers: str, domain: str) -> int:
    """Records in the one partition of receipts: one for each event that was printed, since each is acknowledged."""
    at = TopicPartition(f"{domain}.receipts", 0)
    with kafka_clients.consumer(servers) as consumer:
        return int(consumer.end_offsets([at])[at])


def publish(producer: KafkaProducer, topic: str) -> None:
    producer.send(topic, value=b"one")
    producer.send(topic, key=b"k", value=b"\x1b[31mtwo")
    producer.send(topic, key=b"\xff", value=None, headers=[("h", b"x")])
    producer.flush(10)


def test_says_what_is_wrong(
    broker: LocalBroker, unique_name: Callable[[str], str], run: Callable[..., tuple[int, str, str]]
) -> None:
    where = ("--domain", unique_name("domain"), "--bootstrap-servers", broker.bootstrap_servers)
    code, _, err = run("subscribe", "t", "--id", "s", "--start-timeout", "0.5", *where)
    assert code == 1
    assert "totalorder sequence" in err
    code, _, err = run("inspect", *where)
    assert code == 1
    assert "There is no topic" in err
    code, _, err = run("subscribe", "t", "--id", "a/b", *where)
    assert code == 2
    code, _, err = run("subscribe", "t", "--id", "s", "--bootstrap-servers", "127.0.0.1:1", "--domain", "d")
    assert code == 1
    assert "No Kafka broker" in err
