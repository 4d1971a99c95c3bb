"""Audits: questions in SQL to the lineage tables, each proven or refuted by rows (docs/audits.md).

An audit is a file of `audits/`: a head of comment lines `-- title:`, `-- proves:`, `-- how:`, `-- limits:`, then Spark
SQL over views named as the tables, which returns what is wrong. `-- judges:` says when rows are a violation: "always"
(the default), "never" (they inform), or "min_subscriptions = 1". `-- subject:` names the table whose rows are judged
where others are read beside it. A file with `-- view: NAME` is a view that others use.
"""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    DateType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)
from pyspark.sql.udtf import UserDefinedTableFunction

from totalorder.errors import Error, SettingsError
from totalorder.sinks.audit_circles import FindCircle
from totalorder.sinks.schema import TABLES
from totalorder.sinks.session import INTERPRETED
from totalorder.sinks.small import read_small
from totalorder.streaming.failures import explained

Verdict = Literal["holds", "violated", "empty", "information"]
"""What an audit comes to; "empty": there was nothing to judge."""

# The tables are read whole: looking for files to skip would only cost.
SQL_CONF = {"spark.sql.shuffle.partitions": "4", "spark.databricks.delta.stats.skipping": "false"}
FEW_ROWS = INTERPRETED | {"spark.sql.shuffle.partitions": "1", "spark.sql.adaptive.enabled": "false"}
"""For small tables of few rows: each part of a query that is planned anew, and each task, costs more than its rows."""
_FEW = 20_000
"""Most rows that all of them have together."""

_ADVICE = "--tables is the root that `totalorder lineage` writes to, with a folder for each table"
_HEAD = re.compile(r"-- (\w+): (.*)")
_WORDS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|(?<![:\w]):([A-Za-z_]\w*)|(\w+)""", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ASKING = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_CHANGING = {"INSERT", "DELETE", "UPDATE", "MERGE"}
_FIND_CIRCLE = "find_circle"
_TOLD_BY_SPARK = (
    TimestampType,
    TimestampNTZType,
    DateType,
    YearMonthIntervalType,
    CalendarIntervalType,
    VariantType,
)
KNOWN = "SELECT through_g, newest_g FROM complete"
NOT_JUDGED = """
WITH granted AS (SELECT subscriber, nonce, g FROM subscriptions WHERE kind = 'granted'),
-- Processes that told nothing while something was owed to them that nobody received: others of their id may tell.
mute AS (
  SELECT DISTINCT granted.subscriber, granted.nonce
  FROM owed JOIN granted ON granted.subscriber = owed.subscriber AND granted.g = owed.granted_g
    LEFT ANTI JOIN deliveries ON deliveries.subscriber = granted.subscriber AND deliveries.nonce = granted.nonce
  WHERE NOT owed.was_received
)
SELECT DISTINCT subscriber FROM granted LEFT ANTI JOIN deliveries USING (subscriber)
UNION ALL
SELECT concat(subscriber, ' (process ', nonce, ')') FROM mute LEFT SEMI JOIN deliveries USING (subscriber)
ORDER BY subscriber
"""
# A batch stands in its table when its events do: events come behind it, so that none of them is missing. Of cuts with
# one number the last counts, and it was there before anything of it was stamped: cuts come last.
_IN_ORDER = ("deliveries", "batches", "subscriptions", "sequencing_groups", "events", "cuts")
Said = Callable[[str], AbstractContextManager[None]]
"""Tells of what goes on while a block lasts."""
_JUDGES = ("always", "never", "min_subscriptions = 1")


@dataclass(frozen=True, kw_only=True)
class Audit:
    """One question. `name` is the file's; `judges` says when rows are a violation; `view` is set where it is a view.

    `subject` is the table whose rows are judged; empty: all that are read.
    """

    name: str
    title: str
    proves: str
    how: str
    limits: str
    judges: str
    subject: str
    view: str
    sql: str

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names of the values, written `:name`, that must be given."""
        return parameters_of(self.sql)

    def titled(self, values: Mapping[str, str]) -> str:
        """The title with the parameters' values."""
        title = self.title
        for name in self.parameters:
            title = title.replace(f":{name}", values[name])
        return title


@dataclass(frozen=True, kw_only=True)
class Result:
    """What an audit found: the first rows, and whether there are more; `rows_examined` are those of the tables read."""

    audit: Audit
    title: str
    verdict: Verdict
    rows_examined: int
    seconds: float
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    more: bool


@cache
def audits() -> tuple[Audit, ...]:
    """All audits and views by name, those that only inform last; no view uses one behind it."""
    folder = files("totalorder.sinks") / "audits"
    found = [
        parse_audit(path.name.removesuffix(".sql"), path.read_text(encoding="utf-8"))
        for path in folder.iterdir()
        if path.name.endswith(".sql")
    ]
    return tuple(sorted(found, key=lambda audit: (audit.judges == "never", audit.name)))


