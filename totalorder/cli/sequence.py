"""`totalorder sequence`: the sequencer job in the foreground."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from totalorder.cli.jobs import (
    BrokerTimeout,
    ConfigFile,
    EventTopics,
    JobControlKeyFile,
    JobDomain,
    JobKafka,
    JobServers,
    JobSpark,
    KeyframeEvery,
    LogFormat,
    Master,
    MinSubscriptions,
    StampsPartitions,
    StandstillTimeout,
    TopicBy,
    TopicPattern,
    command_of,
    given_flags,
)
from totalorder.interrupts import interrupts_kept

if TYPE_CHECKING:
    from pydantic import BaseModel

_HELP = """Run the sequencer job until Ctrl-C; any stop is safe.

Each setting can also stand in the file of --config (checkpoint_dir = "…") or in an environment variable, TOTALORDER_
and its name (TOTALORDER_CHECKPOINT_DIR=…). A flag beats the environment, and that beats the file.
"""


def _settings() -> Iterable[type["BaseModel"]]:
    from totalorder.config import Settings, TopicSettings

    return Settings, TopicSettings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sequence", cls=command_of(_settings), help=_HELP)(run)


def run(
    config: ConfigFile = None,
    domain: JobDomain = None,
    bootstrap_servers: JobServers = None,
    topics: EventTopics = None,
    topic_pattern: TopicPattern = None,
    topic_by: TopicBy = None,
    topic_order: Annotated[
        str | None,
        typer.Option(
            "--topic-order", metavar="NAME,…", help="Event topics; the earlier comes first in a tie.  [default: none]"
        ),
    ] = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option("--checkpoint-dir", help="Where the job's state lives: a directory, or a URI.  [required]"),
    ] = None,
    min_subscriptions: MinSubscriptions = None,
    shards: Annotated[int | None, typer.Option("--shards", help="Parallel groups of the engine.")] = None,
    stamps_partitions: StampsPartitions = None,
    keyframe_every: KeyframeEvery = None,
    trigger_ms: Annotated[
        int | None, typer.Option("--trigger-ms", help="Interval of batches; 0: as soon as there is something.")
    ] = None,
    starting_offsets: Annotated[
        str | None, typer.Option("--starting-offsets", help='Where a new domain begins: "earliest" or "latest".')
    ] = None,
    unroutable: Annotated[
        str | None, typer.Option("--unroutable", help='Events that name no pub/sub topic: "skip" or "fail".')
    ] = None,
    on_topic_deleted: Annotated[
        str | None, typer.Option("--on-topic-deleted", help='Of a deleted event topic: "retire" it, or "stop".')
    ] = None,
    on_data_loss: Annotated[
        str | None,
        typer.Option("--on-data-loss", help='Of events gone before they were stamped: "fail", or "record" the loss.'),
    ] = None,
    max_events_per_batch: Annotated[
        int | None, typer.Option("--max-events-per-batch", help="A batch takes about this many events at most.")
    ] = None,
    reading_tasks: Annotated[
        int | None, typer.Option("--reading-tasks", help="Tasks that read a large batch; more than 1 costs a shuffle.")
    ] = None,
    look_ms: Annotated[
        float | None, typer.Option("--look-ms", help="How often, at most, to look at the ends of all partitions.")
    ] = None,
    look_warn_ms: Annotated[
        float | None, typer.Option("--look-warn-ms", help="Warn of looks that are further apart.")
    ] = None,
    look_patience_ms: Annotated[
        float | None, typer.Option("--look-patience-ms", help="How long looks wait for a broker that is silent.")
    ] = None,
    topic_poll_s: Annotated[
        float | None, typer.Option("--topic-poll-s", help="How often to look for new and recreated topics.")
    ] = None,
    broker_timeout_s: BrokerTimeout = None,
    standstill_timeout_s: StandstillTimeout = None,
    fast_checkpoint_fs: Annotated[
        bool | None,
        typer.Option(
            "--fast-checkpoint-fs/--plain-checkpoint-fs",
            help="Checkpoints without a forked process for each file.  "
            "[default: fast with a local master and a local directory]",
        ),
    ] = None,
    master: Master = None,
    log_format: LogFormat = None,
    verbose: Annotated[
        bool | None,
        typer.Option(
            "--verbose/--no-verbose", help="A log line for each batch.  [default: a summary every few seconds]"
        ),
    ] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", help="Of the domain's own topics; -1: the broker's default.")
    ] = None,
    control_key_file: JobControlKeyFile = None,
    kafka: JobKafka = None,
    spark: JobSpark = None,
) -> None:
    """Put the flags over file and environment, and run."""
    given = given_flags(locals(), without=("config",))
    if "replication_factor" in given:
        given["topic_settings"] = {"replication_factor": given.pop("replication_factor")}
    try:
        _run(config, given)
    except KeyboardInterrupt:  # while Python still loads what it needs to be told of signals
        print("totalorder: stopped before the sequencer was ready.", file=sys.stderr, flush=True)
        raise


def _run(config: Path | None, given: dict[str, Any]) -> None:
    # Amid an import an exception may come in a callback of Python's own, which prints it and forgets it.
    with interrupts_kept() as obey:
        from totalorder.config import load_settings

        settings = load_settings(config, given)
        if settings.log_format == "console":  # Spark says nothing for all the seconds that it takes
            print(f"starting Spark for domain {settings.domain} on {settings.bootstrap_servers} …", file=sys.stderr)
        from totalorder.streaming.service import run_until_signal
    obey()
    run_until_signal(settings)
