"""`totalorder parked`: what subscribers have put aside, brought back or dropped."""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from totalorder.cli.options import DEFAULT_BOOTSTRAP_SERVERS, BootstrapServers, Json, Kafka, kafka_settings
from totalorder.errors import Error, SettingsError, WireError
from totalorder.words import did_you_mean

if TYPE_CHECKING:
    from totalorder.subscriber.clients import Client
    from totalorder.subscriber.parked import Parked
    from totalorder.subscriber.transport import Partition, Record, Transport

Topic = Annotated[str, typer.Argument(help="The Kafka topic that run() was given as `park`.")]
Places = Annotated[
    list[str] | None, typer.Argument(metavar="PARTITION@OFFSET", help="Which ones, as `list` names them.")
]
Everything = Annotated[bool, typer.Option("--all", help="All that lie there.")]
_MOST_PASSED_OVER = 10
"""No more of what is none of ours is told one by one."""
_Found = dict[str, tuple["Partition", "Parked"]]
"""By place: the partition, and what is parked there."""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    group.command("create", help="Create a topic to park on: compacted, so that nothing that lies there expires.")(
        create
    )
    group.command("list", help="Show the events that are parked there.")(list_)
    group.command(
        "replay",
        help="Publish parked events to their topics again, each as a NEW event, behind all that is there: every "
        "subscriber of the topic gets it once more, at its new place in the order, not where it was. Then they are "
        "parked no longer.",
        short_help="Publish parked events again, as new ones.",
    )(replay)
    group.command("drop", help="Give parked events up: they are parked no longer.")(drop)
    app.add_typer(
        group, name="parked", help="Show the events that a handler could not take, bring them back, or drop them."
    )


def create(
    topic: Annotated[str, typer.Argument(help="The Kafka topic.")],
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
) -> None:
    """One partition, compacted."""
    settings = kafka_settings(kafka)

    from totalorder import kafka_clients

    with kafka_clients.kafka_errors(bootstrap_servers), kafka_clients.admin(bootstrap_servers, settings) as admin:
        if topic in admin.list_topics():
            raise Error(f"The topic {topic} is there already", remedy="Its cleanup.policy should be compact.")
        admin.create_topics({topic: {"num_partitions": 1, "configs": {"cleanup.policy": "compact"}}})
        admin.wait_for_topics([topic])
    print(f"Created {topic}.")


def list_(
    topic: Topic,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    as_json: Json = False,
) -> None:
    """Reads to the present end and changes nothing."""
    with _transport(topic, bootstrap_servers, kafka) as transport:
        found = _parked(transport, topic)
    for where, (_, parked) in found.items():
        print(_json_line(where, parked) if as_json else _text_line(where, parked))
    if not found:
        _tell_nothing(topic)


def replay(
    topic: Topic,
    places: Places = None,
    everything: Everything = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="TOPIC",
            help="Publish them to this Kafka topic instead of their own: one that only those read who lack them.",
        ),
    ] = None,
    client: Annotated[
        str,
        typer.Option(
            "--client",
            metavar="kafka-python|confluent",
            help='What writes: "confluent" (the extra "fast") can write headers without a value too.',
        ),
    ] = "kafka-python",
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
) -> None:
    """Each is taken back when it is durable; a crash between the two leaves it parked, and published."""
    _check_chosen(places, everything=everything)
    with _transport(topic, bootstrap_servers, kafka, client) as transport:
        for where, at, parked in _chosen(transport, topic, places):
            if client == "kafka-python":
                _require_writable(parked)
            target = _target(transport, parked, to)
            offset = transport.send(target, parked.key, parked.value, headers=parked.headers)
            transport.send(at, parked.about.key, None)
            place = f"{target.topic}[{target.number}]@{offset}"
            print(f"{where}: {_event(parked)} is published again, as a new event at {place}", flush=True)


def drop(
    topic: Topic,
    places: Places = None,
    everything: Everything = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
) -> None:
    """A record without a value takes each back."""
    _check_chosen(places, everything=everything)
    with _transport(topic, bootstrap_servers, kafka) as transport:
        for where, at, parked in _chosen(transport, topic, places):
            transport.send(at, parked.about.key, None)
            print(f"{where}: {_event(parked)} is dropped", flush=True)


@contextmanager
def _transport(
    topic: str, bootstrap_servers: str, kafka: list[str] | None, client: str = "kafka-python"
) -> "Iterator[Transport]":
    settings = kafka_settings(kafka)

    from totalorder.subscriber.checks import check_choice
    from totalorder.subscriber.clients import CLIENTS, transport_of

    check_choice("--client", client, *CLIENTS)
    transport = transport_of(cast("Client", client))(bootstrap_servers, settings)
    try:
        if not transport.partitions(topic):
            raise _absent(topic, bootstrap_servers, settings)
        yield transport
    finally:
        transport.close()


def _absent(topic: str, bootstrap_servers: str, settings: dict[str, str]) -> Error:
    from totalorder import kafka_clients

    with kafka_clients.kafka_errors(bootstrap_servers), kafka_clients.admin(bootstrap_servers, settings) as admin:
        meant = did_you_mean(topic, admin.list_topics())
    return Error(f"There is no topic {topic}", remedy=f"{meant}Give the one that run() was given as `park`.")


