"""`totalorder bench`: measures, and prints ratios within the run."""

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from totalorder.cli.extras import require
from totalorder.cli.options import on_hangup
from totalorder.errors import Error, SettingsError

if TYPE_CHECKING:
    from rich.table import Table as Drawn

    from totalorder.bench.outcome import Outcome, Table

_BENCHMARKS = {
    "kernel": "Timestamps a second of the compiled kernel, against a plain one in Python.",
    "job": "Throughput and delay of the sequencer job, against Spark queries that only copy.",
    "bytes": "What timestamps take on the broker, an event.",
    "growth": "Cost of an event and of a subscription as topics and subscriptions grow.",
    "shards": "The stamping job in 1, 2 and 4 shards on separate executors.",
    "peers": "The same load through other ways to order events.",
    "figures": "The paper's figures, measured here.",
    "partitions": "Delay and memory of the job as event topics have more partitions, against a copy.",
    "subscriber": "A backlog through a Subscriber, beside the clients that it reads by.",
    "start": "Delay of the first minute behind a start of everything, beside a plain consumer.",
    "order": "How often an event comes before the one that caused it, by how soon after it was published.",
}
_WRITING = ("bytes", "growth", "figures", "partitions", "order")
"""Those that leave plots and data behind."""
Quick = Annotated[bool, typer.Option("--quick", help="Smaller sizes: a minute to four, and rougher figures.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Only prove that it runs: the figures mean nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object, for programs.")]
Beside = Annotated[
    Path | None,
    typer.Option(
        "--beside",
        metavar="PYTHON",
        help="Compare with the job of another installation, instead of with copies: the Python that has it.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Where plots and data are put.")]


def register(app: typer.Typer) -> None:
    """Add the group with one command a benchmark."""
    group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    for name, text in _BENCHMARKS.items():
        group.command(name, help=text)(_command(name))
    app.add_typer(group, name="bench", help="Measure it on this machine (docs/performance.md).")


def _command(name: str) -> Callable[..., None]:
    def run(quick: Quick = False, smoke: Smoke = False, as_json: Json = False) -> None:
        _measure(name, Path(), quick=quick, smoke=smoke, as_json=as_json)

    def run_writing(
        quick: Quick = False, smoke: Smoke = False, out: Out = Path("bench-out"), as_json: Json = False
    ) -> None:
        _measure(name, out, quick=quick, smoke=smoke, as_json=as_json)

    def run_beside(quick: Quick = False, smoke: Smoke = False, as_json: Json = False, beside: Beside = None) -> None:
        _measure(name, Path(), quick=quick, smoke=smoke, as_json=as_json, beside=beside)

    if name == "job":
        return run_beside
    return run_writing if name in _WRITING else run


def _measure(name: str, out: Path, *, quick: bool, smoke: bool, as_json: bool, beside: Path | None = None) -> None:
    if quick and smoke:
        raise SettingsError("--quick and --smoke are two sizes", remedy="Give one")
    require("bench")
    if name in _WRITING:
        _make(out)
    from totalorder.bench.outcome import Request, Size

    size = Size.QUICK if quick else Size.SMOKE if smoke else Size.FULL
    module = import_module(f"totalorder.bench.{'job.beside' if beside is not None else f'{name}.command'}")
    with _ended_by_signals():
        outcome: Outcome = module.run(Request(size=size, say=_say, out=out, beside=beside))
    if as_json:
        print(json.dumps(outcome.data), flush=True)
    else:
        _show(outcome)
    files = _written(outcome, out)
    if not as_json:
        for path in files:
            print(f"Written: {path}")
    if smoke:
        _say("At the sizes of --smoke these figures mean nothing.")
    if outcome.broken:
        raise Error(
            f"bench {name} breaks a claim: {'; '.join(outcome.broken)}",
            remedy="Run it again on a quiet machine; if it stays, it is a fault of totalorder: please report it",
        )


def _make(out: Path) -> None:
    """Before the work whose results go there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"--out: {out} cannot be made: {error.strerror}", remedy="Name another folder") from None


def _written(outcome: "Outcome", out: Path) -> Sequence[Path]:
    try:
        return outcome.write()
    except OSError as error:
        raise Error(
            f"--out: {error.filename or out} cannot be written: {error.strerror}",
            remedy="Make room there, or name another folder, and measure again for plots and data",
        ) from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM, and SIGHUP of a terminal that is closed, as Ctrl-C: what runs is stopped, and temporary folders are
    removed, on the way out.
    """
    asked = 0

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = number
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    on_hangup(end)
    try:
        yield
    except Exception:
        # A call into Java that was cut short may spoil the one that stops Spark; Java then ends with this process. And
        # what is said on a closed terminal is an error.
        if asked:
            sys.exit(128 + asked)
        raise


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(outcome: "Outcome") -> None:
    from rich.console import Console

    console = Console()
    for table in outcome.tables:
        console.print(_drawn(table))


def _drawn(table: "Table") -> "Drawn":
    from rich.table import Table as Drawn

    drawn = Drawn(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        drawn.add_column(column, justify="right" if number else "left")
    for row in table.rows:
        drawn.add_row(*row)
    return drawn
