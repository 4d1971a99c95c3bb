"""Waiting for a condition, with a bound."""

import time
from collections.abc import Callable

BOUND_S = 30.0
_PAUSE_S = 0.02


def wait_until(condition: Callable[[], bool], what: str, *, bound_s: float = BOUND_S) -> None:
    """Returns as soon as `condition()` holds; fails after `bound_s` seconds, saying `what` did not happen."""
    deadline = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {bound_s:g} s: {what}"
        time.sleep(_PAUSE_S)


def is_alive(pid: int) -> bool:
    """Whether a process of this id runs; one that has ended and waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
