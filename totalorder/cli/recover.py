"""`totalorder recover`: the sequencer's checkpoint made anew from Kafka."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
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
    KeyframeEvery,
    Master,
    MinSubscriptions,
    StampsPartitions,
    TopicBy,
    TopicPattern,
    command_of,
    given_flags,
)
from totalorder.cli.options import Json

if TYPE_CHECKING:
    from pydantic import BaseModel

    from totalorder.streaming.recover import Report

_HELP = """Make the checkpoint of a domain anew from Kafka alone, where it is lost, damaged or old.

Stop the sequencer first, and give the settings that it had (a file, flags, or the environment, as for `sequence`), with
an empty checkpoint_dir. Then start it with that one: subscribers go on as if nothing had been.

With --shards this is also how a healthy domain gets another number of them. The number of stamps partitions stays.
"""


def _settings() -> Iterable[type["BaseModel"]]:
    from totalorder.config import Settings

    return (Settings,)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recover", cls=command_of(_settings), help=_HELP)(run)


def run(
    config: ConfigFile = None,
    domain: JobDomain = None,
    bootstrap_servers: JobServers = None,
    topics: EventTopics = None,
    topic_pattern: TopicPattern = None,
    topic_by: TopicBy = None,
    checkpoint_dir: Annotated[
        str | None,
        typer.Option("--checkpoint-dir", help="Where the new checkpoint goes: an empty directory, or URI.  [required]"),
    ] = None,
    min_subscriptions: MinSubscriptions = None,
    shards: Annotated[
        int | None, typer.Option("--shards", help="Parallel groups of the engine: as many as from now on.")
    ] = None,
    stamps_partitions: StampsPartitions = None,
    keyframe_every: KeyframeEvery = None,
    broker_timeout_s: BrokerTimeout = None,
    master: Master = None,
    control_key_file: JobControlKeyFile = None,
    kafka: JobKafka = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing: say what would be done.")] = False,
    as_json: Json = False,
) -> None:
    """Put the flags over file and environment, and run."""
    given: dict[str, Any] = given_flags(locals(), without=("config", "check", "as_json"))
    from totalorder.config import load_settings

    settings = load_settings(config, given, command="recover")
    from totalorder.streaming.recover import recover

    report = recover(settings, check=check, say=lambda text: print(text, file=sys.stderr, flush=True))
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        _show(report, settings.checkpoint_dir, check=check)


def _show(report: "Report", directory: str, *, check: bool) -> None:
    print(
        f"domain {report.domain}: {report.topics:,} topics and {report.subscriptions:,} subscriptions, up to batch "
        f"{report.batch:,} (position {report.g:,} of the order, cut {report.cut:,}), "
        + (f"from the snapshot of batch {report.snapshot:,} on" if report.snapshot else "from the first batch on")
    )
    if report.missing_answers or report.missing_stamps:
        print(
            f"the last batch {'lacks' if check else 'lacked'} {report.missing_answers} answers and the stamps of "
            f"{report.missing_stamps} partitions, which {'would be written' if check else 'are written now'}"
        )
    if check:
        print(f"It can be recovered, as incarnation {report.incarnation}. Nothing was changed.")
    else:
        print(f"Recovered into {directory}, as incarnation {report.incarnation}: start the sequencer with that.")
