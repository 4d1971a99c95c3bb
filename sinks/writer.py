"""Brings Kafka records into the lineage tables, each row once, whatever the records repeat and wherever the job died.

How far the tables are is read from the tables. Batches of stamps go into `batches` after their events are in `events`,
so a batch that stands there is complete; what a crash left in `events` beyond that is compared, not written again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from totalorder.errors import WireError
from totalorder.sequencer.control import Answer
from totalorder.sequencer.receipts import Receipts
from totalorder.sequencer.stamps import Source
from totalorder.sinks import decode
from totalorder.sinks.decode import ChainEnd, LoggedBatch, LogRecord, StampsReader
from totalorder.sinks.groups import Interval, SequencingGroups
from totalorder.sinks.repeats import unseen

_CELLS_PER_APPEND = 2_000_000
"""Events and entries that are put together before they are written: what one append may hold in memory."""
_DELIVERIES_PER_APPEND = 1_000_000
"""The same for deliveries."""

ReadEvents = Callable[[Mapping[Source, tuple[int, int]]], pa.Table]
"""Reads offset ranges of event partitions; see `decode.with_reads` for the columns."""


@dataclass(frozen=True, kw_only=True)
class Marks:
    """How far the tables are."""

    chains: Mapping[int, ChainEnd]
    """Of each stamps partition in `batches`."""
    deliveries: Mapping[tuple[str, str], int]
    """(subscriber, nonce) to the greatest delivery index."""
    answered_g: int
    """Position of the last answer; 0: none."""
    grants_offset: int
    """Where grants go on; 0: at their beginning."""
    receipts_offsets: Mapping[int, int]
    """Partition to where receipts go on."""


class Tables(Protocol):
    """What the writer asks of the tables."""

    def marks(self) -> Marks:
        """How far the tables are."""

    def orphans(self) -> pa.Table:
        """The events whose batch is not in `batches`."""

    def rows(self, name: str, condition: str) -> pa.Table:
        """The rows for which an SQL condition holds."""

    def append(self, name: str, rows: pa.Table) -> None:
        """Appends rows at once."""

    def merge_groups(self, intervals: Mapping[Interval, int | None]) -> None:
        """New intervals, and ends of known ones."""


@dataclass(eq=False)
class Written:
    """What was written, in rows."""

    batches: int = 0
    events: int = 0
    answers: int = 0
    deliveries: int = 0
    repeated: int = 0
    """Rows that the tables had already."""
    unread: int = 0
    """Events that Kafka no longer had."""
    unusable: int = 0
    """Receipts (records) that could not be read."""

    def add(self, more: "Written") -> None:
        """Counts `more` too."""
        for name, value in vars(more).items():
            setattr(self, name, getattr(self, name) + value)


class LineageWriter:
    """Writes one domain's records into its tables, in log order of each partition."""

    def __init__(self, domain: str, tables: Tables, read_events: ReadEvents) -> None:
        self._domain = domain
        self._tables = tables
        self._read_events = read_events
        self.marks = tables.marks()
        """How far the tables were at the start: where to read on."""
        self._readers: dict[int, StampsReader] = {}
        self._orphans = tables.orphans()
        self._deliveries = dict(self.marks.deliveries)
        self._answered_g = self.marks.answered_g
        self._groups = SequencingGroups()
        self._heal_groups()

    # --- stamps -------------------------------------------------------------------------------------------------------

    def write_stamps(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the stamps topic; parts of a batch whose rest is still to come are kept."""
        for batches in self._chunks(records):
            self._write_batches(batches, written)

    def _chunks(self, records: Iterable[LogRecord]) -> Iterator[list[LoggedBatch]]:
        """The batches that the records complete, so many at a time as one append may hold."""
        chunk: list[LoggedBatch] = []
        cells = 0
        for record in records:
            logged = self._reader(record.partition).add(record)
            if logged is None:
                continue
            chunk.append(logged)
            cells += len(logged.stamped.rows) + len(logged.stamped.rows.entry_topic)
            if cells >= _CELLS_PER_APPEND:
                yield chunk
                chunk, cells = [], 0
        if chunk:
            yield chunk

    def _reader(self, partition: int) -> StampsReader:
        if partition not in self._readers:
            end = self.marks.chains.get(partition)
            self._readers[partition] = StampsReader(domain=self._domain, partition=partition, end=end)
        return self._readers[partition]

    def _write_batches(self, batches: list[LoggedBatch], written: Written) -> None:
        fresh = [logged for logged in batches if not logged.repeated]
        if any(len(logged.stamped.rows) for logged in fresh):
            written.events += self._write_events(decode.event_rows(fresh), written)
        rows = decode.batch_rows(batches)
        if len(fresh) < len(batches):
            numbers = rows.column("batch")
            between = f"batch between {pc.min(numbers).as_py()} and {pc.max(numbers).as_py()}"
            rows = unseen("batches", self._tables.rows("batches", between), rows)
        self._tables.append("batches", rows)
        written.batches += len(rows)
        written.repeated += len(batches) - len(rows)

    def _write_events(self, events: pa.Table, written: Written) -> int:
        if len(self._orphans):
            all_events, events = events, unseen("events", self._orphans, events)
            met = pc.is_in(self._orphans.column("g"), all_events.column("g"))
            self._orphans = self._orphans.filter(pc.invert(met))
        if not len(events):
            return 0
        events = decode.with_reads(events, self._read_events(decode.event_ranges(events)))
        written.unread += events.column("read_crc32").null_count
        self._tables.append("events", events)
        return len(events)

    # --- grants -------------------------------------------------------------------------------------------------------

    def write_answers(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the grants topic."""
        answers = list(decode.decode_answers(records))
        if not answers:
            return
        rows = decode.subscription_rows(self._domain, answers)
        if self._any_repeated([answer for _, answer in answers]):
            g = rows.column("g")
            between = f"g between {pc.min(g).as_py()} and {pc.max(g).as_py()}"
            rows = unseen("subscriptions", self._tables.rows("subscriptions", between), rows)
        self._tables.append("subscriptions", rows)
        self._tables.merge_groups(self._folded(rows))
        written.answers += len(rows)
        written.repeated += len(answers) - len(rows)

    def _any_repeated(self, answers: Iterable[Answer]) -> bool:
        """Whether an answer is not past all before it."""
        repeated = False
        for answer in answers:
            repeated |= answer.g <= self._answered_g
            self._answered_g = max(self._answered_g, answer.g)
        return repeated

    def _folded(self, subscriptions: pa.Table) -> dict[Interval, int | None]:
        """The intervals that changes of subscriptions begin and end."""
        changed: dict[Interval, int | None] = {}
        columns = ["g", "subscriber", "kind", "topics", "min_subscriptions"]
        for row in subscriptions.select(columns).sort_by("g").to_pylist():
            if row["kind"] == "granted":
                self._groups.min_subscriptions = row["min_subscriptions"]
            if row["kind"] in ("granted", "ended"):
                changed |= self._groups.change(row["g"], row["subscriber"], row["topics"] or ())
        return changed

    def _heal_groups(self) -> None:
        """Folds what the tables have, and writes what a crash left out of `sequencing_groups`."""
        folded = self._folded(self._tables.rows("subscriptions", "kind in ('granted', 'ended')"))
        known = {
            (row["topic"], row["member"], row["valid_from_g"]): row["valid_to_g"]
            for row in self._tables.rows("sequencing_groups", "true").to_pylist()
        }
        missing = object()
        self._tables.merge_groups({key: end for key, end in folded.items() if known.get(key, missing) != end})

    # --- receipts -----------------------------------------------------------------------------------------------------

    def write_receipts(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the receipts topic. Any subscriber may write there: one that cannot be read is left out."""
        chunk: list[tuple[LogRecord, Receipts]] = []
        size = 0
        for record in records:
            try:
                receipts = decode.decode_receipt(self._domain, record)
            except WireError as error:
                written.unusable += 1
                place = f"{self._domain}.receipts[{record.partition}]@{record.offset}"
                structlog.get_logger().error("receipt left out", at=place, reason=error.what)
                continue
            chunk.append((record, receipts))
            size += len(receipts)
            if size >= _DELIVERIES_PER_APPEND:
                self._write_deliveries(chunk, written)
                chunk, size = [], 0
        if chunk:
            self._write_deliveries(chunk, written)

    def _write_deliveries(self, receipts: list[tuple[LogRecord, Receipts]], written: Written) -> None:
        rows = decode.delivery_rows(receipts)
        repeated = [one for _, one in receipts if self._is_repeated(one)]
        if repeated:
            rows = unseen("deliveries", self._tables.rows("deliveries", _any_of(repeated)), rows)
        self._tables.append("deliveries", rows)
        written.deliveries += len(rows)
        written.repeated += sum(len(one) for _, one in receipts) - len(rows)

    def _is_repeated(self, receipts: Receipts) -> bool:
        process, last = (receipts.id, receipts.nonce), int(receipts.sequence[-1])
        known = self._deliveries.get(process, 0)
        self._deliveries[process] = max(known, last)
        return bool(receipts.sequence[0] <= known)


def _any_of(receipts: Iterable[Receipts]) -> str:
    """The SQL condition for deliveries of the same processes in the same ranges; ids and nonces need no quoting."""
    ranges: dict[tuple[str, str], tuple[int, int]] = {}
    for one in receipts:
        first, last = int(one.sequence[0]), int(one.sequence[-1])
        least, most = ranges.get((one.id, one.nonce), (first, last))
        ranges[one.id, one.nonce] = min(least, first), max(most, last)
    return " or ".join(
        f"(subscriber = '{id_}' and nonce = '{nonce}' and delivery_index between {least} and {most})"
        for (id_, nonce), (least, most) in ranges.items()
    )
