"""The Delta tables below one root: making them, reading how far they are, appending to them, compacting them.

An append is fenced: it carries the next number of the lineage job (Delta's txnAppId and txnVersion) and a name of its
own. Of two jobs that write at once, Delta lets one have the number; the other finds that the commit is not its own.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import (
    DataFrame,
    Row,
    SparkSession,
    functions as F,  # noqa: N812
)

from totalorder.errors import SettingsError, StateError
from totalorder.sinks import pieces
from totalorder.sinks.decode import SCHEMAS, ChainEnd
from totalorder.sinks.groups import Interval
from totalorder.sinks.schema import TABLES, Table
from totalorder.sinks.writer import CHANGE, Marks
from totalorder.streaming.store import HadoopStore

APP_ID = "totalorder-lineage"
_DOMAIN = "totalorder.domain"
_ROWS_PER_FILE = 100_000
_PROPERTIES = {
    "delta.enableChangeDataFeed": "true",
    # Each append is a commit, and a checkpoint of the log costs more than some appends.
    "delta.checkpointInterval": "100",
}
_CONFLICT = "DELTA_CONCURRENT"
_MERGE_ATTEMPTS = 3


class Stopped(Exception):
    """A stop was asked for while the tables were being opened: nothing has been written yet."""


class LineageTables:
    """The tables of one domain below `root`, a directory or a URI."""

    def __init__(
        self, spark: SparkSession, root: str, domain: str, *, is_stopping: Callable[[], bool] = lambda: False
    ) -> None:
        """`is_stopping` is asked before each question that a start has to put to the tables; Stopped when it is so."""
        self._spark = spark
        self._is_stopping = is_stopping
        self._root = root.rstrip("/")
        self._domain = domain
        self._driver = uuid.uuid4().hex
        self._files = HadoopStore(spark, self._root)
        self._numbers: dict[str, int] = {}
        """The last number of the lineage job in each table (0: none)."""
        self._empty: set[str] = set()
        """Tables that this object made and has not written to yet: who else did would fence it off."""

    def open(self) -> None:
        """Makes the tables that are missing; StateError when one that exists is another domain's or has other columns.

        From here on only this job may append: another one that does is found at the next append.
        """
        for name, table in TABLES.items():
            self._go_on()
            if DeltaTable.isDeltaTable(self._spark, self.path(name)):
                self._numbers[name] = self._last_number(name, table)
            else:
                self._create(name, table)
                self._numbers[name] = 0
                self._empty.add(name)

    def _go_on(self) -> None:
        if self._is_stopping():
            raise Stopped

    def _last_number(self, name: str, table: Table) -> int:
        snapshot = self._snapshot(name)
        metadata, numbers = snapshot.metadata(), snapshot.transactions()
        properties, fields = metadata.configuration(), metadata.schema().fields()
        domain = str(properties.apply(_DOMAIN)) if properties.contains(_DOMAIN) else "(none)"
        if domain != self._domain:
            raise StateError(
                f"the table {self.path(name)} is that of domain {domain}",
                remedy=f"Give each domain a root of its own (--tables); this is domain {self._domain}",
            )
        found = {str(field.name()): str(field.dataType().catalogString()) for field in fields}
        wanted = {column.name: column.type.lower() for column in table.columns}
        if list(found.items()) != list(wanted.items()):
            differing = sorted(dict(found.items() ^ wanted.items()))
            raise StateError(
                f"the table {self.path(name)} was written by another version of totalorder: it differs in "
                f"{', '.join(differing) or 'the order of its columns'}",
                remedy="Keep it as it is, for that version, and give this one a root of its own (--tables)",
            )
        return int(numbers.apply(APP_ID)) if numbers.contains(APP_ID) else 0

    def _create(self, name: str, table: Table) -> None:
        path = self.path(name)
        # The location alone would be put between backticks as it is, whatever it contains.
        builder = DeltaTable.createIfNotExists(self._spark).tableName(_in_sql(path)).location(path)
        builder = builder.comment(table.comment)
        for column in table.columns:
            builder = builder.addColumn(column.name, column.type, nullable=column.nullable, comment=column.comment)
        # To skip files by; statistics of every column would cost more than the writing itself.
        statistics = {
            "delta.dataSkippingStatsColumns": ",".join(dict.fromkeys((*table.layout, *table.key, *table.marks)))
        }
        for key, value in (_PROPERTIES | statistics | {_DOMAIN: self._domain}).items():
            builder = builder.property(key, value)
        builder.clusterBy(*table.layout).execute()

    def path(self, name: str) -> str:
        """Where a table lies."""
        return f"{self._root}/{name}"

    def frame(self, name: str) -> DataFrame:
        """A table as it is now."""
        return self._spark.read.format("delta").load(self.path(name))

    def marks(self) -> Marks:
        """How far the tables are."""
        chain = "max(struct(batch, digest, g, incarnation, next_stamps_offset as next_offset)) as last"
        chains = self._by("batches", ("stamps_partition",), chain)
        deliveries = self._by("deliveries", ("subscriber", "nonce"), "max(delivery_index) as last")
        receipts = self._by("deliveries", ("receipts_partition",), "max(receipts_offset) + 1 as next")
        answers = self._by("subscriptions", (), "max(g) as g", "max(grants_offset) + 1 as next")
        answered = answers[0].asDict() if answers else {}
        cuts = self._by("cuts", (), "max(cut) as newest", "max(cuts_offset) + 1 as end")
        cut = cuts[0].asDict() if cuts else {}
        return Marks(
            chains={row["stamps_partition"]: ChainEnd(**row["last"].asDict()) for row in chains},
            deliveries={(row["subscriber"], row["nonce"]): row["last"] for row in deliveries},
            answered_g=answered.get("g") or 0,
            grants_offset=answered.get("next") or 0,
            receipts_offsets={row["receipts_partition"]: row["next"] for row in receipts},
            newest_cut=cut.get("newest") or 0,
            cuts_offset=self._last_key_cut(cut["newest"]) if cut.get("newest") else 0,
            cuts_end=cut.get("end") or 0,
        )

    def _last_key_cut(self, newest: int) -> int:
        """Where the last key cut stands from which others of the table went on; 0: none. The newest cut's number is
        left out, since which of several counts is not known of it yet.
        """
        counting = self.frame("cuts").where(F.col("cut") < newest).groupBy("cut")
        last = counting.agg(F.expr("max(struct(cuts_offset, is_key)) as last")).where("last.is_key")
        return _only(last.selectExpr("max(last.cuts_offset) as last"))["last"] or 0

    def _by(self, name: str, keys: tuple[str, ...], *aggregates: str) -> list[Row]:
        self._go_on()
        if name in self._empty:
            return []
        return self.frame(name).groupBy(*keys).agg(*map(F.expr, aggregates)).collect()

    def orphans(self) -> pa.ChunkedArray:
        """The g of the events whose batch is not in `batches`: what a crash left between the two tables."""
        self._go_on()
        if "events" in self._empty:
            return pa.chunked_array([], pa.int64())
        batches = self.frame("batches")
        last = batches.groupBy("stamps_partition").agg(F.max("batch").alias("last"), F.max("partitions").alias("all"))
        known = _only(last.selectExpr("count(*) = max(all) as every", "min(last) as least"))
        # A partition with no batch yet may have events of any.
        through = known["least"] if known["every"] else 0
        events = self.frame("events").where(F.col("batch") > through)
        return events.join(batches, ["stamps_partition", "batch"], "left_anti").select("g").toArrow().column("g")

    def known(self, name: str, rows: pa.Table) -> pa.Table:
        """The rows of a table that have the key of one of these, in the columns that are compared."""
        key, columns = list(TABLES[name].key), TABLES[name].compared
        schema = pa.schema([SCHEMAS[name].field(column) for column in columns])
        if name in self._empty:
            return schema.empty_table()
        found = self.frame(name)
        for column in key:  # whole files are skipped by these
            ends = pc.min_max(rows.column(column)).as_py()
            found = found.where(F.col(column).between(ends["min"], ends["max"]))
        keys = self._spark.createDataFrame(rows.select(key))
        return found.join(F.broadcast(keys), key, "left_semi").select(*columns).toArrow().cast(schema)

    def changes(self) -> Iterator[pa.Table]:
        """The grants and ends of `subscriptions`, in parts that ascend in g."""
        changes = self.frame("subscriptions").where("kind in ('granted', 'ended')").select(*CHANGE)
        return self._in_parts("subscriptions", changes, "g", "100 + coalesce(octet_length(array_join(topics, '')), 0)")

    def groups(self) -> Iterator[pa.Table]:
        """The rows of `sequencing_groups`, in parts."""
        groups = self.frame("sequencing_groups").select("topic", "member", "valid_from_g", "valid_to_g")
        return self._in_parts(
            "sequencing_groups", groups, "valid_from_g", "100 + octet_length(topic) + octet_length(member)"
        )

    def _in_parts(self, name: str, frame: DataFrame, by: str, row_bytes: str) -> Iterator[pa.Table]:
        """Rows by ranges of a column, each of about so many as may be in memory at once; none where there are none."""
        self._go_on()
        if name in self._empty:
            return
        rows_bytes = _only(frame.selectExpr(f"sum({row_bytes}) as bytes"))["bytes"] or 0
        parts = -(-rows_bytes // pieces.AT_ONCE_BYTES)
        cuts = ", ".join(str(part / parts) for part in range(1, parts))
        ends = _only(frame.selectExpr(f"percentile_approx({by}, array({cuts})) as ends"))["ends"] if cuts else []
        edges = [None, *sorted(set(ends)), None] if parts else []
        for after, through in pairwise(edges):
            self._go_on()
            part = frame if after is None else frame.where(F.col(by) > after)
            yield (part if through is None else part.where(F.col(by) <= through)).toArrow()

    def append(self, name: str, rows: pa.Table) -> None:
        """Appends rows in one commit; StateError when another lineage job wrote to the table since it was opened."""
        if not len(rows):
            return
        before = self._version(name)
        number, mark = self._numbers[name] + 1, f"{APP_ID} {self._driver} {self._numbers[name] + 1}"
        writer = self._frame_of(rows).write.format("delta").mode("append").option("userMetadata", mark)
        try:
            writer.option("txnAppId", APP_ID).option("txnVersion", number).save(self.path(name))
        except PySparkException as error:
            if _CONFLICT not in str(error):
                raise
            raise self._fenced(name) from None
        after = self._version(name)
        if not any(mark in commit for commit in self._commits(name, before, after)):
            raise self._fenced(name)
        self._numbers[name] = number
        self._empty.discard(name)

    def _frame_of(self, rows: pa.Table) -> DataFrame:
        files = -(-len(rows) // _ROWS_PER_FILE)
        return self._spark.createDataFrame(rows).coalesce(files)

    def _fenced(self, name: str) -> StateError:
        return StateError(
            f"another lineage job writes to {self.path(name)}; this one has stopped, and left the tables as they were",
            remedy="Run one lineage job for a domain; stop the other one before starting this one again",
        )

    def _version(self, name: str) -> int:
        return int(self._snapshot(name).version())

    def _snapshot(self, name: str) -> Any:
        """The table as its log has it now; what it says of rows or numbers costs Spark a job, its version nothing."""
        jvm: Any = self._spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.path(name))
        none = jvm.scala.Option.empty()
        return log.update(False, none, none)

    def _commits(self, name: str, after: int, through: int) -> Iterator[str]:
        """The log's entries after one version through another, newest first (Delta's protocol names the files)."""
        for version in range(through, after, -1):
            yield self._files.read(f"{name}/_delta_log/{version:020d}.json") or ""

    def merge_groups(self, intervals: Mapping[Interval, int | None]) -> None:
        """Brings intervals into `sequencing_groups`: new ones, and the end of those that are there."""
        if not intervals:
            return
        topics, members, begins = zip(*intervals, strict=True)
        columns = [[self._domain] * len(intervals), topics, members, begins, list(intervals.values())]
        changed = self._spark.createDataFrame(pa.table(columns, schema=SCHEMAS["sequencing_groups"]))
        for attempt in range(_MERGE_ATTEMPTS):
            try:
                self._merge_groups(changed)
                self._empty.discard("sequencing_groups")
                return
            except PySparkException as error:  # a compaction came in between
                if _CONFLICT not in str(error) or attempt == _MERGE_ATTEMPTS - 1:
                    raise

    def _merge_groups(self, changed: DataFrame) -> None:
        same = " and ".join(f"old.{name} = new.{name}" for name in TABLES["sequencing_groups"].key)
        table = DeltaTable.forPath(self._spark, self.path("sequencing_groups")).alias("old")
        (
            table.merge(changed.alias("new"), same)
            .whenMatchedUpdate("old.valid_to_g is null", {"valid_to_g": "new.valid_to_g"})
            .whenNotMatchedInsertAll()
            .execute()
        )


def compact(spark: SparkSession, root: str, retention_days: float) -> Iterator[tuple[str, int, int]]:
    """Puts small files together in the order of each table's layout, and deletes files that no version of the last
    `retention_days` needs; yields (table, files before, files after). Safe while the lineage job runs.
    """
    hours = retention_days * 24
    interval = f"interval {round(hours)} hours"
    for name in TABLES:
        path = f"{root.rstrip('/')}/{name}"
        if not DeltaTable.isDeltaTable(spark, path):
            raise absent(path)
        keep = f"'delta.deletedFileRetentionDuration' = '{interval}', 'delta.logRetentionDuration' = '{interval}'"
        spark.sql(f"alter table {_in_sql(path)} set tblproperties ({keep})")
        table = DeltaTable.forPath(spark, path)
        before = _files(table)
        if before > 1:
            spark.sql(f"optimize {_in_sql(path)}")
        table.vacuum(hours)
        yield name, before, _files(table)


def _in_sql(path: str) -> str:
    """The table at a path as SQL names it."""
    escaped = path.replace("`", "``")
    return f"delta.`{escaped}`"


def absent(path: str) -> SettingsError:
    """What to say where there should be a table, or tables."""
    return SettingsError(f"there is no lineage table at {path}", remedy="Give the root that the lineage job writes to")


def _files(table: DeltaTable) -> int:
    return int(_only(table.detail())["numFiles"])


def _only(frame: DataFrame) -> Row:
    (row,) = frame.collect()
    return row
