"""What several commands share: options, how their values are read, and a word on a long wait.

Use options as annotations: `def run(servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, kafka: Kafka = None)`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer
from typing import Annotated

import typer

from totalorder.errors import SettingsError

DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
DEFAULT_DOMAIN = "totalorder"
_LONG_S = 3.0

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
Kafka = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka", metavar="KEY=VALUE", help="A Kafka client setting, such as security.protocol=SSL. Repeatable."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value a line, for programs.")]


def kafka_settings(pairs: list[str] | None) -> dict[str, str]:
    """The values of `--kafka KEY=VALUE` as a table; a `kafka.` in front of a key is taken off.

    Raises SettingsError for a value without `=` or without a key.
    """
    settings: dict[str, str] = {}
    for pair in pairs or ():
        key, sign, value = pair.partition("=")
        key = key.strip().removeprefix("kafka.")
        if not sign or not key:
            raise SettingsError(
                f"--kafka {pair!r} is not KEY=VALUE", remedy="Write it like --kafka security.protocol=SSL."
            )
        settings[key] = value.strip()
    return settings


@contextmanager
def said_if_long(text: str) -> Iterator[None]:
    """Says `text` on stderr, once, when the block has lasted three seconds: else it would look as if it hung."""
    timer = Timer(_LONG_S, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
