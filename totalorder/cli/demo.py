"""`totalorder demo`: real flights through a real broker and Spark, compared with plain Kafka consumers."""

import json
from typing import Annotated

import typer

from totalorder.cli.extras import require
from totalorder.cli.options import Json

_EVENTS = 10_000
_MINUTES = 0.5
_QUICK_EVENTS = 2_000
_QUICK_MINUTES = 0.1
_WHOLE_YEAR = 660_000
_MOST_MINUTES = 24 * 60.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", help="Order real events, and compare with plain Kafka consumers.")(run)


def run(
    events: Annotated[
        int | None,
        typer.Option(min=100, max=_WHOLE_YEAR, help=f"How many events of the year 2013 ({_EVENTS:,} by default)."),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, max=_MOST_MINUTES, help=f"How long publishing them takes ({_MINUTES:g} by default)."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help=f"Only {_QUICK_EVENTS:,} events in {60 * _QUICK_MINUTES:g} seconds.")
    ] = False,
    json_output: Json = False,
) -> None:
    """Exit code 1 if subscribers disagree, an event is missing or repeated, or a process died."""
    require("demo")
    from rich.console import Console

    import totalorder.streaming  # noqa: F401 (a pyspark that does not fit is told before a broker is started)
    from totalorder.demo.run import Plan, run_demo
    from totalorder.demo.screen import figures_table

    plan = Plan(
        events=events or (_QUICK_EVENTS if quick else _EVENTS),
        publish_s=60 * (minutes or (_QUICK_MINUTES if quick else _MINUTES)),
    )
    # Programs read standard output; what is only for people goes to the other one.
    found = run_demo(plan, Console(stderr=json_output))
    if json_output:
        print(json.dumps(found.as_json()))
    else:
        Console().print(figures_table(found))
    if not found.ok:
        raise typer.Exit(1)
