"""`totalorder inspect`: decodes a domain's stamps, or its grants, so that a person can read them."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from totalorder.cli.options import (
    DEFAULT_BOOTSTRAP_SERVERS,
    DEFAULT_DOMAIN,
    BootstrapServers,
    Domain,
    Json,
    Kafka,
    kafka_settings,
)
from totalorder.errors import Error, SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from totalorder.sequencer.control import Answer
    from totalorder.sequencer.stamps import StampedBatch
    from totalorder.subscriber.transport import Partition, Record, Transport

_POLL_S = 0.5
_SILENT_POLLS = 20
_DIGEST_CHARS = 12
_ENTRIES_SHOWN = 12


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect", help="Show the timestamps that the sequencer wrote, or its answers to subscribers.")(run)


def run(
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="The stamps partition.")] = 0,
    from_offset: Annotated[
        int | None, typer.Option("--from", min=0, metavar="OFFSET", help="Where to begin; not given: at the oldest.")
    ] = None,
    most: Annotated[int, typer.Option("--max", "-n", min=1, help="Show at most this many batches or answers.")] = 20,
    grants: Annotated[bool, typer.Option("--grants", help="Show the answers on grants instead of stamps.")] = False,
    domain: Domain = DEFAULT_DOMAIN,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    as_json: Json = False,
) -> None:
    """Reads from `--from` to the present end and changes nothing."""
    settings = kafka_settings(kafka)

    from rich.console import Console

    from totalorder.sequencer.names import DomainTopics
    from totalorder.subscriber.kafka_python import KafkaPythonTransport
    from totalorder.subscriber.transport import Partition

    names = DomainTopics(domain=domain)
    at = Partition(names.grants, 0) if grants else Partition(names.stamps, partition)
    transport = KafkaPythonTransport(bootstrap_servers, settings)
    try:
        records = _records(transport, at, from_offset)
        console = Console(soft_wrap=True, highlight=False)
        if grants:
            _show_answers(console, records, most, as_json=as_json)
        else:
            _show_batches(console, records, most, domain=domain, partition=partition, as_json=as_json)
    finally:
        transport.close()


def _records(transport: "Transport", at: "Partition", from_offset: int | None) -> Iterator["Record"]:
    """Every record from the offset to the present end."""
    count = transport.partitions(at.topic)
    if not count:
        raise Error(f"There is no topic {at.topic}", remedy="Check --domain; `totalorder sequence` makes its topics.")
    if at.number >= count:
        raise SettingsError(f"{at.topic} has no partition {at.number}", remedy=f"Give one of 0 to {count - 1}.")
    first, end = transport.beginning_offsets([at])[at], transport.end_offsets([at])[at]
    start = first if from_offset is None else from_offset
    if not first <= start <= end:
        raise SettingsError(f"{at.topic}[{at.number}] has no offset {start}", remedy=f"Give one of {first} to {end}.")
    transport.read(at, start)
    silent = 0
    while transport.position(at) < end:
        found = [record for record in transport.poll(_POLL_S) if record.offset < end]
        silent = 0 if found else silent + 1
        if silent > _SILENT_POLLS:
            raise Error(f"{at.topic}[{at.number}] gave no record before its end, {end}", remedy="Is the broker well?")
        yield from found


# --- stamps -----------------------------------------------------------------------------------------------------------


def _show_batches(
    console: "Console", records: Iterator["Record"], most: int, *, domain: str, partition: int, as_json: bool
) -> None:
    from totalorder.sequencer.codec import StampsAssembler

    assembler = StampsAssembler(domain=domain, partition=partition)
    shown = 0
    for record in records:
        headers = {name: value for name, value in record.headers if value is not None}
        batch = assembler.add(record.value, headers)
        if batch is None:
            continue
        if as_json:
            print(json.dumps(_batch_json(batch, record), ensure_ascii=False))
        else:
            _show_batch(console, batch, record)
        shown += 1
        if shown == most:
            return
    if not shown and not as_json:
        console.print(f"{domain}.stamps[{partition}] holds no complete batch there.")


def _batch_json(batch: "StampedBatch", record: "Record") -> dict[str, object]:
    return {
        "offset": record.offset,
        "batch": batch.batch,
        "incarnation": batch.incarnation,
        "time_ms": batch.time_ms,
        "g": batch.g,
        "control_g": batch.control_g,
        "min_subscriptions": batch.min_subscriptions,
        "frontier": [[*source, offset] for source, offset in sorted(batch.next_offsets.items())],
        "previous_digest": batch.previous_digest,
        "digest": batch.digest,
        "stamps": [
            {
                "g": g,
                "topic": topic,
                "n": n,
                "kafka_topic": source[0],
                "partition": source[1],
                "offset": offset,
                "crc32": crc,
                "keyframe": keyframe,
                "entries": entries,
            }
            for g, topic, n, source, offset, crc, keyframe, entries in _stamps(batch)
        ],
    }


_Stamp = tuple[int, str, int, tuple[str, int], int, int, bool, dict[str, int]]


def _stamps(batch: "StampedBatch") -> list[_Stamp]:
    """g, topic, n, source, offset, crc32, keyframe, entries of each row, in the order of π."""
    rows = batch.rows
    return sorted(
        (
            int(rows.g[row]),
            batch.names[int(rows.topic[row])],
            int(rows.n[row]),
            batch.sources[int(rows.source[row])],
            int(rows.offset[row]),
            int(rows.crc[row]),
            bool(rows.keyframe[row]),
            {batch.names[topic]: n for topic, n in rows.entries(row).items()},
        )
        for row in range(len(rows))
    )


def _show_batch(console: "Console", batch: "StampedBatch", record: "Record") -> None:
    from datetime import UTC, datetime

    from rich.markup import escape
    from rich.table import Table

    when = datetime.fromtimestamp(batch.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    frontier = "  ".join(f"{topic}[{number}]<{end}" for (topic, number), end in sorted(batch.next_offsets.items()))
    place = escape(f"{record.topic}[{record.partition}]@{record.offset}")
    digests = f"{batch.previous_digest[:_DIGEST_CHARS]} → {batch.digest[:_DIGEST_CHARS]}"
    console.print(
        f"[bold]batch {batch.batch}[/] at {place}  {when}  complete through g {batch.g}, "
        f"answers through g {batch.control_g}  digest {digests}"
    )
    console.print(f"  event partitions through: {escape(frontier) or '(none)'}")
    if not len(batch.rows):
        console.print("  no event of this partition's topics")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("  g", justify="right")
    for heading in ("topic#n", "event", "entries"):
        table.add_column(heading, overflow="fold")
    for g, topic, n, source, offset, _, keyframe, entries in _stamps(batch):
        mark = "all: " if keyframe else ""
        shown = ", ".join(f"{name} {count}" for name, count in sorted(entries.items())[:_ENTRIES_SHOWN])
        more = f", … {len(entries) - _ENTRIES_SHOWN} more" if len(entries) > _ENTRIES_SHOWN else ""
        event = f"{source[0]}[{source[1]}]@{offset}"
        table.add_row(f"  {g}", escape(f"{topic}#{n}"), escape(event), escape(f"{mark}{shown}{more}"))
    console.print(table)


# --- grants -----------------------------------------------------------------------------------------------------------


def _show_answers(console: "Console", records: Iterator["Record"], most: int, *, as_json: bool) -> None:
    from rich.markup import escape

    from totalorder.sequencer.control import decode_answer, encode_answer

    shown = 0
    for record in records:
        if record.value is None:
            continue
        answer = decode_answer(record.value)
        if as_json:
            print(json.dumps({"kafka_offset": record.offset} | json.loads(encode_answer(answer)), ensure_ascii=False))
        else:
            console.print(escape(f"@{record.offset:<6} g {answer.g:<8} {_told(answer)}"))
        shown += 1
        if shown == most:
            return
    if not shown and not as_json:
        console.print("There is no answer there.")


def _told(answer: "Answer") -> str:
    from totalorder.sequencer.control import Ended, Grant, Rejection, Renewed

    who = f"{answer.id or '(unknown id)'} generation {answer.generation}"
    if isinstance(answer, Grant):
        clock = ", ".join(f"{topic} {answer.clock[topic]}" for topic in answer.topics[:_ENTRIES_SHOWN])
        more = f", … {len(answer.topics) - _ENTRIES_SHOWN} more" if len(answer.topics) > _ENTRIES_SHOWN else ""
        lease = f"lease {answer.lease_s} s" if answer.lease_s else "no lease"
        return f"granted     {who}, {lease}, from {clock}{more}"
    if isinstance(answer, Ended):
        return f"{answer.reason:<11} {who}"
    if isinstance(answer, Renewed):
        return f"renewed     {who}"
    if isinstance(answer, Rejection):
        return f"rejected    {who} (present): {answer.reason}"
    return f"repeated    {who}, answered at g {answer.answered_g}"
