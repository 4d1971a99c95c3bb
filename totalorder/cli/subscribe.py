"""`totalorder subscribe`: prints events as they are delivered, and acknowledges each one printed."""

import base64
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from totalorder.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DOMAIN,
    BootstrapServers,
    ControlKeyFile,
    Domain,
    Json,
    Kafka,
    OnLost,
    kafka_settings,
    place_of,
    said_if_long,
)

if TYPE_CHECKING:
    from totalorder.subscriber import Event, Lost, Subscriber
    from totalorder.subscriber.clients import Client

_POLL_S = 0.5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("subscribe", help="Print the events of some topics in the domain's one order.")(run)


def run(
    id: Annotated[  # noqa: A002
        str, typer.Option("--id", help="The subscriber's name. One process holds it; a new one goes on where it was.")
    ],
    topics: Annotated[list[str] | None, typer.Argument(help="The pub/sub topics; or else --pattern.")] = None,
    pattern: Annotated[
        str | None,
        typer.Option(
            "--pattern",
            metavar="REGEX",
            help="All Kafka topics that the domain reads, now or later, whose whole name this fits.",
        ),
    ] = None,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="Stop after this many events.")] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0, metavar="SECONDS", help="Stop when no event came for this long.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--start",
            metavar="saved|now|earliest|POSITION|TIME",
            help='Where to begin. "saved": where this id was; "now": behind all that is there; "earliest": where Kafka '
            "still has everything of the topics; a position as --json prints it: behind it; a time such as "
            "2026-11-30T18:00Z. All but the first give up what is owed before.",
        ),
    ] = "saved",
    on_lost: OnLost = "fail",
    end: Annotated[
        bool,
        typer.Option(
            "--end",
            help="End the subscription when --max or --timeout is reached: what was not printed is given up, and the "
            "next start of this id is at the present. Not given, or Ctrl-C: the next start goes on from here.",
        ),
    ] = False,
    lease_s: Annotated[
        int, typer.Option("--lease", min=0, metavar="SECONDS", help="It ends when not renewed for so long; 0: never.")
    ] = 86_400,
    start_timeout_s: Annotated[
        float, typer.Option("--start-timeout", min=0.1, metavar="SECONDS", help="Wait this long for the sequencer.")
    ] = 60.0,
    receipts: Annotated[
        bool, typer.Option("--receipts/--no-receipts", help="Tell the domain what was delivered, for audits.")
    ] = True,
    client: Annotated[
        str,
        typer.Option(
            "--client",
            metavar="kafka-python|confluent",
            help='What reads and writes: "confluent" (the extra "fast") takes less time and processor.',
        ),
    ] = "kafka-python",
    domain: Domain = DEFAULT_DOMAIN,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    control_key_file: ControlKeyFile = None,
    as_json: Json = False,
) -> None:
    """Runs until `--max`, `--timeout` or a signal; a stop of any kind loses nothing and prints nothing twice."""
    settings = kafka_settings(kafka)

    from totalorder.control_keys import read_keys
    from totalorder.subscriber import Subscriber

    control_key = read_keys(control_key_file)[0] if control_key_file else None
    with saying(as_json=as_json) as log:
        with said_if_long(f"waiting for the sequencer of domain {domain} on {bootstrap_servers} … (Ctrl-C ends)"):
            subscriber = Subscriber(
                topics or None,
                pattern=pattern,
                id=id,
                domain=domain,
                bootstrap_servers=bootstrap_servers,
                start=place_of("--start", start, "saved", "now", "earliest"),
                on_lost=cast("Literal['fail', 'skip']", on_lost),  # it is checked there
                lease_s=lease_s,
                start_timeout_s=start_timeout_s,
                receipts=receipts,
                client=cast("Client", client),  # likewise
                kafka=settings,
                control_key=control_key,
            )
        log.setLevel(logging.INFO)
        with subscriber:
            signal.signal(signal.SIGTERM, lambda *_: subscriber.stop())
            _say_granted(subscriber, as_json=as_json)
            _print_all(subscriber, most, timeout_s, as_json=as_json)
            if end:
                subscriber.unsubscribe(drain=False)


