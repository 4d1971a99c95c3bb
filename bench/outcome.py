"""What a benchmark is asked and what it answers."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Say = Callable[[str], None]
"""Takes one line on how far the benchmark is."""


class Size(StrEnum):
    """How much a benchmark does: `smoke` proves that it runs and its figures mean nothing."""

    SMOKE = "smoke"
    QUICK = "quick"
    FULL = "full"

    def pick(self, *, smoke: T, quick: T, full: T) -> T:
        """The value for this size."""
        return {Size.SMOKE: smoke, Size.QUICK: quick, Size.FULL: full}[self]


@dataclass(frozen=True, kw_only=True)
class Table:
    """Figures for a person: cells are printed as they are."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


def markdown(table: Table) -> str:
    """A table as a page has it, with its title above."""
    ruler = ["---", *["---:"] * (len(table.columns) - 1)]
    rows = [f"| {' | '.join(cells)} |" for cells in (table.columns, ruler, *table.rows)]
    return "\n".join([f"{table.title}:", "", *rows, ""])


def write_text(path: Path, text: str) -> Path:
    """Writes a page or data below `--out`, whose folder is made when it is first needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def write_page(out: Path, name: str, data: Mapping[str, Any], page: str) -> list[Path]:
    """Writes a benchmark's page, and its data beside it, below `--out`."""
    texts = {f"{name}.json": json.dumps(data, indent=1), f"{name}.md": page}
    return [write_text(out / file, text) for file, text in texts.items()]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """`data` is the one JSON object of `--json`.

    `write` puts plots and data below `--out`, and is called when the figures have been shown: a full disk must not take
    them along. `broken` names the claims that were not kept: the command shows all figures, and fails.
    """

    data: Mapping[str, Any]
    tables: Sequence[Table]
    write: Callable[[], Sequence[Path]] = tuple
    broken: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Request:
    """One run. `out` is the directory for plots and data, made when it is first needed; `beside` is the Python of
    another installation, which some compare themselves with.
    """

    size: Size
    say: Say
    out: Path
    beside: Path | None = None
