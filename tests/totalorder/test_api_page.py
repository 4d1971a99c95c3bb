"""docs/api.md says what the docstrings say."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_made_of_the_docstrings() -> None:
    """Where it is not: make api."""
    command = [sys.executable, str(ROOT / "scripts/api.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert checked.returncode == 0, checked.stderr
