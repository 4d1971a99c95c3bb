"""`totalorder sequence`: the sequencer job in the foreground."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from totalorder.cli.options import kafka_settings, spark_settings

_HELP = """Run the sequencer job until Ctrl-C; any stop is safe.

Each setting can also stand in the file of --config (checkpoint_dir = "…") or in an environment variable, TOTALORDER_
and its name (TOTALORDER_CHECKPOINT_DIR=…). A flag beats the environment, and that beats the file.
"""


class _Command(TyperCommand):
    """Takes the defaults that its help names from the settings themselves, which are loaded for nothing else."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The command's help, with the defaults."""
        from totalorder.config import Settings, TopicSettings

        fields = Settings.model_fields | TopicSettings.model_fields
        for option in self.params:
            field = fields.get(option.name or "")
            if isinstance(option, TyperOption) and field is not None and isinstance(field.default, str | int | float):
                option.help = f"{option.help}  [default: {field.default}]"
        super().format_help(ctx, formatter)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sequence", cls=_Command, help=_HELP)(run)


def run(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Settings as a TOML file.  [default: none]")
    ] = None,
    domain: Annotated[str | None, typer.Option("--domain", "-d", help="The universe of order.")] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option("--bootstrap-servers", "-b", metavar="HOST:PORT,…", help="Kafka brokers to begin with."),
    ] = None,
    topics: Annotated[
        str | None, typer.Option("--topics", metavar="NAME,…", help="Event topics.  [required, or a pattern]")
    ] = None,
    topic_pattern: Annotated[
        str | None,
        typer.Option("--topic-pattern", help="What the whole name of an event topic matches.  [required, or topics]"),
    ] = None,
    topic_by: Annotated[
        str | None, typer.Option("--topic-by", help='What names the pub/sub topic: "topic", "key" or "header:NAME".')
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option("--checkpoint-dir", help="Where the job's state lives: a directory, or a URI.  [required]"),
    ] = None,
    min_subscriptions: Annotated[
        int | None, typer.Option("--min-subscriptions", "-m", help="Subscriptions that make a group: 1 or 2.")
    ] = None,
    shards: Annotated[int | None, typer.Option("--shards", help="Parallel groups of the engine.")] = None,
    stamps_partitions: Annotated[
        int | None, typer.Option("--stamps-partitions", help="Partitions of the stamps; fixed for life.")
    ] = None,
    keyframe_every: Annotated[
        int | None, typer.Option("--keyframe-every", help="Each such event of a topic carries all its entries.")
    ] = None,
    trigger_ms: Annotated[
        int | None, typer.Option("--trigger-ms", help="Interval of batches; 0: as soon as there is something.")
    ] = None,
    starting_offsets: Annotated[
        str | None, typer.Option("--starting-offsets", help='Where a new domain begins: "earliest" or "latest".')
    ] = None,
    unroutable: Annotated[
        str | None, typer.Option("--unroutable", help='Events that name no pub/sub topic: "skip" or "fail".')
    ] = None,
    max_events_per_batch: Annotated[
        int | None, typer.Option("--max-events-per-batch", help="A batch takes about this many events at most.")
    ] = None,
    topic_poll_s: Annotated[
        float | None, typer.Option("--topic-poll-s", help="How often to look for new and recreated topics.")
    ] = None,
    broker_timeout_s: Annotated[
        float | None, typer.Option("--broker-timeout-s", help="A broker that is silent for so long counts as absent.")
    ] = None,
    fast_checkpoint_fs: Annotated[
        bool | None,
        typer.Option(
            "--fast-checkpoint-fs/--plain-checkpoint-fs",
            help="Checkpoints without a forked process for each file.  "
            "[default: fast with a local master and a local directory]",
        ),
    ] = None,
    master: Annotated[str | None, typer.Option("--master", help="Spark master, where spark-submit gives none.")] = None,
    log_format: Annotated[str | None, typer.Option("--log-format", help='"console" or "json".')] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="Of the domain's own topics; -1: the broker's default.")
    ] = None,
    kafka: Annotated[
        list[str] | None,
        typer.Option("--kafka", metavar="KEY=VALUE", help="A Kafka client setting. Repeatable.  [default: none]"),
    ] = None,
    spark: Annotated[
        list[str] | None,
        typer.Option("--spark", metavar="KEY=VALUE", help="A Spark setting. Repeatable.  [default: none]"),
    ] = None,
) -> None:
    """Put the flags over file and environment, and run."""
    given: dict[str, Any] = {key: value for key, value in locals().items() if key != "config" and value is not None}
    if "replication_factor" in given:
        given["topic_settings"] = {"replication_factor": given.pop("replication_factor")}
    for table in ("kafka", "spark"):
        if table in given:
            given[table] = kafka_settings(given[table]) if table == "kafka" else spark_settings(given[table])
    from totalorder.config import load_settings

    settings = load_settings(config, given)
    if settings.log_format == "console":  # Spark says nothing for all the seconds that it takes
        print(f"starting Spark for domain {settings.domain} on {settings.bootstrap_servers} …", file=sys.stderr)
    from totalorder.streaming.service import run_until_signal

    run_until_signal(settings)
