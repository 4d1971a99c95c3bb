"""`totalorder audit`: asks the lineage tables whether the order held."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from totalorder.cli.options import Json, pairs, said_if_long, spark_settings
from totalorder.errors import SettingsError

if TYPE_CHECKING:
    from totalorder.sinks.audit import Audit, Auditor, Result

Tables = Annotated[
    str, typer.Option("--tables", "-t", metavar="DIR", help="Root of the lineage tables: a directory, or a URI.")
]
Parameters = Annotated[
    list[str] | None,
    typer.Option("--param", metavar="NAME=VALUE", help="A value for a :name in the SQL. Repeatable."),
]
Spark = Annotated[list[str] | None, typer.Option("--spark", metavar="KEY=VALUE", help="A Spark setting. Repeatable.")]
_JAVA = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
_SHOWN = {"holds": "[green]holds[/]", "violated": "[bold red]VIOLATED[/]", "information": "[dim]information[/]"}

_HELP = """Prove from the lineage tables alone that the order held.

Each audit is a file of SQL that returns what is wrong. The exit code is 0 when all hold, 1 when one is violated, 2
when the question cannot be asked.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit", help=_HELP)(run)


def run(
    tables: Tables,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Only this audit. Repeatable.")
    ] = None,
    sql: Annotated[
        list[Path] | None,
        typer.Option(
            "--sql", metavar="FILE", help="Only this audit of your own: SQL whose rows are violations. Repeatable."
        ),
    ] = None,
    param: Parameters = None,
    most_rows: Annotated[
        int, typer.Option("--rows", min=0, metavar="N", help="Show at most this many rows of an audit.")
    ] = 10,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report for a browser, too.")
    ] = None,
    spark: Spark = None,
    as_json: Json = False,
) -> None:
    """Runs the audits that are asked for; those with parameters only by name."""
    values = parameters(param)
    if html is not None and not html.absolute().parent.is_dir():
        raise SettingsError(f"--html: there is no directory {html.absolute().parent}")
    if only and sql:
        raise SettingsError(
            "--only names audits that come with totalorder, and --sql one of your own", remedy="Give one"
        )
    with opened(tables, spark_settings(spark)) as auditor:
        from totalorder.sinks.audit import read_audit, violated

        asked = [read_audit(path) for path in sql] if sql else _chosen(only)
        results = []
        for audit in asked:
            results.append(auditor.ask(audit, values, most_rows=most_rows))
            if as_json:
                print(json.dumps(_json(results[-1]), ensure_ascii=False, default=str))
        if not as_json:
            _show(results, auditor.known())
        if html is not None:
            from totalorder.sinks.report import write_report

            write_report(html, auditor, results, tables=tables)
            if not as_json:
                print(f"The report is {html}.")
    raise typer.Exit(1 if violated(results) else 0)


def parameters(given: list[str] | None) -> dict[str, str]:
    """The values of `--param NAME=VALUE` as a table."""
    return pairs("--param", given, form="NAME=VALUE")


@contextmanager
def opened(tables: str, spark: Mapping[str, str]) -> Iterator["Auditor"]:
    """The tables in a Spark session of their own, which is silent: what goes wrong is told in one message."""
    if "://" not in tables and not Path(tables).is_dir():
        raise SettingsError(f"--tables: there is no directory {tables}", remedy="`totalorder lineage` fills one")
    import logging

    from totalorder.sinks import session
    from totalorder.sinks.audit import SQL_CONF, Auditor
    from totalorder.streaming.service import configure_logging
    from totalorder.streaming.session import stop_session

    configure_logging("console")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with said_if_long("Spark is starting …"):
        started = session.start_delta_session("totalorder audit", SQL_CONF | _JAVA | dict(spark))
    try:
        started.sparkContext.setLogLevel("OFF")
        yield Auditor(started, tables)
    finally:
        stop_session(started)


def _chosen(only: list[str] | None) -> list["Audit"]:
    from totalorder.sinks.audit import audits

    known = {audit.name: audit for audit in audits() if not audit.view}
    if unknown := [name for name in only or () if name not in known]:
        raise SettingsError(f"there is no audit {unknown[0]!r}", remedy=f"There are: {', '.join(known)}")
    if only:
        return [known[name] for name in only]
    return [audit for audit in known.values() if not audit.parameters]


def _json(result: "Result") -> dict[str, Any]:
    return {
        "audit": result.audit.name,
        "title": result.title,
        "verdict": result.verdict,
        "rows_examined": result.rows_examined,
        "seconds": round(result.seconds, 3),
        "rows": [dict(zip(result.columns, row, strict=True)) for row in result.rows],
        "more_rows": result.more,
    }


def _show(results: list["Result"], known: tuple[int, int]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    board = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in (("audit", "left"), ("verdict", "left"), ("rows examined", "right"), ("seconds", "right")):
        board.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for result in results:
        seconds = f"{result.seconds:.1f}"
        board.add_row(result.title, _SHOWN[result.verdict], f"{result.rows_examined:,}", seconds)
    console.print(board)
    for result in results:
        if result.rows:
            console.print(f"\n[bold]{result.audit.name}[/]: {result.title}")
            show_rows(console, result.columns, result.rows, more=result.more)
    through_g, newest_g = known
    behind = f"; positions up to {newest_g:,} are not known in full yet" if newest_g > through_g else ""
    console.print(f"\nThe order is judged through g {through_g:,}{behind}.")


def show_rows(console: Any, columns: tuple[str, ...], rows: Any, *, more: bool = False) -> None:
    """Rows as a table, in whole words."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(escape(column), overflow="fold")
    for row in rows:
        table.add_row(*(escape("" if value is None else str(value)) for value in row))
    console.print(table)
    if more:
        console.print("… and more")
