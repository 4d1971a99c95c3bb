"""Log lines of the source's process come out of the driver as they were meant."""

import subprocess
import sys

import pytest
import structlog
from structlog.testing import capture_logs

from totalorder.streaming.relay import relayed, without_dismissals

SAYS = """
import structlog
from totalorder.streaming.relay import log_through_java
log_through_java()
structlog.get_logger().warning("looks are far apart", longest_ms=7, why="größe")
"""


def test_a_line_comes_through() -> None:
    said = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == ""
    with capture_logs() as logs:
        assert relayed(said.stderr, structlog.get_logger())
    assert logs == [{"event": "looks are far apart", "log_level": "warning", "longest_ms": 7, "why": "größe"}]


@pytest.mark.parametrize(
    "line", ["", "ERROR Utils: x", "totalorder-log {half", "totalorder-log []", "totalorder-log {}"]
)
def test_other_lines_are_left_alone(line: str) -> None:
    with capture_logs() as logs:
        assert not relayed(line, structlog.get_logger())
    assert logs == []


TRACE = [
    "Traceback (most recent call last):",
    '  File "x/pyspark/daemon.py", line 262, in manager',
    "    code = worker()",
]
DISMISSED = [*TRACE, "    ^^^^^^", "BrokenPipeError: [Errno 32] Broken pipe"]


@pytest.mark.parametrize(
    "others",
    [[], ["a"], ["a", "b"], [TRACE[0]], TRACE, [*TRACE, "ValueError: x"], [TRACE[0], "  File x", "KeyError: 1"]],
)
def test_the_daemons_last_words_alone_are_left_out(others: list[str]) -> None:
    assert list(without_dismissals(others)) == others
    assert list(without_dismissals([*others, *DISMISSED])) == others
    assert list(without_dismissals([*DISMISSED, *others, *DISMISSED, "c"])) == [*others, "c"]
