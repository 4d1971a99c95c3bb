"""What several commands share: options, how their values are read, a word on a long wait, a closed terminal.

Use options as annotations: `def run(servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, kafka: Kafka = None)`.
"""

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from types import FrameType
from typing import Annotated, Any

import typer

from totalorder.errors import SettingsError
from totalorder.slow import when_long

DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_DOMAIN = "totalorder"

BootstrapServers = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        envvar="TOTALORDER_BOOTSTRAP_SERVERS",
        help="Kafka brokers to begin with.",
    ),
]
Domain = Annotated[
    str,
    typer.Option("--domain", "-d", envvar="TOTALORDER_DOMAIN", help="The universe of order, a prefix of its topics."),
]
OnLost = Annotated[
    str,
    typer.Option(
        "--on-lost",
        metavar="fail|skip",
        help='What Kafka has no longer: "fail", or "skip" it and print in its place what is lost.',
    ),
]
Kafka = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka", metavar="KEY=VALUE", help="A Kafka client setting, such as security.protocol=SSL. Repeatable."
    ),
]
ControlKeyFile = Annotated[
    str | None,
    typer.Option(
        "--control-key-file",
        metavar="FILE",
        envvar="TOTALORDER_CONTROL_KEY_FILE",
        help="A file whose first line is the key that signs requests, where the domain wants that.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line, for programs.")]


def pairs(option: str, given: list[str] | None, *, form: str = "KEY=VALUE", example: str = "") -> dict[str, str]:
    """The values of a repeatable option KEY=VALUE as a table; SettingsError, which may show an example, for others."""
    found: dict[str, str] = {}
    for pair in given or ():
        key, sign, value = pair.partition("=")
        if not sign or not key.strip():
            remedy = f"Write it like {option} {example}" if example else ""
            raise SettingsError(f"{option} {pair!r} is not {form}", remedy=remedy)
        found[key.strip()] = value
    return found


def kafka_settings(given: list[str] | None) -> dict[str, str]:
    """The values of `--kafka KEY=VALUE` as a table; a `kafka.` in front of a key is taken off."""
    plain = [pair.strip().removeprefix("kafka.") for pair in given or ()]
    found = pairs("--kafka", plain, example="security.protocol=SSL")
    return {key: value.strip() for key, value in found.items()}


def spark_settings(given: list[str] | None) -> dict[str, str]:
    """The values of `--spark KEY=VALUE` as a table."""
    found = pairs("--spark", given, example="spark.driver.memory=4g")
    return {key: value.strip() for key, value in found.items()}


def place_of(option: str, given: str, *words: str) -> Any:
    """A word, a position, or a time; SettingsError for anything else."""
    from totalorder.subscriber import Position

    if given in words:
        return given
    if "/" in given:
        return Position.parse(given)
    try:
        return datetime.fromisoformat(given).astimezone()
    except ValueError:
        raise SettingsError(
            f"{option} {given!r} is unknown",
            remedy=f"Give {', '.join(words)}, a position that was printed, or a time such as 2026-11-30T18:00Z",
        ) from None


def on_hangup(handler: Callable[[int, FrameType | None], None]) -> None:
    """Has SIGHUP, which a terminal sends that is closed, handled; `nohup` leaves it ignored, and so does this."""
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, handler)


def said_if_long(text: str) -> AbstractContextManager[None]:
    """Says `text` on stderr, once, when the block lasts long."""
    return when_long(lambda: print(text, file=sys.stderr, flush=True))
