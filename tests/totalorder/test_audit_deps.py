"""What `make audit-deps` makes of pip-audit's answers: silence of the database is never taken for a good word."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parents[2] / "scripts" / "audit_deps.py"
GOOD = {"name": "numpy", "version": "2.0", "vulns": []}
BAD = {"name": "kafka", "version": "1.0", "vulns": [{"id": "CVE-1", "fix_versions": ["1.1"]}]}
SKIPPED = {"name": "rich", "skip_reason": "Dependency not found on PyPI and could not be audited: rich (14)"}


@pytest.fixture(scope="module")
def audit_deps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit_deps", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("packages", "code", "says"),
    [
        ([GOOD], 0, "asked about 1 packages"),
        ([GOOD, BAD], 1, "kafka 1.0: CVE-1, mended in 1.1"),
        ([GOOD, SKIPPED], 1, "rich: not known to the database, not audited"),
        ([SKIPPED, SKIPPED], 2, "nothing was audited"),
    ],
)
def test_verdicts(audit_deps: ModuleType, packages: list[object], code: int, says: str) -> None:
    found, words = audit_deps.verdict(json.dumps({"dependencies": packages, "fixes": []}))
    assert found == code
    assert says in words


@pytest.mark.parametrize("told", ["", "[]", "{}", "Traceback"])
def test_no_answer_is_no_good_word(audit_deps: ModuleType, told: str) -> None:
    code, words = audit_deps.verdict(told)
    assert (code, "nothing was audited" in words) == (2, True)
