"""What can be refused before Spark starts, and what is shown; none of it needs Spark."""

import io
import json
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from totalorder.cli import app
from totalorder.cli.audit import show_rows
from totalorder.errors import SettingsError
from totalorder.sinks import audit, session
from totalorder.sinks.audit import Audit, Result, Verdict
from totalorder.sinks.schema import TABLES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a log for each table, and nothing in it."""
    for name in TABLES:
        (tmp_path / "tables" / name / "_delta_log").mkdir(parents=True)
    return tmp_path / "tables"


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main([str(arg) for arg in args])
    return cast("int", ended.value.code)


# --- refused before Spark starts --------------------------------------------------------------------------------------


@pytest.fixture
def _without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def started(*_args: object, **_more: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr(session, "start_delta_session", started)


WHO = ["audit", "--tables", "ROOT", "--only", "who-received", "--param", "topic=a"]


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (
            ["audit", "--tables", "ROOT", "--only", "pairwise"],
            ["no audit 'pairwise'", "nearest one is 'pairwise-order'"],
        ),
        (["audit", "--tables", "ROOT", "--only", "gap"], ["nearest one is 'gaps'"]),
        (["audit", "--tables", "ROOT", "--sql", "ROOT/absent.sql"], ["absent.sql cannot be read"]),
        (["audit", "--tables", "ROOT", "--html", "ROOT/no/x.html"], ["there is no directory"]),
        (["sql", "--tables", "ROOT", "DELETE FROM deliveries"], ["begins with DELETE", "they are evidence"]),
        (["sql", "--tables", "ROOT", "/* SELECT */ -- SELECT\ndrop table events"], ["begins with DROP"]),
        (["sql", "--tables", "ROOT", "WITH a AS (SELECT 1) INSERT INTO events SELECT * FROM a"], ["contains INSERT"]),
        (["sql", "--tables", "ROOT", "FROM events INSERT INTO batches SELECT *"], ["contains INSERT"]),
        (["sql", "--tables", "ROOT", "  "], ["it is empty"]),
        (["audit", "--tables", "ROOT", "--html", "ROOT"], ["is a directory", "report.html"]),
        (WHO, ["the audit who-received needs a value for n", "--param n=VALUE"]),
        ([*WHO, "--param", "n=1", "--param", "N=1"], ["--param N", "nothing that is asked has a :N", "Leave it out"]),
        (["audit", "--tables", "ROOT", "--param", "n=1"], ["--param n", "Ask by --only who-received"]),
        (["sql", "--tables", "ROOT", "SELECT :x"], ["the query needs a value for x"]),
        (["sql", "--tables", "ROOT", "SELECT 1", "--param", "x=1"], ["nothing that is asked has a :x"]),
        (["sql", "--tables", "ROOT", "SELECT 1", "--param", "x"], ["is not NAME=VALUE"]),
        (["audit", "--tables", "ROOT/absent"], ["there is no directory", "totalorder lineage"]),
        (["sql", "--tables", "ROOT/file", "SELECT 1"], ["file is a file", "with a folder for each table"]),
        (["audit", "--tables", "ROOT/events"], ["events is one table"]),
    ],
)
def test_a_mistake_is_told_before_spark_starts(
    root: Path, args: list[str], words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    (root / "file").touch()
    assert run(*(arg.replace("ROOT", str(root)) for arg in args)) == 2
    told = capfd.readouterr().err
    assert all(word in told for word in words), told
    assert "Traceback" not in told


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.parametrize("name", TABLES)
def test_each_table_that_is_absent_is_named(root: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    (root / name / "_delta_log").rmdir()
    assert run("audit", "--tables", root) == 2
    assert f"there is no Delta table {root / name}." in capfd.readouterr().err


@pytest.mark.usefixtures("_without_spark")
@pytest.mark.parametrize(
    "query",
    ["SELECT ':x'", 'SELECT date_format(g, "HH :mm")', "SELECT 1 -- :x", r"SELECT 'it\'s :x'", "SELECT '1'::INT"],
)
def test_what_only_looks_like_a_parameter_asks_for_no_value(root: Path, query: str) -> None:
    with pytest.raises(AssertionError, match="Spark was started"):
        app.main(["sql", "--tables", str(root), query])


# --- shown ------------------------------------------------------------------------------------------------------------


class Told:
    """An auditor whose answers are given; `before` is what was printed before each audit was asked."""

    def __init__(self, capfd: pytest.CaptureFixture[str], verdict: Verdict, not_judged: tuple[str, ...]) -> None:
        self._capfd, self._verdict, self._not_judged = capfd, verdict, not_judged
        self.before: list[str] = []

    def ask(self, audit: Audit, *_args: object, **_more: object) -> Result:
        self.before.append(self._capfd.readouterr().out)
        found = (("a [b]",),) if self._verdict == "violated" else ()
        return Result(
            audit=audit, title=audit.title, verdict=self._verdict, rows_examined=7, seconds=1.25,
            columns=("x",), rows=found, more=False,
        )  # fmt: skip

    def check(self, *_args: object) -> None: ...

    def count(self, *_args: object) -> None: ...

    def known(self) -> tuple[int, int]:
        return 5, 9

    def not_judged(self) -> tuple[str, ...]:
        return self._not_judged


@pytest.fixture
def told(root: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """`told(verdict, not_judged, args…)`: exit code, what came before each audit, and what came after the last."""

    class Spark:
        sparkContext = type("Context", (), {"setLogLevel": lambda *_: None})()  # noqa: N815

    monkeypatch.setattr(session, "start_delta_session", lambda *_args, **_more: Spark())
    monkeypatch.setattr(session, "end_session", lambda _spark: None)
    monkeypatch.setenv("COLUMNS", "80")

    def ask(verdict: Verdict, not_judged: tuple[str, ...], *args: str) -> tuple[int, list[str], str]:
        auditor = Told(capfd, verdict, not_judged)
        monkeypatch.setattr(audit, "Auditor", lambda *_args, **_more: auditor)
        return run("audit", "--tables", root, *args), auditor.before, capfd.readouterr().out

    return ask


TWO = ("--only", "digests", "--only", "pairwise-order")


def test_each_row_is_printed_when_it_is_there(told: Any) -> None:
    code, (first, second), _ = told("holds", (), *TWO)
    assert code == 0
    assert first.split() == ["audit", "verdict", "rows", "examined", "seconds"]
    row, rest = second.splitlines()
    assert row.split()[-3:] == ["holds", "7", "1.2"]
    assert rest.strip() == "partition", "the title goes on below itself"
    assert row.index("holds") == first.index("verdict")


def test_who_is_not_judged_stands_below_the_table(told: Any) -> None:
    _, _, text = told("holds", ("r", "s"), *TWO)
    assert "\n\nnot judged: r, s: granted, no receipts\n" in text
    assert "positions up to 9 are not known" in text
    assert "not judged" not in told("holds", (), *TWO)[2]
    many = told("holds", tuple(f"s{number}" for number in range(30)), *TWO)[2]
    assert "s19 and 10 more: granted" in " ".join(many.split())


def test_nothing_to_judge_does_not_read_as_holds(told: Any) -> None:
    code, _, text = told("empty", (), *TWO)
    assert code == 0
    assert "holds" not in text
    assert "empty: the tables hold nothing that this audit judges" in text


def test_json_is_one_object_a_line_and_ends_with_who_is_not_judged(told: Any) -> None:
    code, before, last = told("violated", ("r",), *TWO, "--json")
    assert code == 1
    first, second, end = (json.loads(line) for line in "".join([*before, last]).splitlines())
    assert json.loads(before[1]) == first, "it is printed before the next audit is asked"
    assert (first["audit"], second["rows"]) == ("digests", [{"x": "a [b]"}])
    assert end == {"judged_through_g": 5, "newest_g": 9, "not_judged": ["r"]}


def shown(width: int, columns: tuple[str, ...], *rows: tuple[object, ...]) -> list[str]:
    console = Console(width=width, file=io.StringIO(), highlight=False)
    show_rows(console, columns, rows)
    return [line.rstrip() for line in cast("io.StringIO", console.file).getvalue().splitlines()]


def test_rows_that_fit_are_a_table() -> None:
    assert shown(10, ("a", "[b]"), ("[red]", None), (1, "2")) == ["a      [b]", "[red]", "1      2"]


def test_rows_that_do_not_fit_are_a_line_for_each_value() -> None:
    assert shown(12, ("a", "long"), ("[red]", "12345678"), (None, 1)) == [
        "a:     [red]",
        "long:  12345",
        "       678",
        "",
        "a:",
        "long:  1",
    ]


def test_an_audit_of_ones_own_may_only_ask(tmp_path: Path) -> None:
    changing = tmp_path / "a.sql"
    changing.write_text("-- title: all is well\nDELETE FROM deliveries")
    with pytest.raises(SettingsError, match=r"a\.sql is not a question"):
        audit.read_audit(changing)


@pytest.mark.parametrize(
    "sql",
    [
        "select 'delete' as \"insert\" from events",
        "WITH a AS (SELECT 'merge') SELECT * FROM a",
        "(SELECT 1)",
        "TABLE x",
    ],
)
def test_a_question_is_let_through_whatever_it_quotes(sql: str) -> None:
    audit.check_is_query(sql, "the query")
