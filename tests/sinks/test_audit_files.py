"""The audits' files: whole heads, and how files are read."""

from pathlib import Path

import pytest

from totalorder.errors import SettingsError
from totalorder.sinks.audit import Audit, audits, parse_audit, read_audit

PAGE = Path(__file__).resolve().parents[2] / "docs" / "audits.md"


@pytest.mark.parametrize("audit", audits(), ids=lambda audit: audit.name)
def test_every_file_says_what_it_is_and_how_it_works(audit: Audit) -> None:
    assert audit.title != audit.name
    assert audit.how
    assert audit.sql.startswith(("WITH", "SELECT"))
    assert bool(audit.proves) != bool(audit.view)


@pytest.mark.parametrize("audit", audits(), ids=lambda audit: audit.name)
def test_every_audit_is_in_the_docs(audit: Audit) -> None:
    assert f"`{audit.name}`" in PAGE.read_text(encoding="utf-8")


def test_the_head_goes_over_lines_and_parameters_are_found() -> None:
    head = "-- title: Who had :n\n--   and why\n-- judges: never\n-- subject: events\n"
    text = f"{head}SELECT ':no', a::INT -- :not\nFROM t WHERE n = :n;\n"
    audit = parse_audit("mine", text)
    assert (audit.title, audit.judges, audit.parameters) == ("Who had :n and why", "never", ("n",))
    assert audit.subject == "events"
    assert audit.sql.startswith("SELECT ':no'")
    assert not audit.sql.endswith(";")


def test_a_file_needs_no_head(tmp_path: Path) -> None:
    path = tmp_path / "mine.sql"
    path.write_text("SELECT 1")
    assert read_audit(path).title == "mine"


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_audit(tmp_path / "absent.sql")
    (tmp_path / "bytes.sql").write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="not text in UTF-8"):
        read_audit(tmp_path / "bytes.sql")
    with pytest.raises(SettingsError, match="judges: sometimes is unknown"):
        parse_audit("mine", "-- judges: sometimes\nSELECT 1")
    with pytest.raises(SettingsError, match="subject: nonsense is no table"):
        parse_audit("mine", "-- subject: nonsense\nSELECT 1")