def read_audit(path: Path) -> Audit:
    """An audit of one's own, with or without a head. Raises SettingsError."""
    try:
        audit = parse_audit(path.stem, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the audit {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"the audit {path} is not text in UTF-8") from None
    check_is_query(audit.sql, f"the audit {path}")
    return audit


def parse_audit(name: str, text: str) -> Audit:
    """Takes the head off the SQL; a line of it that names nothing goes on with the line before."""
    head: dict[str, str] = {}
    key = ""
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        line = lines.pop(0)
        if match := _HEAD.fullmatch(line):
            key = match[1]
            head[key] = match[2]
        elif key:
            head[key] += " " + line.removeprefix("--").strip()
    judges = head.get("judges", "always")
    if judges not in _JUDGES:
        raise SettingsError(f"{name}: -- judges: {judges} is unknown", remedy=f"Write one of: {', '.join(_JUDGES)}")
    subject = head.get("subject", "")
    if subject and subject not in TABLES:
        raise SettingsError(f"{name}: -- subject: {subject} is no table", remedy=f"Write one of: {', '.join(TABLES)}")
    return Audit(
        name=name,
        title=head.get("title", name),
        proves=head.get("proves", ""),
        how=head.get("how", ""),
        limits=head.get("limits", ""),
        judges=judges,
        subject=subject,
        view=head.get("view", ""),
        sql="\n".join(lines).strip().removesuffix(";"),
    )


def choose(names: Sequence[str]) -> list[Audit]:
    """The audits of these names; of none, all that need no parameter. Raises SettingsError."""
    known = {audit.name: audit for audit in audits() if not audit.view}
    for name in names:
        if name not in known:
            (nearest,) = get_close_matches(name, known, 1, 0.0)
            raise SettingsError(
                f"there is no audit {name!r}", remedy=f"The nearest one is {nearest!r}, of: {', '.join(known)}"
            )
    return [known[name] for name in names] or [audit for audit in known.values() if not audit.parameters]


def check_values(asked: Mapping[str, Sequence[str]], values: Mapping[str, str]) -> None:
    """Raises SettingsError where a parameter has no value, or a value belongs to none.

    `asked` are what is asked, in words, and its parameters.
    """
    for question, parameters in asked.items():
        if missing := [name for name in parameters if name not in values]:
            raise SettingsError(
                f"{question} needs a value for {', '.join(missing)}", remedy=f"Give it by --param {missing[0]}=VALUE"
            )
    known = {name for parameters in asked.values() for name in parameters}
    for name in values:
        if name not in known:
            needing = [audit.name for audit in audits() if name in audit.parameters]
            raise SettingsError(
                f"--param {name}: nothing that is asked has a :{name}",
                remedy=f"Ask by --only {needing[0]}, or leave it out" if needing else "Leave it out",
            )


def check_root(root: str) -> None:
    """Raises SettingsError where a local directory lacks the tables; a URI is left to Spark."""
    if "://" in root:
        return
    # os.path, which takes what may not be read for absent; Path would raise.
    if os.path.isfile(root):
        raise SettingsError(f"--tables: {root} is a file", remedy=_ADVICE)
    if not os.path.isdir(root):
        raise SettingsError(f"--tables: there is no directory {root}", remedy=_ADVICE)
    if os.path.isdir(f"{root}/_delta_log"):
        raise SettingsError(f"--tables: {root} is one table, not the root of them all", remedy=_ADVICE)
    for name in TABLES:
        if not os.path.isdir(f"{root}/{name}/_delta_log"):
            raise _no_table(root, name)


def parameters_of(sql: str) -> tuple[str, ...]:
    """Names of the values, written `:name`, that the SQL needs."""
    return tuple(sorted({match[1] for match in _WORDS.finditer(sql) if match[1]}))


def words_of(sql: str) -> set[str]:
    """Every word of the SQL in small letters, so every table and view among them."""
    return {match[2].lower() for match in _WORDS.finditer(sql) if match[2]}


def _with_views(words: Set[str]) -> set[str]:
    """The words, and those of the views among them."""
    found, views = set(words), {view.view: words_of(view.sql) for view in audits() if view.view}
    while new := {word for name in found & views.keys() for word in views[name]} - found:
        found |= new
    return found


def _words(sql: Iterable[str] | None) -> set[str]:
    """All that some questions name, directly or in views; of None: whatever can be named."""
    if sql is not None:
        return _with_views(set().union(*map(words_of, sql)))
    return set(TABLES).union(*(words_of(audit.sql) | {audit.view} for audit in audits()))


def check_is_query(sql: str, where: str) -> None:
    """SettingsError for SQL that does more than ask: the tables are evidence."""
    words = [match[2].upper() for match in _WORDS.finditer(_COMMENT.sub(" ", sql)) if match[2]]
    changing = sorted(set(words) & _CHANGING) if words[:1] in (["WITH"], ["FROM"]) else []
    if words[:1] and words[0] in _ASKING and not changing:
        return
    found = f"it contains {changing[0]}" if changing else f"it begins with {words[0]}" if words else "it is empty"
    raise SettingsError(
        f"{where} is not a question: {found}",
        remedy=f"Begin with one of {', '.join(_ASKING)}; what changes the tables is refused, since they are evidence",
    )


class Auditor:
    """The tables below one root, open for questions. `root` is a directory or a URI that Spark knows.

    Raises SettingsError where a table is missing, or a question cannot be asked of them.
    """

    _known: tuple[Any, ...] | None = None

    def __init__(self, spark: SparkSession, root: str, *, sql: Iterable[str] | None = None) -> None:
        """Opens the tables and views that `sql` names, by default all; large tables are not read yet."""
        self._spark = spark
        self._counts: dict[str, int] = {}
        root = root if "://" in root else os.path.abspath(root)  # "a:b/events" would be no path to Hadoop
        words = _words(sql)
        names = [name for name in _IN_ORDER if name in words]
        self._kept: Sequence[str] = ()
        if not self._read(root, names):
            self._counts.clear()
            for name in names:
                frame = _open(spark, root, name)
                _check_columns(root, name, frame.columns)
                frame.createOrReplaceTempView(name)
            if len(names) > 1:  # then all that is asked sees the same rows
                self._kept = names
                for name in names:
                    spark.table(name).cache()
        self._prepare(words)

    def _read(self, root: str, names: Sequence[str]) -> bool:
        """Takes the tables as they are, if all are small: of several, none may be older than one before it."""
        for name in names:
            rows = read_small(root, name)
            if rows is None:
                return False
            _check_columns(root, name, rows.column_names)
            self._spark.createDataFrame(rows).createOrReplaceTempView(name)
            self._counts[name] = len(rows)
        for key, value in (FEW_ROWS if sum(self._counts.values()) <= _FEW else INTERPRETED).items():
            self._spark.conf.set(key, value)
        return True

    def check(self, questions: Mapping[str, str], values: Mapping[str, str] = {}) -> None:
        """Raises SettingsError where a question (SQL by what it is called) cannot be asked; reads no rows."""
        for where, sql in questions.items():
            with _told(where):
                self._spark.sql(_bound(sql, values))

    def count(self, said: Said) -> None:
        """Reads the tables that have not been read yet; `said` is told of each while it lasts."""
        for at, name in enumerate(self._kept, 1):
            with said(f"Table {name} is being read, {at} of {len(self._kept)} …"), _told(f"the table {name}"):
                self._counts[name] = self._spark.table(name).count()

    @classmethod
    def of_views(cls, spark: SparkSession, *, sql: Iterable[str] | None = None) -> "Auditor":
        """The same for a session in which the tables are views already."""
        auditor = cls.__new__(cls)
        auditor._spark = spark
        auditor._counts = {}
        auditor._prepare(_words(sql))
        return auditor

    def _prepare(self, words: Set[str]) -> None:
        if _FIND_CIRCLE in words:
            self._spark.udtf.register(_FIND_CIRCLE, UserDefinedTableFunction(FindCircle, FindCircle.RETURNS))
        for audit in audits():
            if audit.view and audit.view in words:
                with _told(f"the view {audit.view}"):
                    self._spark.sql(audit.sql).cache().createOrReplaceTempView(audit.view)

    def ask(self, audit: Audit, values: Mapping[str, str] = {}, *, most_rows: int = 10) -> Result:
        """Runs one audit; `values` are for its parameters."""
        values = {name: value for name, value in values.items() if name in audit.parameters}
        check_values({f"the audit {audit.name}": audit.parameters}, values)
        began = time.monotonic()
        columns, rows = self.query(audit.sql, values, most_rows=most_rows + 1, where=f"the audit {audit.name}")
        seconds = time.monotonic() - began
        return Result(
            audit=audit,
            title=audit.titled(values),
            verdict=self._verdict(audit, found=bool(rows)),
            rows_examined=self._examined(audit),
            seconds=seconds,
            columns=columns,
            rows=tuple(rows[:most_rows]),
            more=len(rows) > most_rows,
        )

    def query(
        self, sql: str, values: Mapping[str, str] = {}, *, most_rows: int | None = None, where: str = "the query"
    ) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        """Names of the columns and the first rows of any SELECT over the tables; times are texts, in UTC."""
        with _told(where):
            frame = self._spark.sql(_bound(sql, values))
            limited = frame if most_rows is None else frame.limit(most_rows)
            return tuple(frame.columns), [tuple(row) for row in _readable(limited).collect()]

    def known(self) -> tuple[int, int]:
        """The position through which the order is known in full, and the newest known one; 0: none."""
        if self._known is None:
            (self._known,) = self.query(KNOWN)[1]
        through_g, newest_g = self._known
        return through_g, newest_g

    def not_judged(self) -> tuple[str, ...]:
        """The subscribers that were granted a subscription and have no receipts, and of others the processes that have
        none though something was owed: what they received is not known.
        """
        return tuple(name for (name,) in self.query(NOT_JUDGED)[1])

    def _verdict(self, audit: Audit, *, found: bool) -> Verdict:
        if not self._judges(audit):
            return "information"
        if found:
            return "violated"
        judged = self._count(audit.subject) if audit.subject else self._examined(audit)
        return "holds" if judged and self.known()[0] else "empty"

    def _examined(self, audit: Audit) -> int:
        return sum(map(self._count, _with_views(words_of(audit.sql)) & TABLES.keys()))

    def _count(self, table: str) -> int:
        if table not in self._counts:
            self._counts[table] = self._spark.table(table).count()
        return self._counts[table]

    def _judges(self, audit: Audit) -> bool:
        if audit.judges == "min_subscriptions = 1":
            return bool(self.query("SELECT max(min_subscriptions) FROM batches")[1] != [(2,)])
        return audit.judges == "always"


def violated(results: Sequence[Result]) -> bool:
    """Whether any of the results refutes what it was to prove."""
    return any(result.verdict == "violated" for result in results)


def _bound(sql: str, values: Mapping[str, str]) -> str:
    """The SQL with its parameters as literals: Spark's own way to give them is lost on Delta's parser."""

    def literal(match: re.Match[str]) -> str:
        if match[1] not in values:
            return match[0]
        text = values[match[1]].replace("\\", "\\\\").replace("'", "\\'")
        return f"'{text}'"

    return _WORDS.sub(literal, sql)


def _readable(frame: DataFrame) -> DataFrame:
    """The same with that as text which Python has no value for, such as the year 58881; names may be there twice."""
    plain = frame.toDF(*(f"column{at}" for at in range(len(frame.columns))))
    kinds = [(field.name, field.dataType, _as_text(field.dataType)) for field in plain.schema]
    return plain.select(*(F.col(name) if kind == now else F.col(name).cast(now) for name, kind, now in kinds))


def _as_text(kind: DataType) -> DataType:
    if isinstance(kind, ArrayType):
        return ArrayType(_as_text(kind.elementType), kind.containsNull)
    if isinstance(kind, MapType):
        return MapType(_as_text(kind.keyType), _as_text(kind.valueType), kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = [StructField(field.name, _as_text(field.dataType), field.nullable) for field in kind]
        return StructType(fields)
    return StringType() if isinstance(kind, _TOLD_BY_SPARK) else kind


def _path(root: str, name: str) -> str:
    return f"{root.rstrip('/')}/{name}"


def _no_table(root: str, name: str) -> SettingsError:
    return SettingsError(f"there is no Delta table {_path(root, name)}", remedy=_ADVICE)


def _open(spark: SparkSession, root: str, name: str) -> DataFrame:
    path = _path(root, name)
    with _told(f"the table {path}"):
        if not DeltaTable.isDeltaTable(spark, path):
            raise _no_table(root, name)
        return spark.read.format("delta").load(path)


def _check_columns(root: str, name: str, found: Sequence[str]) -> None:
    if missing := [column for column in TABLES[name].names if column not in found]:
        raise SettingsError(
            f"the table {_path(root, name)} was written by an earlier version of totalorder: it has no column "
            f"{', '.join(missing)}",
            remedy="Ask it with that version, or write the lineage anew, under a root of its own",
        )


@contextmanager
def _told(where: str) -> Iterator[None]:
    """What Spark has against it, in its first line and without a trace."""
    try:
        yield
    except (Py4JError, OSError) as error:
        raise explained(error, where) from error
    except PySparkException as error:
        raise _refused(error, where) from None


def _refused(error: PySparkException, where: str) -> Error:
    try:
        lines = str(error.getMessage() if error.getCondition() else error).strip().splitlines()
    except (Py4JError, OSError) as gone:
        return explained(gone, where)
    return SettingsError(f"{where}: {lines[0] if lines else type(error).__name__}")
