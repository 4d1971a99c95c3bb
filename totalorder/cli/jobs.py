"""What the commands of the Spark jobs share: their common options, and help that takes defaults from the settings.

Like the other commands' modules it imports nothing heavy before a command runs.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from totalorder.cli.options import kafka_settings, spark_settings

if TYPE_CHECKING:
    from pydantic import BaseModel

ConfigFile = Annotated[Path | None, typer.Option("--config", "-c", help="Settings as a TOML file.  [default: none]")]
JobDomain = Annotated[str | None, typer.Option("--domain", "-d", help="The universe of order.")]
JobServers = Annotated[
    str | None, typer.Option("--bootstrap-servers", "-b", metavar="HOST:PORT,…", help="Kafka brokers to begin with.")
]
EventTopics = Annotated[
    str | None, typer.Option("--topics", metavar="NAME,…", help="Event topics.  [required, or a pattern]")
]
TopicPattern = Annotated[
    str | None,
    typer.Option("--topic-pattern", help="What the whole name of an event topic matches.  [required, or topics]"),
]
TopicBy = Annotated[
    str | None, typer.Option("--topic-by", help='What names the pub/sub topic: "topic", "key" or "header:NAME".')
]
MinSubscriptions = Annotated[
    int | None, typer.Option("--min-subscriptions", "-m", help="Subscriptions that make a group: 1 or 2.")
]
StampsPartitions = Annotated[
    int | None, typer.Option("--stamps-partitions", help="Partitions of the stamps; fixed for life.")
]
KeyframeEvery = Annotated[
    int | None, typer.Option("--keyframe-every", help="Each such event of a topic carries all its entries.")
]
BrokerTimeout = Annotated[
    float | None, typer.Option("--broker-timeout-s", help="A broker that is silent for so long counts as absent.")
]
StandstillTimeout = Annotated[
    float | None,
    typer.Option("--standstill-timeout-s", help="How long a job is borne that stands still; it is told before."),
]
JobControlKeyFile = Annotated[
    str | None,
    typer.Option(
        "--control-key-file",
        metavar="FILE",
        help="Control keys, one a line: requests must be signed.  [default: none]",
    ),
]
Master = Annotated[str | None, typer.Option("--master", help="Spark master, where spark-submit gives none.")]
LogFormat = Annotated[str | None, typer.Option("--log-format", help='"console" or "json".')]
JobKafka = Annotated[
    list[str] | None,
    typer.Option("--kafka", metavar="KEY=VALUE", help="A Kafka client setting. Repeatable.  [default: none]"),
]
JobSpark = Annotated[
    list[str] | None,
    typer.Option("--spark", metavar="KEY=VALUE", help="A Spark setting. Repeatable.  [default: none]"),
]


def command_of(models: Callable[[], Iterable[type["BaseModel"]]]) -> type[TyperCommand]:
    """A command whose help names the defaults of these settings, which are loaded for nothing else."""

    class Command(TyperCommand):
        def format_help(self, ctx: Any, formatter: Any) -> None:
            """The command's help, with the defaults."""
            fields = {name: field for model in models() for name, field in model.model_fields.items()}
            for option in self.params:
                field = fields.get(option.name or "")
                if isinstance(option, TyperOption) and field is not None and _is_shown(field.default):
                    option.help = f"{option.help}  [default: {field.default}]"
            super().format_help(ctx, formatter)

    return Command


def _is_shown(default: object) -> bool:
    """Those of switches stand in their help in words."""
    return isinstance(default, str | int | float) and not isinstance(default, bool)


def given_flags(values: Mapping[str, Any], *, without: Iterable[str]) -> dict[str, Any]:
    """The settings among a command's arguments that were given, tables read. Raises SettingsError."""
    given = {key: value for key, value in values.items() if key not in without and value is not None}
    for table, read in (("kafka", kafka_settings), ("spark", spark_settings)):
        if table in given:
            given[table] = read(given[table])
    return given
