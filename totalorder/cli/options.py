"""Options that several commands share, and how their values are read.

Use them as annotations: `def run(servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS, kafka: Kafka = None)`.
"""

from typing import Annotated

import typer

from totalorder.errors import SettingsError

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