class _Said(logging.Handler):
    """What the library logs, on stderr; but why it stopped, which is said in the end anyway."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__()
        self._as_json = as_json
        self.addFilter(lambda record: record.levelno < logging.ERROR)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        said = json.dumps({"level": record.levelname.lower(), "said": text}) if self._as_json else text
        print(said, file=sys.stderr, flush=True)


@contextmanager
def saying(*, as_json: bool) -> Iterator[logging.Logger]:
    """Warnings of the library are said within the block, and more if its logger's level is set so."""
    log, said = logging.getLogger("totalorder.subscriber"), _Said(as_json=as_json)
    level = log.level
    log.addHandler(said)
    try:
        yield log
    finally:
        log.removeHandler(said)
        log.setLevel(level)


def _say_granted(subscriber: "Subscriber", *, as_json: bool) -> None:
    """On stderr: what was published before is not for a new subscription, and standard output is for events alone."""
    granted, after = subscriber.granted_g, subscriber.metrics().g
    if as_json:
        said = json.dumps({"subscribed_at_g": granted, "after_g": after})
    else:
        said = f"subscribed at g {granted}" + (f", going on after g {after}" if after < granted else "")
    print(said, file=sys.stderr, flush=True)


def _print_all(subscriber: "Subscriber", most: int | None, timeout_s: float | None, *, as_json: bool) -> None:
    printed, last = 0, time.monotonic()
    while (most is None or printed < most) and not subscriber.stopped:
        event = subscriber.poll(_POLL_S if timeout_s is None else min(_POLL_S, timeout_s))
        if event is None:
            if subscriber.finished or (timeout_s is not None and time.monotonic() - last >= timeout_s):
                return
            continue
        print(event_line(event, as_json=as_json), flush=True)
        subscriber.ack(event)
        printed, last = printed + 1, time.monotonic()


def event_line(event: "Event | Lost", *, as_json: bool) -> str:
    """What is printed of what was delivered."""
    from totalorder.subscriber import Lost

    if isinstance(event, Lost):
        return lost_json_line(event) if as_json else lost_line(event)
    return json_line(event) if as_json else text_line(event)


def lost_line(lost: "Lost") -> str:
    """The like for what stands in the place of lost events."""
    place = f"{lost.kafka_topic}[{lost.partition}]@{lost.first_offset}"
    more = f" to {lost.last_offset}" if lost.last_offset > lost.first_offset else ""
    name = "" if lost.topic is None else f"{lost.topic}{'' if lost.n is None else f'#{lost.n}'}  "
    mark = f", {lost.tag}" if lost.tag else ""
    return f"{lost.g:>8}  {name}{place}{more}  (lost{mark})"


def lost_json_line(lost: "Lost") -> str:
    """The like for a program."""
    told = {name: value for name, value in lost._asdict().items() if name != "origin"}
    return json.dumps({"lost": True, **told, "position": _position(lost)}, ensure_ascii=False)


def _position(event: "Event | Lost") -> str | None:
    """Where to go on behind it; none with min_subscriptions = 2."""
    return None if event.origin is None else str(event.position)


def text_line(event: "Event") -> str:
    """One event for a person: its place in the order, its topic and number there, where it lies, key and value."""
    place = f"{event.kafka_topic}[{event.partition}]@{event.offset}"
    key = "" if event.key is None else f"{printable(event.key)}: "
    value = "(null)" if event.value is None else printable(event.value)
    mark = f" ({event.tag})" if event.tag else ""
    return f"{event.g:>8}  {event.topic}#{event.n}  {place}  {key}{value}{mark}"


def json_line(event: "Event") -> str:
    """One event for a program; bytes that are not UTF-8 stand under `…_base64`."""
    record: dict[str, object] = {
        "g": event.g,
        "topic": event.topic,
        "n": event.n,
        "kafka_topic": event.kafka_topic,
        "topic_id": event.topic_id,
        "partition": event.partition,
        "offset": event.offset,
        "timestamp_ms": event.timestamp_ms,
        "entries": dict(event.entries),
        "tag": event.tag,
        "position": _position(event),
        **bytes_field("key", event.key),
        **bytes_field("value", event.value),
        "headers": [{"name": name, **bytes_field("value", value)} for name, value in event.headers],
    }
    return json.dumps(record, ensure_ascii=False)


def bytes_field(name: str, value: bytes | None) -> dict[str, str | None]:
    """Bytes for a program: text where they are UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def printable(value: bytes) -> str:
    """On one line, and without control characters, which could write to the terminal."""
    text = value.decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
