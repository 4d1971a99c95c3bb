"""`totalorder read`: prints events in the domain's one order from any place on, without a subscription."""

import json
import logging
import signal
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from totalorder import slow
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
from totalorder.cli.subscribe import event_line, saying
from totalorder.errors import Error, SettingsError

if TYPE_CHECKING:
    from totalorder.subscriber import Reader
    from totalorder.subscriber.clients import Client

_LOG = logging.getLogger("totalorder.subscriber")
_POLL_S = 0.5


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
        str | None,
        typer.Option(
            "--until",
            metavar="now|POSITION|TIME",
            help='Where to end: with a position, before a time; without a word, and without --follow, "now".',
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")] = False,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many events.")] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0,
            metavar="SECONDS",
            help="Stop when no event came for this long; before the end of what was to be read that is a failure.",
        ),
    ] = None,
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
    if follow and until is not None:
        raise SettingsError("--follow has no end, and --until gives one", remedy="Leave one of them out")

    from totalorder.subscriber import Reader

    end = None if follow else place_of("--until", "now" if until is None else until, "now")
    with saying(as_json=as_json) as log:
        log.setLevel(logging.INFO)
        with said_if_long(f"looking for the beginning in domain {domain} on {bootstrap_servers} … (Ctrl-C ends)"):
            reader: Reader[Any] = Reader(
                topics or None,
                pattern=pattern,
                domain=domain,
                bootstrap_servers=bootstrap_servers,
                start=place_of("--start", start, "earliest", "now"),
                until=end,
                on_lost=cast("Literal['fail', 'skip']", on_lost),  # it is checked there
                client=cast("Client", client),  # likewise
                kafka=settings,
            )
        with reader:
            signal.signal(signal.SIGTERM, lambda *_: reader.stop())
            try:
                _print_all(reader, end, most, timeout_s, as_json=as_json)
            finally:
                sys.stdout.flush()
                position = str(reader.position)
                print(json.dumps({"position": position}) if as_json else f"read through {position}", file=sys.stderr)


def _print_all(reader: "Reader[Any]", end: object, most: int | None, timeout_s: float | None, *, as_json: bool) -> None:
    """Error where nothing came for `timeout_s` and the end is not reached."""
    printed, last, told = 0, time.monotonic(), False
    while (most is None or printed < most) and not reader.stopped:
        event = reader.poll(_POLL_S if timeout_s is None else min(_POLL_S, timeout_s))
        if event is not None:
            print(event_line(event, as_json=as_json), flush=end != "now")
            printed, last = printed + 1, time.monotonic()
            continue
        silent_s = time.monotonic() - last
        if reader.finished or (end is None and timeout_s is not None and silent_s >= timeout_s):
            return
        if timeout_s is not None and silent_s >= timeout_s:
            raise Error(
                f"no event came for {timeout_s:g} s, and {'the end' if end == 'now' else end} is not reached",
                remedy="Go on later from the position that was read through, or give a longer --timeout",
            )
        if not told and end not in (None, "now") and silent_s >= slow.LONG_S:
            told = True
            _LOG.info("waits until the order reaches %s: that takes events … (Ctrl-C ends)", end)
