"""`totalorder lineage`: the lineage job in the foreground, and the compaction of its tables."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from totalorder.cli.jobs import (
    BrokerTimeout,
    ConfigFile,
    JobDomain,
    JobKafka,
    JobServers,
    JobSpark,
    LogFormat,
    Master,
    StandstillTimeout,
    command_of,
    given_flags,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

_HELP = """Write what happened in a domain into Delta tables until Ctrl-C; any stop is safe.

Each setting can also stand in the file of --config (tables = "…") or in an environment variable, TOTALORDER_ and its
name (TOTALORDER_TABLES=…). A flag beats the environment, and that beats the file.
"""


def _settings() -> Iterable[type["BaseModel"]]:
    from totalorder.sinks.settings import LineageSettings

    return (LineageSettings,)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lineage", cls=command_of(_settings), help=_HELP)(run)


def run(
    config: ConfigFile = None,
    domain: JobDomain = None,
    bootstrap_servers: JobServers = None,
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
        typer.Option("--retention-days", help="Files younger than that survive --compact."),
    ] = None,
    interval_s: Annotated[float | None, typer.Option("--interval-s", help="Interval of micro-batches.")] = None,
    batch_records: Annotated[
        int | None, typer.Option("--batch-records", help="About how many Kafka records a micro-batch has at most.")
    ] = None,
    broker_timeout_s: BrokerTimeout = None,
    standstill_timeout_s: StandstillTimeout = None,
    master: Master = None,
    log_format: LogFormat = None,
    kafka: JobKafka = None,
    spark: JobSpark = None,
) -> None:
    """Put the flags over file and environment, and run."""
    given = given_flags(locals(), without=("config", "until_caught_up", "compact"))
    from totalorder.sinks.settings import load_lineage_settings

    settings = load_lineage_settings(config, given)
    from totalorder.sinks.runner import run_compaction, run_until_signal

    if compact:
        run_compaction(settings)
    else:
        run_until_signal(settings, until_caught_up=until_caught_up)
