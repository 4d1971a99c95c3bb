"""`totalorder sql`: a query of one's own on the lineage tables."""

import json
from typing import Annotated

import typer

from totalorder.cli.audit import Parameters, Spark, Tables, opened, parameters, show_rows
from totalorder.cli.options import Json, said_if_long, spark_settings


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sql", help="Query the lineage tables: events, deliveries, subscriptions, sequencing_groups, batches.")(
        run
    )


def run(
    query: Annotated[
        str, typer.Argument(metavar="SELECT…", help="Spark SQL; tables are named as in docs/lineage-schema.md.")
    ],
    tables: Tables,
    most_rows: Annotated[int, typer.Option("--rows", min=1, metavar="N", help="Show at most this many rows.")] = 1000,
    param: Parameters = None,
    spark: Spark = None,
    as_json: Json = False,
) -> None:
    """Prints what the query returns."""
    from totalorder.sinks.audit import check_is_query, check_values, parameters_of

    values = parameters(param)
    check_is_query(query, "the query")
    check_values({"the query": parameters_of(query)}, values)
    with opened(tables, spark_settings(spark), [query]) as auditor:
        auditor.check({"the query": query}, values)
        with said_if_long("The question is being answered …"):
            columns, rows = auditor.query(query, values, most_rows=most_rows + 1)
    if as_json:
        for row in rows[:most_rows]:
            print(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False, default=str))
        return
    from rich.console import Console

    show_rows(Console(highlight=False), columns, rows[:most_rows], more=len(rows) > most_rows)
