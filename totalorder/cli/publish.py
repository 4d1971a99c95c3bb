"""`totalorder publish`: lines of text become events."""

import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from totalorder.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    BootstrapServers,
    Json,
    Kafka,
    kafka_settings,
)
from totalorder.errors import Error, SettingsError
from totalorder.words import did_you_mean

if TYPE_CHECKING:
    from kafka import KafkaProducer

_UNANSWERED_LIMIT = 10_000
_ANSWER_TIMEOUT_S = 60


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "publish", help="Publish each line of standard input, or of a file, as an event; empty lines are none."
    )(run)


def run(
    topic: Annotated[str, typer.Argument(help="The Kafka topic.")],
    file: Annotated[Path | None, typer.Argument(help="A file of lines. Not given, or -: standard input.")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="The key of every event.")] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", help="Each line is KEY, this text, VALUE.", metavar="TEXT")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME=VALUE", help="A header of every event. Repeatable."),
    ] = None,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    as_json: Json = False,
) -> None:
    """Publish and print the count; an empty line is no event. Stops at the first refusal."""
    if key is not None and key_separator is not None:
        raise SettingsError("--key and --key-separator exclude each other", remedy="Give one of them.")
    headers = [_header(text) for text in header or ()]
    settings = kafka_settings(kafka)

    from totalorder import kafka_clients

    with _lines(file) as lines, kafka_clients.kafka_errors(bootstrap_servers):
        _require_topic(topic, bootstrap_servers, settings)
        if lines.isatty():
            print(f"Each line becomes an event of {topic}; Ctrl-D ends.", file=sys.stderr, flush=True)
        producer = kafka_clients.producer(bootstrap_servers, settings)
        try:
            count = _publish(producer, topic, _records(lines, key, key_separator), headers)
        finally:
            producer.close(timeout=_ANSWER_TIMEOUT_S)
    if as_json:
        print(json.dumps({"topic": topic, "published": count}))
    else:
        print(f"Published {count} event{'' if count == 1 else 's'} to {topic}.")


def _header(text: str) -> tuple[str, bytes]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise SettingsError(f"--header {text!r} is not NAME=VALUE", remedy="Write it like --header source=till-7.")
    return name, value.encode()


@contextmanager
def _lines(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise SettingsError(f"The file {file} cannot be read: {error.strerror}", remedy="Correct its path.") from error
    with opened:
        yield opened


def _records(
    lines: Iterable[bytes], key: str | None, key_separator: str | None
) -> Iterator[tuple[bytes | None, bytes]]:
    """(key, value) of each line that is not empty, without its end. Raises Error for one that lacks the separator."""
    fixed = key.encode() if key is not None else None
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if not text:
            continue
        if key_separator is None:
            yield fixed, text
            continue
        own_key, sign, value = text.partition(key_separator.encode())
        if not sign:
            raise Error(
                f"Line {number} has no {key_separator!r} between key and value",
                remedy="Every line before it was published; correct it and publish the rest.",
            )
        yield own_key, value


def _require_topic(topic: str, bootstrap_servers: str, settings: dict[str, str]) -> None:
    """A producer would wait a minute for a topic that is not there; and would make it, where brokers allow that."""
    from totalorder import kafka_clients

    with kafka_clients.admin(bootstrap_servers, settings) as admin:
        if topic not in (there := admin.list_topics()):
            raise Error(
                f"There is no topic {topic!r}",
                remedy=f"{did_you_mean(topic, there)}Create it: totalorder topics --create {topic}",
            )


def _publish(
    producer: "KafkaProducer",
    topic: str,
    records: Iterable[tuple[bytes | None, bytes]],
    headers: list[tuple[str, bytes]],
) -> int:
    """Send all, in order, and wait for every answer. Returns their number."""
    unanswered: deque[Any] = deque()
    count = 0
    try:
        for key, value in records:
            unanswered.append(producer.send(topic, value=value, key=key, headers=headers))
            while unanswered and (unanswered[0].is_done or len(unanswered) > _UNANSWERED_LIMIT):
                unanswered.popleft().get(timeout=_ANSWER_TIMEOUT_S)
                count += 1
    finally:
        # Also after an error or Ctrl-C: what was handed over is on its way, and the count should be true.
        for future in unanswered:
            future.get(timeout=_ANSWER_TIMEOUT_S)
            count += 1
    return count
