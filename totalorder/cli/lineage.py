"""`totalorder lineage`: the lineage job in the foreground, and the compaction of its tables."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from totalorder.cli.options import kafka_settings, spark_settings

_HELP = """Write what happened in a domain into Delta tables until Ctrl-C; any stop is safe.

Each setting can also stand in the file of --config (tables = "…") or in an environment variable, TOTALORDER_ and its
name (TOTALORDER_TABLES=…). A flag beats the environment, and that beats the file.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lineage", help=_HELP)(run)


def run(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Settings as a TOML file.  [default: none]")
    ] = None,
    domain: Annotated[
        str | None, typer.Option("--domain", "-d", help="The universe of order.  [default: totalorder]")
    ] = None,
    bootstrap_servers: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-servers",
            "-b",
            metavar="HOST:PORT,…",
            help="Kafka brokers to begin with.  [default: localhost:9092]",
        ),
    ] = None,
    tables: Annotated[
        str | None, typer.Option("--tables", help="Root of the tables: a directory, or a URI.  [required]")
    ] = None,
    payload: Annotated[
        bool | None, typer.Option("--payload/--no-payload", help="Keep the events' values too.  [default: no]")
    ] = None,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when all is written that is in Kafka now.")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Put small files together, delete old ones, and end.")
    ] = False,
    retention_days: Annotated[
        float | None,
        typer.Option("--retention-days", help="Files younger than that survive --compact.  [default: 30]"),
    ] = None,
    interval_s: Annotated[
        float | None, typer.Option("--interval-s", help="Interval of micro-batches.  [default: 5]")
    ] = None,
    batch_records: Annotated[
        int | None, typer.Option("--batch-records", help="Most Kafka records of a micro-batch.  [default: 2000]")
    ] = None,
    broker_timeout_s: Annotated[
        float | None,
        typer.Option("--broker-timeout-s", help="A broker that is silent for so long counts as absent.  [default: 15]"),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark master, where spark-submit gives none.  [default: local[2]]"),
    ] = None,
    log_format: Annotated[
        str | None, typer.Option("--log-format", help='"console" or "json".  [default: console]')
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
    given: dict[str, Any] = {key: value for key, value in locals().items() if value is not None}
    for flag in ("config", "until_caught_up", "compact"):
        given.pop(flag, None)
    if kafka is not None:
        given["kafka"] = kafka_settings(kafka)
    if spark is not None:
        given["spark"] = spark_settings(spark)
    from totalorder.sinks.settings import load_lineage_settings

    settings = load_lineage_settings(config, given)
    if settings.log_format == "console":  # Spark says nothing for all the seconds that it takes
        print(f"starting Spark for the lineage in {settings.tables} …", file=sys.stderr)
    from totalorder.sinks.runner import run_compaction, run_until_signal

    if compact:
        run_compaction(settings)
    else:
        run_until_signal(settings, until_caught_up=until_caught_up)
