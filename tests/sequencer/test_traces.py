"""Golden scripts of the engine: each reads as a story, and its trace changes only on purpose.

`TOTALORDER_REWRITE_TRACES=1 pytest tests/sequencer/test_traces.py` writes the traces anew: commit a changed one only
when you understand what caused the change.
"""

import os
from pathlib import Path

import pytest
from golden import run_script

SCRIPTS = sorted((Path(__file__).parent / "traces").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_trace_is_as_written(path: Path) -> None:
    script = path.read_text()
    traced = run_script(script)
    if os.environ.get("TOTALORDER_REWRITE_TRACES"):
        path.write_text(traced)
    assert traced == script


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 5
