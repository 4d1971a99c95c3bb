"""`totalorder audit`: asks the lineage tables whether the order held."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from totalorder.cli.options import Json, pairs, said_if_long, spark_settings
from totalorder.errors import SettingsError
from totalorder.java import SHORT_RUN
from totalorder.words import few

if TYPE_CHECKING:
    from rich.console import Console

    from totalorder.sinks.audit import Auditor, Result

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
    "spark.driver.extraJavaOptions": SHORT_RUN,
}
_SHOWN = {
    "holds": "[green]holds[/]",
    "violated": "[bold red]VIOLATED[/]",
    "empty": "[yellow]empty[/]",
    "information": "[dim]information[/]",
}
_GAP = 2
_MOST_NAMES = 20

_HELP = """Prove from the lineage tables alone that the order held.

Each audit is a file of SQL that returns what is wrong; one with nothing to judge is "empty". The exit code is 0 when
none is violated, 1 when one is, 2 when the question cannot be asked.
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
    # What can be refused without Spark is: it takes seconds to start.
    values = parameters(param)
    _check_report(html)
    if only and sql:
        raise SettingsError(
            "--only names audits that come with totalorder, and --sql one of your own", remedy="Give one"
        )
    from totalorder.sinks.audit import KNOWN, NOT_JUDGED, check_values, choose, read_audit, violated

    asked = [read_audit(path) for path in sql] if sql else choose(only or ())
    check_values({f"the audit {audit.name}": audit.parameters for audit in asked}, values)
    named = None if html is not None else [*(audit.sql for audit in asked), KNOWN, NOT_JUDGED]
    with opened(tables, spark_settings(spark), named) as auditor:
        auditor.check({f"the audit {audit.name}": audit.sql for audit in asked if sql}, values)
        auditor.count(said_if_long)
        screen = _Lines() if as_json else _Board([audit.titled(values) for audit in asked])
        results = []
        for audit in asked:
            with screen.asking(audit.titled(values)):
                results.append(auditor.ask(audit, values, most_rows=most_rows))
            screen.show(results[-1])
        screen.end(auditor.known(), auditor.not_judged())
        if html is not None:
            from totalorder.sinks.report import write_report

            with said_if_long("The report is being made …"):
                write_report(html, auditor, results, tables=tables)
            if not as_json:
                print(f"The report is {html}.")
    raise typer.Exit(1 if violated(results) else 0)


def _check_report(html: Path | None) -> None:
    if html is not None and not html.absolute().parent.is_dir():
        raise SettingsError(f"--html: there is no directory {html.absolute().parent}")
    if html is not None and html.is_dir():
        raise SettingsError(f"--html: {html} is a directory", remedy=f"Name a file, such as {html / 'report.html'}")


def parameters(given: list[str] | None) -> dict[str, str]:
    """The values of `--param NAME=VALUE` as a table."""
    return pairs("--param", given, form="NAME=VALUE")


@contextmanager
def opened(tables: str, spark: Mapping[str, str], sql: Sequence[str] | None) -> Iterator["Auditor"]:
    """The tables that the SQL names (None: all), in a Spark session of their own.

    The session is silent: what goes wrong is told in one message.
    """
    import logging

    from totalorder.sinks import session
    from totalorder.sinks.audit import SQL_CONF, Auditor, check_root
    from totalorder.streaming.service import configure_logging

    check_root(tables)
    configure_logging("console")
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    with said_if_long("Spark is starting …"):
        started = session.start_delta_session("totalorder audit", SQL_CONF | _JAVA | dict(spark))
    try:
        started.sparkContext.setLogLevel("OFF")
        with said_if_long("The tables are being opened …"):
            auditor = Auditor(started, tables, sql=sql)
        yield auditor
    finally:
        session.end_session(started)