def _check_chosen(places: Sequence[str] | None, *, everything: bool) -> None:
    if bool(places) == everything:
        raise SettingsError(
            "places and --all are both given" if places else "which of the parked events is not said",
            remedy="Give one of both: places as `list` names them, or --all",
        )


def _chosen(transport: "Transport", topic: str, places: Sequence[str] | None) -> "list[tuple[str, Partition, Parked]]":
    """Without places all of them."""
    found = _parked(transport, topic)
    if not places and not found:
        _tell_nothing(topic)
    absent = [where for where in places or () if where not in found]
    if absent:
        raise Error(
            f"nothing is parked at {', '.join(absent)} of {topic}", remedy="`totalorder parked list` shows what is"
        )
    return [(where, *found[where]) for where in dict.fromkeys(places or found)]


def _parked(transport: "Transport", topic: str) -> _Found:
    """What lies there, in its order. A later record of the same key stands in the place of an earlier one."""
    from totalorder.cli.reading import records_of
    from totalorder.subscriber.transport import Partition

    _check_lasts(transport, topic)
    found: _Found = {}
    passed_over = 0
    for at in (Partition(topic, number) for number in range(transport.partitions(topic))):
        newest: dict[bytes | None, str] = {}
        for record in records_of(transport, at, None):
            parked = _read(record)
            if isinstance(parked, WireError):
                passed_over += 1
                if passed_over <= _MOST_PASSED_OVER:
                    place = f"{record.topic}[{record.partition}]@{record.offset}"
                    print(f"passed over {place}, {_shown(parked.what)}", file=sys.stderr)
                continue
            found.pop(newest.pop(record.key, ""), None)
            if parked is not None:
                newest[record.key] = where = f"{at.number}@{record.offset}"
                found[where] = (at, parked)
    if passed_over > _MOST_PASSED_OVER or (passed_over and not found):
        _tell_foreign(topic, passed_over)
    return found


def _check_lasts(transport: "Transport", topic: str) -> None:
    """Nothing is parked where it would expire: there lie events, which are not read through to find that out."""
    cleanup = transport.cleanup(topic)
    if cleanup is not None and "compact" not in cleanup:
        raise Error(
            f"{topic} has no parked events: it is not compacted (cleanup.policy={','.join(sorted(cleanup))}), and "
            "run() parks on no such topic",
            remedy="Give the one that run() was given as `park`",
        )


def _tell_nothing(topic: str) -> None:
    print(f"nothing is parked on {topic}", file=sys.stderr)


def _tell_foreign(topic: str, count: int) -> None:
    print(
        f"{topic} has {count:,} records that are no parked events, all passed over: is it the topic that run() was "
        "given as `park`?",
        file=sys.stderr,
    )


def _read(record: "Record") -> "Parked | WireError | None":
    """None for what takes another one back; an error, for what is none of ours."""
    from totalorder.subscriber.parked import Parked

    if record.value is None:
        return None
    try:
        return Parked.read(record)
    except WireError as error:
        return error


def _require_writable(parked: "Parked") -> None:
    """kafka-python 3.0.12 refuses what is rare."""
    if (parked.key is None and parked.value is None) or any(value is None for _, value in parked.headers):
        raise Error(
            f"{_event(parked)} has a header without a value, or neither key nor value, which kafka-python cannot write",
            remedy="Give --client confluent (the extra `fast`)",
        )


def _target(transport: "Transport", parked: "Parked", to: str | None) -> "Partition":
    """Where an event is published again: its own partition, so that its key stays where it was."""
    from totalorder.sequencer.wire.names import DomainTopics
    from totalorder.subscriber.transport import Partition

    about = parked.about
    topic = about.kafka_topic if to is None else to
    own = {name.removeprefix("d") for name in DomainTopics(domain="d").own()}
    if topic.endswith(tuple(own)):  # else who may write to this topic could have the operator write there
        raise Error(
            f"{_event(parked)} says it is of {_shown(topic)}, which belongs to a domain", remedy="Give --to, or drop"
        )
    count = transport.partitions(topic)
    if not count:
        raise Error(
            f"{_event(parked)} stays parked: there is no topic {_shown(topic)}",
            remedy="Give --to a topic that is there, or drop it",
        )
    return Partition(topic, about.partition % count)


def _event(parked: "Parked") -> str:
    about = parked.about
    return _shown(f"{about.topic}#{about.n} ({about.kafka_topic}[{about.partition}]@{about.offset}, g {about.g})")


def _text_line(where: str, parked: "Parked") -> str:
    from datetime import UTC, datetime

    about = parked.about
    try:
        when = datetime.fromtimestamp(about.parked_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        when = f"{about.parked_ms} ms"
    return (
        f"{where:>8}  {_event(parked)}  by {_shown(about.id)} {when}, attempt {about.attempts}: {_shown(about.error)}"
    )


def _json_line(where: str, parked: "Parked") -> str:
    from totalorder.cli.subscribe import bytes_field

    headers = [{"name": name, **bytes_field("value", value)} for name, value in parked.headers]
    own = {**bytes_field("key", parked.key), **bytes_field("value", parked.value), "headers": headers}
    return json.dumps({"at": where, **asdict(parked.about), **own}, ensure_ascii=False)


def _shown(text: str) -> str:
    """Text of others, which could write to the terminal."""
    from totalorder.cli.subscribe import printable

    return printable(text.encode("utf-8", "backslashreplace"))
