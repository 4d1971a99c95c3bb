"""`totalorder inspect`: decodes a domain's stamps, or its grants, so that a person can read them."""

import json
import textwrap
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby, islice
from typing import TYPE_CHECKING, Annotated, TypeVar

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
from totalorder.cli.reading import records_of
from totalorder.errors import Error, SettingsError

if TYPE_CHECKING:
    from rich.console import Console

    from totalorder.sequencer.wire.control import Answer, Retired, Skipped
    from totalorder.sequencer.wire.stamps import Source, StampedBatch
    from totalorder.subscriber.transport import Partition, Record, Transport

T = TypeVar("T")
_ENTRIES_SHOWN = 12
_MOST = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "inspect", help="Show the sequencer's timestamps, or its answers to subscribers; --json shows digests too."
    )(run)


def run(
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this stamps partition. Not given: all of them.")
    ] = None,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="OFFSET",
            help="Begin here, with --partition or --grants. Not given: at the oldest.",
        ),
    ] = None,
    most: Annotated[
        int | None,
        typer.Option("--max", "-n", min=1, help="Show at most this many batches or answers. Not given: 20."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            min=1,
            help="Show this many of the newest batches or answers instead; reads what comes before too.",
        ),
    ] = None,
    grants: Annotated[bool, typer.Option("--grants", help="Show the answers on grants instead of stamps.")] = False,
    domain: Domain = DEFAULT_DOMAIN,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    as_json: Json = False,
) -> None:
    """Reads from `--from`, or from the oldest, to the present end and changes nothing."""
    if from_offset is not None and partition is None and not grants:
        raise SettingsError(
            "--from is an offset of one partition, and stamps have several",
            remedy="Give --partition with it, or --grants",
        )
    if most is not None and last is not None:
        raise SettingsError("--max is of the oldest, and --last of the newest", remedy="Leave one of them out")
    settings = kafka_settings(kafka)

    from rich.console import Console

    from totalorder.sequencer.wire.names import DomainTopics
    from totalorder.subscriber.kafka_python import KafkaPythonTransport

    names = DomainTopics(domain=domain)
    transport = KafkaPythonTransport(bootstrap_servers, settings)
    try:
        console = Console(soft_wrap=True, highlight=False)
        if grants:
            (at,) = _partitions(transport, names.grants, 0)
            _show_answers(
                console, _some(_answered(records_of(transport, at, from_offset)), most, last), as_json=as_json
            )
        else:
            read = [
                _batches(records_of(transport, at, from_offset), domain, at.number)
                for at in _partitions(transport, names.stamps, partition)
            ]
            _show_batches(console, _some(_by_batch(read), most, last), as_json=as_json)
    finally:
        transport.close()


def _some(all_: Iterator[T], most: int | None, last: int | None) -> Iterable[T]:
    """The first or the last of them; of the latter no more are held."""
    return islice(all_, most or _MOST) if last is None else deque(all_, maxlen=last)


def _partitions(transport: "Transport", topic: str, chosen: int | None) -> list["Partition"]:
    from totalorder.subscriber.transport import Partition

    count = transport.partitions(topic)
    if not count:
        raise Error(f"There is no topic {topic}", remedy="Check --domain; `totalorder sequence` makes its topics.")
    if chosen is None:
        return [Partition(topic, number) for number in range(count)]
    if chosen >= count:
        raise SettingsError(f"{topic} has no partition {chosen}", remedy=f"Give one of 0 to {count - 1}.")
    return [Partition(topic, chosen)]


# --- stamps -----------------------------------------------------------------------------------------------------------


def _batches(records: Iterator["Record"], domain: str, partition: int) -> Iterator[tuple["StampedBatch", "Record"]]:
    """Each complete batch of a stamps partition, with the last of its records."""
    from totalorder.sequencer.wire.codec import StampsAssembler

    assembler = StampsAssembler(domain=domain, partition=partition)
    for record in records:
        batch = assembler.add(record.value, {name: value for name, value in record.headers if value is not None})
        if batch is not None:
            yield batch, record


def _by_batch(
    read: Sequence[Iterator[tuple["StampedBatch", "Record"]]],
) -> Iterator[list[tuple["StampedBatch", "Record"]]]:
    """Of each batch what every partition has of it; a batch that was written again stands there again."""
    # Each partition is in this order by itself, and may begin later than another, by retention.
    merged = merge(*read, key=lambda found: (found[0].batch, found[0].incarnation, found[0].partition))
    for _, found in groupby(merged, key=lambda found: found[0].batch):
        yield list(found)


def _show_batches(
    console: "Console", batches: Iterable[list[tuple["StampedBatch", "Record"]]], *, as_json: bool
) -> None:
    shown = False
    for found in batches:
        shown = True
        if as_json:
            for batch, record in found:
                print(json.dumps(_batch_json(batch, record), ensure_ascii=False))
        else:
            for _, written in groupby(found, key=lambda found: found[0].incarnation):
                _show_batch(console, list(written))
    if not shown and not as_json:
        console.print("There is no complete batch there.")