class _Lines:
    """Results as JSON, one a line."""

    def asking(self, _title: str) -> AbstractContextManager[object]:
        """Says nothing."""
        return nullcontext()

    def show(self, result: "Result") -> None:
        """One audit's line."""
        self._print(
            audit=result.audit.name,
            title=result.title,
            verdict=result.verdict,
            rows_examined=result.rows_examined,
            seconds=round(result.seconds, 3),
            rows=[dict(zip(result.columns, row, strict=True)) for row in result.rows],
            more_rows=result.more,
        )

    def end(self, known: tuple[int, int], not_judged: tuple[str, ...]) -> None:
        """The last line: of what all results hold."""
        self._print(judged_through_g=known[0], newest_g=known[1], not_judged=not_judged)

    def _print(self, **values: Any) -> None:
        print(json.dumps(values, ensure_ascii=False, default=str), flush=True)


class _Board:
    """Results as a table that grows by a row as soon as one is there; then what was found."""

    def __init__(self, titles: list[str]) -> None:
        from rich.console import Console

        self._console = Console(highlight=False)
        self._results: list[Result] = []
        heads = ("audit", "verdict", "rows examined", "seconds")
        verdict, rows, seconds = max(map(len, _SHOWN)), len(heads[2]), len(heads[3])
        room = self._console.width - sum((verdict, rows, seconds)) - len(heads) * _GAP
        self._widths = (min(max(map(len, titles)), max(room, 20)), verdict, rows, seconds)
        self._line(*(f"[bold]{head}[/]" for head in heads))

    def asking(self, title: str) -> AbstractContextManager[object]:
        """Says on a terminal, while the block lasts, what is asked."""
        from rich.markup import escape

        return self._console.status(escape(title))

    def show(self, result: "Result") -> None:
        """One audit's row."""
        from rich.markup import escape

        self._results.append(result)
        seconds = f"{result.seconds:.1f}"
        self._line(escape(result.title), _SHOWN[result.verdict], f"{result.rows_examined:,}", seconds)

    def end(self, known: tuple[int, int], not_judged: tuple[str, ...]) -> None:
        """What is below the table: who is not judged, the rows that were found, how far the order is judged."""
        from rich.markup import escape

        if not_judged:
            self._console.print(f"\nnot judged: {escape(few(not_judged, _MOST_NAMES))}: granted, no receipts")
        if any(result.verdict == "empty" for result in self._results):
            self._console.print("\nempty: the tables hold nothing that this audit judges")
        for result in self._results:
            if result.rows:
                self._console.print(f"\n[bold]{escape(result.audit.name)}[/]: {escape(result.title)}")
                show_rows(self._console, result.columns, result.rows, more=result.more)
        through_g, newest_g = known
        behind = f"; positions up to {newest_g:,} are not known in full yet" if newest_g > through_g else ""
        self._console.print(f"\nThe order is judged through g {through_g:,}{behind}.")

    def _line(self, *cells: str) -> None:
        from rich.table import Table

        line = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        for at, width in enumerate(self._widths):
            line.add_column(width=width, justify="left" if at < 2 else "right")
        line.add_row(*cells)
        self._console.print(line)


def show_rows(console: "Console", columns: tuple[str, ...], rows: Any, *, more: bool = False) -> None:
    """Rows as a table, in whole words; where the console is too narrow for it, a line for each value."""
    from rich.cells import cell_len

    cells = [[_text(value) for value in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(columns, *cells, strict=True)]
    if sum(widths) + _GAP * (len(widths) - 1) <= console.width:
        _show_table(console, columns, cells)
    else:
        _show_lines(console, columns, cells)
    if more:
        console.print("… and more")


def _show_table(console: "Console", columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.markup import escape
    from rich.table import Table
    from rich.text import Text

    table = Table(*map(escape, columns), box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _show_lines(console: "Console", columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    for at, row in enumerate(cells):
        if at:
            console.print()
        block = Table(box=None, show_header=False, pad_edge=False, padding=(0, _GAP, 0, 0))
        block.add_column(style="dim", no_wrap=True)
        block.add_column(overflow="fold")
        for column, cell in zip(columns, row, strict=True):
            block.add_row(Text(f"{column}:"), Text(cell))
        console.print(block)


def _text(value: object) -> str:
    return "" if value is None else str(value)
