"""The command line as a user meets it: in a process of its own."""

import importlib.metadata
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from totalorder.broker import LocalBroker
from totalorder.cli.app import COMMANDS, build_app, main
from totalorder.config import Settings, TopicSettings

NOWHERE = "127.0.0.1:1"


def run(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "totalorder.cli", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120, check=False)


PRINTING = """
import sys
import typer
from totalorder.cli import app
from rich.console import Console

def forever(kind: str) -> None:
    says = {"print": print, "flush": lambda text: print(text, flush=True), "rich": Console().print, "echo": typer.echo}
    while True:
        says[kind]("a line")

def build() -> typer.Typer:
    made = typer.Typer()
    made.command()(forever)
    return made

app.build_app = build
app.main(sys.argv[1:])
"""


@pytest.mark.parametrize("kind", ["print", "flush", "rich", "echo"])
def test_whoever_has_read_enough_ends_it_without_a_word(kind: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PRINTING, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as printing:
        assert printing.stdout is not None
        assert printing.stderr is not None
        assert printing.stdout.readline() == "a line\n"
        printing.stdout.close()
        assert printing.stderr.read() == ""
        assert printing.wait(120) == 141


def test_a_short_output_that_nobody_reads_ends_like_a_long_one() -> None:
    command = [sys.executable, "-m", "totalorder.cli", "--version"]
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("words", [["--version"], ["bench", "kernel", "--help"]])
def test_a_full_disk_is_told_in_words(words: list[str]) -> None:
    command = [sys.executable, "-m", "totalorder.cli", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topics", "--nope"], "No such option"),
        (["nope"], "No such command"),
        (["topics", "--create", "orders:none"], "not NAME or NAME:PARTITIONS"),
        (["topics", "--kafka", "group.id=x"], "kafka.group.id cannot be set"),
        (["topics", "--kafka", "securty.protocol=SSL"], "Did you mean kafka.security.protocol?"),
        (["topics", "--kafka", "security.protocol=SASL-SSL"], "Use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"),
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


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`shown("sequence")`: its help on a terminal of 80 columns."""

    def help_of(*command: str) -> str:
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        return capsys.readouterr().out

    return help_of


def test_help_cuts_no_option_at_80_columns(shown: Callable[..., str]) -> None:
    group = typer.main.get_command(build_app())
    for name in COMMANDS:
        text = shown(name)
        assert max(map(len, text.splitlines())) <= 80
        for parameter in group.commands[name].params:  # type: ignore[attr-defined]  # it is a group
            assert all(option in text for option in parameter.opts if option.startswith("-")), parameter.opts
            assert getattr(parameter, "envvar", None) is None or str(parameter.envvar) in text


def test_help_of_sequence_names_every_default(shown: Callable[..., str]) -> None:
    text = shown("sequence")
    assert all(
        word in text for word in ("TOTALORDER_CHECKPOINT_DIR=", "flag beats the environment", "beats\n  the file")
    )
    blocks = re.findall(r"^  (?:-\w, )?--([a-z-]+)(.*?)(?=^  -|\Z)", text.partition("Options:\n")[2], re.S | re.M)
    helps = {name.replace("-", "_"): " ".join(words.split()) for name, words in blocks if name != "help"}
    assert set(helps) == set(Settings.model_fields) - {"topic_settings"} | {"config", "replication_factor"}
    fields = Settings.model_fields | TopicSettings.model_fields
    for name, words in helps.items():
        default = fields[name].default if name in fields else None
        plain = isinstance(default, str | int | float) and not isinstance(default, bool)
        assert words.endswith(f"[default: {default}]") if plain else re.search(r"\[(default: |required).*\]$", words), (
            name
        )
        assert len(re.sub(r"\[.*?\]|<\w+>", "", words).split()) >= 2, f"{name} is explained"


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


@pytest.mark.parametrize("words", [["topics"], ["subscribe", "a", "--id", "b"]])
def test_sigint_ends_a_command_that_began_with_it_ignored(words: list[str]) -> None:
    """As a shell starts what it puts in the background; here the command waits for a broker that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        shell = f'trap "" INT; exec "$0" -m totalorder.cli {" ".join(words)} -b 127.0.0.1:{silent.getsockname()[1]}'
        process = subprocess.Popen(["/bin/sh", "-c", shell, sys.executable], stderr=subprocess.DEVNULL)
        try:
            silent.accept()[0].close()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("amid", ["typer", "totalorder.cli.topics", "totalorder.kafka_clients", "kafka.errors"])
def test_sigint_amid_imports_ends_without_a_word(amid: str) -> None:
    """The first tenths of a second of every command; here the signal comes when a module is looked for."""
    code = (
        "import signal, sys\n"
        "class Look:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {amid!r}: signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Look())\n"
        "from totalorder.entry import main; main()"
    )
    command = [sys.executable, "-c", code, "topics", "-b", NOWHERE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_every_way_into_the_command_is_that_one() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="totalorder")
    assert script.value == "totalorder.entry:main"
    module = Path(str(importlib.util.find_spec("totalorder.cli.__main__").origin))  # type: ignore[union-attr]
    assert "from totalorder.entry import main" in module.read_text(encoding="utf-8")


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
    assert created.stdout.startswith(f"Created {topic} with 2 partitions.\n")
    published = run("publish", topic, "--key", "k", "-H", "a=1", "-H", "a=2", *servers, stdin="first\n\n\r\nä\r\nlast")
    assert (published.returncode, published.stdout) == (0, f"Published 3 events to {topic}.\n"), published.stderr
    listed = run("topics", "--json", *servers)
    described = {entry["name"]: entry for entry in map(json.loads, listed.stdout.splitlines())}[topic]
    assert (described["partitions"], sum(described["end_offsets"]), described["cleanup_policy"]) == (2, 3, "delete")
    records = read_all(broker, topic)
    assert [record.value for record in records] == [b"first", "ä".encode(), b"last"]
    assert {record.key for record in records} == {b"k"}
    assert records[0].headers == [("a", b"1"), ("a", b"2")]


@pytest.mark.broker
def test_publish_at_a_terminal_says_how_to_end(broker: LocalBroker, new_topic: Callable[[str], str]) -> None:
    ours, terminal = os.openpty()
    topic = new_topic("typed")
    command = [sys.executable, "-m", "totalorder.cli", "publish", topic, "-b", broker.bootstrap_servers]
    process = subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    os.close(terminal)
    try:
        os.write(ours, b"first\n\nsecond\n\4")
        said = process.communicate(timeout=60)
        assert said == (f"Published 2 events to {topic}.\n", f"Each line becomes an event of {topic}; Ctrl-D ends.\n")
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.broker
def test_created_topics_are_told(broker: LocalBroker, unique_name: Callable[[str], str]) -> None:
    one, two = unique_name("one"), unique_name("two")
    words = ["topics", "--create", two, "--create", f"{one}:3", "-b", broker.bootstrap_servers]
    created = run(*words, "--json")
    told = {entry["name"]: entry["created"] for entry in map(json.loads, created.stdout.splitlines())}
    assert {name for name, is_new in told.items() if is_new} == {one, two}


@pytest.mark.broker
def test_topics_end_where_an_open_transaction_begins(broker: LocalBroker, new_topic: Callable[[str], str]) -> None:
    from totalorder import kafka_clients

    topic, servers = new_topic("undecided"), broker.bootstrap_servers
    with kafka_clients.producer(servers) as plain, kafka_clients.producer(servers, transactional_id=topic) as producer:
        plain.send(topic, value=b"readable").get(10)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, value=b"undecided").get(10)
        listed = run("topics", "--json", "-b", servers)
        producer.abort_transaction()
    described = {entry["name"]: entry for entry in map(json.loads, listed.stdout.splitlines())}
    assert described[topic]["end_offsets"] == [1]


@pytest.mark.parametrize(("count", "says"), [(0, "0 events"), (1, "1 event"), (2, "2 events")])
def test_publish_counts_in_english(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int, says: str
) -> None:
    monkeypatch.setattr("totalorder.cli.publish._require_topic", lambda *_: None)
    monkeypatch.setattr("totalorder.cli.publish._publish", lambda *_: count)
    monkeypatch.setattr("totalorder.kafka_clients.producer", lambda *_: SimpleNamespace(close=lambda timeout: None))
    with pytest.raises(SystemExit) as done:
        main(["publish", "orders", __file__])
    assert (done.value.code or 0, capsys.readouterr().out) == (0, f"Published {says} to orders.\n")


@pytest.mark.broker
def test_publish_a_file_with_keys(broker: LocalBroker, new_topic: Callable[[str], str], tmp_path: Path) -> None:
    topic = new_topic("keyed")
    file = tmp_path / "events"
    file.write_bytes(b"a:1\n\nb:x:y\n:empty key\nc:\n")
    done = run("publish", topic, str(file), "--key-separator", ":", "-b", broker.bootstrap_servers, "--json")
    assert json.loads(done.stdout) == {"topic": topic, "published": 4}
    published = [(r.key, r.value) for r in read_all(broker, topic)]
    assert published == [(b"a", b"1"), (b"b", b"x:y"), (b"", b"empty key"), (b"c", b"")]


@pytest.mark.broker
@pytest.mark.parametrize(
    ("stdin", "words", "message"),
    [
        ("x" * 2_000_000, [], "MessageSizeTooLargeError"),
        ("a:1\n\nb\n", ["--key-separator", ":"], "Line 3 has no ':'"),
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


@pytest.mark.broker
@pytest.mark.parametrize(
    "words",
    [
        ["publish"],
        ["topics", "retire"],
        ["parked", "list"],
        ["parked", "replay", "--all"],
        ["parked", "drop", "--all"],
        ["sequence", "--checkpoint-dir", "CHECKPOINT", "--topics"],
    ],
)
def test_a_topic_that_is_called_nearly_so_is_named(
    broker: LocalBroker, new_topic: Callable[..., str], tmp_path: Path, words: list[str]
) -> None:
    there = new_topic("payments")
    given = [word.replace("CHECKPOINT", str(tmp_path)) for word in words]
    done = run(*given, there.replace("payments", "paymnets"), "-b", broker.bootstrap_servers)
    assert done.returncode == 1
    assert "paymnets" in done.stderr
    assert f"Did you mean {there!r}? " in done.stderr


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


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_tells_a_misspelt_variable(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else what it was to set would be passed over in silence: another domain, other brokers."""
    for variable, meant in (("TOTALORDER_DOMIAN", "DOMAIN"), ("TOTALORDER_IVY_SETTING", "IVY_SETTINGS")):
        monkeypatch.setenv(variable, "shop")
        with pytest.raises(SystemExit) as ended:
            main([name])
        said = (
            f"totalorder: the environment variable {variable} names no setting. Write TOTALORDER_{meant}, or unset it"
        )
        assert (ended.value.code, capsys.readouterr().err.strip()) == (2, said)
        monkeypatch.delenv(variable)
