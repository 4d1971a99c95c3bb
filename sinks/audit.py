"""Audits: questions in SQL to the lineage tables, each proven or refuted by rows (docs/audits.md).

An audit is a file of `audits/`: a head of comment lines `-- title:`, `-- proves:`, `-- how:`, `-- limits:`, then Spark
SQL over views named as the tables, which returns what is wrong. `-- judges:` says when rows are a violation: "always"
(the default), "never" (they inform), or "min_subscriptions = 1". `-- subject:` names the table whose rows are judged
where others are read beside it. A file with `-- view: NAME` is a view that others use.
"""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from delta.tables import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.udtf import UserDefinedTableFunction

from totalorder.errors import SettingsError
from totalorder.sinks.audit_circles import FindCircle
from totalorder.sinks.schema import TABLES

Verdict = Literal["holds", "violated", "empty", "information"]
"""What an audit comes to; "empty": there was nothing to judge."""

# The tables are read whole: looking for files to skip would only cost.
SQL_CONF = {"spark.sql.shuffle.partitions": "4", "spark.databricks.delta.stats.skipping": "false"}

_ADVICE = "--tables is the root that `totalorder lineage` writes to, with a folder for each table"
_HEAD = re.compile(r"-- (\w+): (.*)")
_WORDS = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|(?<![:\w]):([A-Za-z_]\w*)|(\w+)""", re.DOTALL)
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ASKING = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_CHANGING = {"INSERT", "DELETE", "UPDATE", "MERGE"}
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

    @property
    def words(self) -> set[str]:
        """Every word of the SQL, so every table among them."""
        return {match[2] for match in _WORDS.finditer(self.sql) if match[2]}


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

    def __init__(self, spark: SparkSession, root: str) -> None:
        self._spark = spark
        self._counts: dict[str, int] = {}
        # All that is asked sees the same rows, kept when they are first counted. A batch stands in its table when its
        # events do: events come last, so that none of them is missing.
        for name in ("deliveries", "batches", "subscriptions", "sequencing_groups", "events"):
            _open(spark, root, name).cache().createOrReplaceTempView(name)
            self._counts[name] = spark.table(name).count()
        self._prepare()

    @classmethod
    def of_views(cls, spark: SparkSession) -> "Auditor":
        """The same for a session in which the tables are views already."""
        auditor = cls.__new__(cls)
        auditor._spark = spark
        auditor._counts = {name: spark.table(name).count() for name in TABLES}
        auditor._prepare()
        return auditor

    def _prepare(self) -> None:
        self._spark.udtf.register("find_circle", UserDefinedTableFunction(FindCircle, FindCircle.RETURNS))
        for audit in audits():
            if audit.view:
                self._spark.sql(audit.sql).cache().createOrReplaceTempView(audit.view)
        ((through_g, newest_g),) = self.query("SELECT through_g, newest_g FROM complete")[1]
        self._known = (through_g, newest_g)

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
        """Names of the columns and the first rows of any SELECT over the tables."""
        with _told(where):
            frame = self._spark.sql(_bound(sql, values))
            limited = frame if most_rows is None else frame.limit(most_rows)
            return tuple(frame.columns), [tuple(row) for row in limited.collect()]

    def known(self) -> tuple[int, int]:
        """The position through which the order is known in full, and the newest known one; 0: none."""
        return self._known

    def not_judged(self) -> tuple[str, ...]:
        """The subscribers that were granted a subscription and have no receipts: what they received is not known."""
        sql = (
            "SELECT DISTINCT subscriber FROM subscriptions LEFT ANTI JOIN deliveries USING (subscriber) "
            "WHERE kind = 'granted' ORDER BY subscriber"
        )
        return tuple(name for (name,) in self.query(sql)[1])

    def _verdict(self, audit: Audit, *, found: bool) -> Verdict:
        if not self._judges(audit):
            return "information"
        if found:
            return "violated"
        judged = self._counts.get(audit.subject, self._examined(audit))
        return "holds" if judged and self._known[0] else "empty"

    def _examined(self, audit: Audit) -> int:
        return sum(self._counts[name] for name in self._reads(audit))

    def _judges(self, audit: Audit) -> bool:
        if audit.judges == "min_subscriptions = 1":
            return bool(self.query("SELECT max(min_subscriptions) FROM batches")[1] != [(2,)])
        return audit.judges == "always"

    def _reads(self, audit: Audit) -> set[str]:
        """The tables that an audit names, by itself or by the views that it names."""
        words, views = set(audit.words), {view.view: view.words for view in audits() if view.view}
        while new := {word for name in words & views.keys() for word in views[name]} - words:
            words |= new
        return words & TABLES.keys()


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


@contextmanager
def _told(where: str) -> Iterator[None]:
    """What Spark has against it, in its first line and without a trace."""
    try:
        yield
    except PySparkException as error:
        lines = str(error.getMessage() if error.getCondition() else error).strip().splitlines()
        raise SettingsError(f"{where}: {lines[0] if lines else type(error).__name__}") from None
