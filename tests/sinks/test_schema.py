"""The tables' description: complete, and the same in docs/."""

from pathlib import Path

import pytest

from totalorder.sinks.schema import TABLES, Table, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lineage-schema.md"


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == markdown(), "python -m totalorder.sinks.schema > docs/lineage-schema.md"


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_table_is_described(table: Table) -> None:
    assert table.comment
    assert table.columns[0].name == "domain"
    assert all(column.comment for column in table.columns)
    assert len(set(table.names)) == len(table.names)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_keys_and_layout_are_columns_that_are_never_null(table: Table) -> None:
    never_null = {column.name for column in table.columns if not column.nullable}
    assert {*table.key, *table.layout} <= never_null
