"""docs/operating.md names, for each fault and each limit, a test that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def rows_of(page: str, heading: str) -> list[str]:
    """Of the section's table, without its head."""
    section = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(("heading", "least"), [("Faults", 55), ("Limits", 15)])
def test_every_fault_and_every_limit_has_its_test(heading: str, least: int) -> None:
    rows = rows_of("docs/operating.md", heading)
    assert len(rows) > least
    for row in rows:
        named = re.fullmatch(r"\| [^|]+ \| [^|]+ \| `([\w/]+\.py)::(test_\w+)` \|", row)
        assert named is not None, row
        source = (ROOT / "tests" / named[1]).read_text(encoding="utf-8")
        assert f"def {named[2]}(" in source, row


def test_every_limit_of_the_readme_is_there() -> None:
    limits = {row.split(" | ")[0] for row in rows_of("README.md", "Limits")}
    assert len(limits) > 7
    assert limits <= {row.split(" | ")[0] for row in rows_of("docs/operating.md", "Limits")}
