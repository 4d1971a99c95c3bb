"""A broker that stands still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import wait_until

from totalorder.broker import LocalBroker


@contextmanager
def frozen(broker: LocalBroker) -> Iterator[None]:
    """The broker stands still: its connections stay open, and nothing is answered."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        # Its threads stop one after the other, and one that still runs may answer.
        tasks = Path(f"/proc/{broker.pid}/task")
        wait_until(lambda: all(_state(task) == "T" for task in tasks.iterdir()), "the broker stands still")
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # it has ended meanwhile
        return "T"