def _batch_json(batch: "StampedBatch", record: "Record") -> dict[str, object]:
    return {
        "partition": batch.partition,
        "offset": record.offset,
        "batch": batch.batch,
        "incarnation": batch.incarnation,
        "time_ms": batch.time_ms,
        "g": batch.g,
        "control_g": batch.control_g,
        "min_subscriptions": batch.min_subscriptions,
        "advances": [[*source, offset] for source, offset in sorted(batch.next_offsets.items())],
        "previous_digest": batch.previous_digest,
        "digest": batch.digest,
        "stamps": [
            {
                "g": g,
                "topic": topic,
                "n": n,
                "kafka_topic": source.topic,
                "topic_id": source.topic_id,
                "partition": source.partition,
                "offset": offset,
                "crc32": crc,
                "keyframe": keyframe,
                "entries": entries,
            }
            for g, topic, n, source, offset, crc, keyframe, entries in _stamps(batch)
        ],
    }


_Stamp = tuple[int, str, int, "Source", int, int, bool, dict[str, int]]


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


def _show_batch(console: "Console", found: Sequence[tuple["StampedBatch", "Record"]]) -> None:
    """What is true of the batch in every partition, then each partition's events."""
    from datetime import UTC, datetime

    batch, _ = found[0]
    when = datetime.fromtimestamp(batch.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    console.print(f"[bold]batch {batch.batch}[/]  {when}  incarnation {batch.incarnation}")
    console.print(f"  complete through g {batch.g}, answers through g {batch.control_g}")
    named = _names(batch.sources)
    ends = [f"{named[source]}<{end}" for source, end in sorted(batch.next_offsets.items())]
    _show_words(console, "event partitions that went on, and how far:", ends or ["(none)"])
    for each, record in found:
        if len(each.rows):
            _show_stamps(console, each, record)
    empty = [f"stamps[{record.partition}]@{record.offset}" for each, record in found if not len(each.rows)]
    if empty:
        _show_words(console, "no event:", empty)


def _names(sources: Iterable["Source"]) -> dict["Source", str]:
    """What each event partition is called: with Kafka's id of the topic only where two topics have one name."""
    listed = list(sources)
    topics = Counter(name for name, _ in {source.kafka_topic for source in listed})
    return {
        source: f"{source.topic}{f' ({source.topic_id})' if topics[source.topic] > 1 else ''}[{source.partition}]"
        for source in listed
    }


def _show_words(console: "Console", head: str, words: Sequence[str]) -> None:
    """On as many lines as they need."""
    from rich.markup import escape

    lines = textwrap.wrap(
        f"{head} {' '.join(words)}",
        console.width,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print(escape("\n".join(lines)))


def _show_stamps(console: "Console", batch: "StampedBatch", record: "Record") -> None:
    from rich.markup import escape
    from rich.table import Table

    console.print(escape(f"  stamps[{record.partition}]@{record.offset}"))
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("    g", justify="right")
    for heading in ("topic#n", "event", "entries"):
        table.add_column(heading, overflow="fold")
    named = _names(batch.sources)
    for g, topic, n, source, offset, _, keyframe, entries in _stamps(batch):
        mark = "all: " if keyframe else ""
        shown = ", ".join(f"{name} {count}" for name, count in sorted(entries.items())[:_ENTRIES_SHOWN])
        more = f", … {len(entries) - _ENTRIES_SHOWN} more" if len(entries) > _ENTRIES_SHOWN else ""
        event = f"{named[source]}@{offset}"
        table.add_row(f"    {g}", escape(f"{topic}#{n}"), escape(event), escape(f"{mark}{shown}{more}"))
    console.print(table)


# --- grants -----------------------------------------------------------------------------------------------------------


def _answered(records: Iterator["Record"]) -> Iterator[tuple["Answer", "Record"]]:
    from totalorder.sequencer.wire.control import decode_answer

    for record in records:
        if record.value is not None:
            yield decode_answer(record.value), record


def _show_answers(console: "Console", answers: Iterable[tuple["Answer", "Record"]], *, as_json: bool) -> None:
    from rich.markup import escape

    from totalorder.sequencer.wire.control import encode_answer

    shown = False
    for answer, record in answers:
        shown = True
        if as_json:
            print(json.dumps({"kafka_offset": record.offset} | json.loads(encode_answer(answer)), ensure_ascii=False))
        else:
            console.print(escape(f"@{record.offset:<6} g {answer.g:<8} {_told(answer)}"))
    if not shown and not as_json:
        console.print("There is no answer there.")


def _told(answer: "Answer") -> str:
    from totalorder.sequencer.wire.control import Ended, Grant, Rejection, Renewed, Retired, Skipped

    if isinstance(answer, Retired | Skipped):
        return f"{'retired' if isinstance(answer, Retired) else 'skipped':<11} {_of_topic(answer)}"
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


def _of_topic(answer: "Retired | Skipped") -> str:
    lost = [
        f"{answer.topic}[{partition}]@{first}" + (f" to {end - 1}" if end - first > 1 else "")
        for partition, (first, end) in sorted(answer.lost.items())
    ]
    more = f", … {len(lost) - _ENTRIES_SHOWN} more partitions" if len(lost) > _ENTRIES_SHOWN else ""
    told = f"lost, never stamped: {', '.join(lost[:_ENTRIES_SHOWN])}{more}" if lost else "nothing is lost"
    return f"Kafka topic {answer.topic} ({answer.topic_id}), asked by {answer.id}; {told}"
