"""What several commands share: options, how their values are read, and a word on a long wait.

Use options as annotations: `def run(servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, kafka: Kafka = None)`.
"""

import sys
from contextlib import AbstractContextManager
from typing import Annotated

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


def said_if_long(text: str) -> AbstractContextManager[None]:
    """Says `text` on stderr, once, when the block lasts long."""
    return when_long(lambda: print(text, file=sys.stderr, flush=True))
