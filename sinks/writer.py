"""Brings Kafka records into the lineage tables, each row once, whatever the records repeat and wherever the job died.

How far the tables are is read from the tables. Batches of stamps go into `batches` after their events are in `events`,
so a batch that stands there is complete; what a crash left in `events` beyond that is compared, not written again.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from totalorder.errors import EventsLost, WireError
from totalorder.sequencer.wire.control import Answer
from totalorder.sequencer.wire.receipts import Receipts
from totalorder.sinks import decode, pieces
from totalorder.sinks.decode import ChainEnd, CutsReader, LoggedBatch, LoggedCut, LogRecord, StampsReader
from totalorder.sinks.groups import Interval, SequencingGroups
from totalorder.sinks.repeats import unseen

_INTERVAL_BYTES = 100
"""About what an interval of `sequencing_groups` has in memory beside the names in it."""
CHANGE = ("g", "subscriber", "kind", "topics", "min_subscriptions")
"""The columns of `subscriptions` from which the groups follow."""
Turn = tuple[Interval, int | None]
"""An interval that begins (None) or ends (at this position)."""

ReadEvents = Callable[[pa.Table], Iterable[pa.Table]]
"""Fills in what the log has of some events, and gives them back in parts that may be in memory at once."""


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
    newest_cut: int
    """Greatest number in `cuts`; 0: none."""
    cuts_offset: int
    """Where cuts go on, at a key cut, so that some come again; 0: at their beginning."""
    cuts_end: int
    """Behind the last record of which a row is in `cuts`; 0: none."""


class Tables(Protocol):
    """What the writer asks of the tables."""

    def marks(self) -> Marks:
        """How far the tables are."""

    def orphans(self) -> pa.ChunkedArray:
        """The g of the events whose batch is not in `batches`."""

    def known(self, name: str, rows: pa.Table) -> pa.Table:
        """The rows that have the key of one of these, at least the columns that are compared."""

    def changes(self) -> Iterator[pa.Table]:
        """The grants and ends of `subscriptions`, in parts that ascend in g."""

    def groups(self) -> Iterator[pa.Table]:
        """The rows of `sequencing_groups`, in parts."""

    def append(self, name: str, rows: pa.Table) -> None:
        """Appends rows at once."""

    def merge_groups(self, intervals: Mapping[Interval, int | None]) -> None:
        """New intervals, and ends of known ones."""


@dataclass(eq=False)
class Written:
    """What was written, in rows."""

    cuts: int = 0
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
        self._unusable_told = False
        self._answered_g = self.marks.answered_g
        self._groups = SequencingGroups()
        self._heal_groups()
        self._cuts = CutsReader(domain=domain)
        self._newest_cut = self.marks.newest_cut

    # --- cuts ---------------------------------------------------------------------------------------------------------

    def write_cuts(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the cuts topic. EventsLost where the tables lack a cut that Kafka no longer has."""
        found = (logged for record in records for logged in self._cuts.add(record))
        for cuts in pieces.chunks(found, lambda logged: logged.bytes, pieces.AT_ONCE_BYTES):
            self._check_follow(cuts)
            rows = decode.cut_rows(cuts)
            if cuts[0].offset < self.marks.cuts_end:  # read again from the key cut before them
                rows = unseen("cuts", self._tables.known("cuts", rows), rows)
            self._tables.append("cuts", rows)
            written.cuts += len(rows)

    def _check_follow(self, cuts: Iterable[LoggedCut]) -> None:
        for logged in cuts:
            if self._newest_cut and logged.cut.cut > self._newest_cut + 1:
                raise EventsLost(
                    f"{self._domain}.cuts goes from cut {self._newest_cut} to {logged.cut.cut}: Kafka no longer has "
                    "what lies between",
                    remedy="Nothing was skipped. Keep the tables as they are, and begin new ones under another root",
                )
            self._newest_cut = max(self._newest_cut, logged.cut.cut)

    # --- stamps -------------------------------------------------------------------------------------------------------

    def write_stamps(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the stamps topic; parts of a batch whose rest is still to come are kept."""
        logged = (self._reader(record.partition).add(record) for record in records)
        whole = (batch for batch in logged if batch is not None)
        for batches in pieces.chunks(whole, lambda batch: batch.bytes, pieces.AT_ONCE_BYTES):
            self._write_batches(batches, written)

    def _reader(self, partition: int) -> StampsReader:
        if partition not in self._readers:
            end = self.marks.chains.get(partition)
            self._readers[partition] = StampsReader(domain=self._domain, partition=partition, end=end)
        return self._readers[partition]

    def _write_batches(self, batches: list[LoggedBatch], written: Written) -> None:
        for part in decode.in_parts(logged for logged in batches if not logged.repeated):
            self._write_events(decode.event_rows(part), written)
        rows = decode.batch_rows(batches)
        if any(logged.repeated for logged in batches):
            rows = unseen("batches", self._tables.known("batches", rows), rows)
        self._tables.append("batches", rows)
        written.batches += len(rows)
        written.repeated += len(batches) - len(rows)

    def _write_events(self, events: pa.Table, written: Written) -> None:
        fresh = self._without_orphans(events)
        for part in self._read_events(fresh) if len(fresh) else ():
            self._tables.append("events", part)
            written.events += len(part)
            written.unread += part.column("read_crc32").null_count

    def _without_orphans(self, events: pa.Table) -> pa.Table:
        """Those that no run before has left in the table; what one has left must be the same."""
        left = events.filter(pc.is_in(events.column("g"), value_set=self._orphans))
        if not len(left):
            return events
        self._orphans = self._orphans.filter(pc.invert(pc.is_in(self._orphans, value_set=left.column("g"))))
        return unseen("events", self._tables.known("events", left), events)

    # --- grants -------------------------------------------------------------------------------------------------------

    def write_answers(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the grants topic."""
        answers = list(decode.decode_answers(records))
        if not answers:
            return
        rows = decode.subscription_rows(self._domain, answers)
        if self._any_repeated([answer for _, answer in answers]):
            rows = unseen("subscriptions", self._tables.known("subscriptions", rows), rows)
        self._tables.append("subscriptions", rows)
        for intervals in self._folded(rows):
            self._tables.merge_groups(intervals)
        written.answers += len(rows)
        written.repeated += len(answers) - len(rows)

    def _any_repeated(self, answers: Iterable[Answer]) -> bool:
        """Whether an answer is not past all before it."""
        repeated = False
        for answer in answers:
            repeated |= answer.g <= self._answered_g
            self._answered_g = max(self._answered_g, answer.g)
        return repeated

    def _folded(self, subscriptions: pa.Table) -> Iterator[dict[Interval, int | None]]:
        """The intervals that changes of subscriptions begin and end."""
        return _merged(self._turns(subscriptions.select(CHANGE).sort_by("g").to_pylist()))

    def _turns(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Turn]:
        for row in rows:
            if row["kind"] == "granted":
                self._groups.min_subscriptions = row["min_subscriptions"]
            if row["kind"] in ("granted", "ended"):
                yield from self._groups.change(row["g"], row["subscriber"], row["topics"] or ()).items()

    def _heal_groups(self) -> None:
        """Folds what the tables have, and writes what a crash left out of `sequencing_groups`."""
        missing: dict[Interval, int | None] = {}
        for part in self._tables.changes():
            for intervals in self._folded(part):
                missing |= intervals
        for part in self._tables.groups():
            for row in part.to_pylist():
                key = (row["topic"], row["member"], row["valid_from_g"])
                if key in missing and missing[key] == row["valid_to_g"]:
                    del missing[key]
        for intervals in _merged(missing.items()):
            self._tables.merge_groups(intervals)

    # --- receipts -----------------------------------------------------------------------------------------------------

    def write_receipts(self, records: Iterable[LogRecord], written: Written) -> None:
        """Takes records of the receipts topic. Any subscriber may write there: one that cannot be read is left out and
        counted, and the first one is told.
        """
        usable = self._usable(records, written)
        for chunk in pieces.chunks(usable, lambda one: decode.receipts_bytes(one[1]), pieces.AT_ONCE_BYTES):
            self._write_deliveries(chunk, written)

    def _usable(self, records: Iterable[LogRecord], written: Written) -> Iterator[tuple[LogRecord, Receipts]]:
        for record in records:
            try:
                yield record, decode.decode_receipt(self._domain, record)
            except WireError as error:
                written.unusable += 1
                self._tell_unusable(record, error.what)

    def _tell_unusable(self, record: LogRecord, reason: str) -> None:
        if not self._unusable_told:
            self._unusable_told = True
            place = f"{self._domain}.receipts[{record.partition}]@{record.offset}"
            structlog.get_logger().error("receipt left out", at=place, reason=reason, others="counted as unusable")

    def _write_deliveries(self, receipts: list[tuple[LogRecord, Receipts]], written: Written) -> None:
        rows = decode.delivery_rows(receipts)
        repeated = [one for one in receipts if self._is_repeated(one[1])]
        if repeated:
            rows = unseen("deliveries", self._tables.known("deliveries", decode.delivery_rows(repeated)), rows)
        self._tables.append("deliveries", rows)
        written.deliveries += len(rows)
        written.repeated += sum(len(one) for _, one in receipts) - len(rows)

    def _is_repeated(self, receipts: Receipts) -> bool:
        process, last = (receipts.id, receipts.nonce), int(receipts.sequence[-1])
        known = self._deliveries.get(process, 0)
        self._deliveries[process] = max(known, last)
        return bool(receipts.sequence[0] <= known)


def _merged(turns: Iterable[Turn]) -> Iterator[dict[Interval, int | None]]:
    """Intervals with their last ends, so many at a time as one merge may hold."""
    for chunk in pieces.chunks(turns, _turn_bytes, pieces.AT_ONCE_BYTES):
        yield dict(chunk)


def _turn_bytes(turn: Turn) -> int:
    (topic, member, _), _ = turn
    return _INTERVAL_BYTES + len(topic) + len(member)
