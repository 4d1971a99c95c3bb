"""`totalorder read`: prints events in the domain's one order from any place on, without a subscription."""

import json
import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from totalorder.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DOMAIN,
    BootstrapServers,
    Domain,
    Json,
    Kafka,
    OnLost,
    kafka_settings,
    place_of,
    said_if_long,
)
from totalorder.cli.subscribe import event_line
from totalorder.errors import SettingsError

if TYPE_CHECKING:
    from totalorder.subscriber.clients import Client


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("read", help="Print the events of some topics in the domain's one order, without a subscription.")(run)


def run(
    topics: Annotated[list[str] | None, typer.Argument(help="The pub/sub topics; or else --pattern.")] = None,
    pattern: Annotated[
        str | None, typer.Option("--pattern", metavar="REGEX", help="All topics whose whole name this fits.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="earliest|now|POSITION|TIME",
            help='Where to begin. "earliest": where Kafka still has everything of the topics; a position as this and '
            "`subscribe --json` print them: behind it; a time such as 2026-11-30T18:00Z (without a zone: this "
            "machine's): what was stamped since.",
        ),
    ] = "earliest",
    until: Annotated[
        str,
        typer.Option("--until", metavar="now|POSITION|TIME", help="Where to end: with a position, before a time."),
    ] = "now",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many events.")] = None,
    on_lost: OnLost = "fail",
    client: Annotated[
        str,
        typer.Option(
            "--client",
            metavar="kafka-python|confluent",
            help='What reads: "confluent" (the extra "fast") takes less time and processor.',
        ),
    ] = "kafka-python",
    domain: Domain = DEFAULT_DOMAIN,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    as_json: Json = False,
) -> None:
    """Writes nothing to Kafka, and needs no job; at the end it says on stderr from which position to go on."""
    settings = kafka_settings(kafka)
    if follow and until != "now":
        raise SettingsError("--follow has no end, and --until gives one", remedy="Leave one of them out")

    from totalorder.subscriber import Reader

    with said_if_long(f"looking for the beginning in domain {domain} on {bootstrap_servers} … (Ctrl-C ends)"):
        reader: Reader[Any] = Reader(
            topics or None,
            pattern=pattern,
            domain=domain,
            bootstrap_servers=bootstrap_servers,
            start=place_of("--start", start, "earliest", "now"),
            until=None if follow else place_of("--until", until, "now"),
            on_lost=cast("Literal['fail', 'skip']", on_lost),  # it is checked there
            client=cast("Client", client),  # likewise
            kafka=settings,
        )
    with reader:
        signal.signal(signal.SIGTERM, lambda *_: reader.stop())
        try:
            for printed, event in enumerate(reader, 1):
                print(event_line(event, as_json=as_json), flush=follow)
                if printed == most:
                    break
        finally:
            sys.stdout.flush()
            position = str(reader.position)
            print(json.dumps({"position": position}) if as_json else f"read through {position}", file=sys.stderr)
