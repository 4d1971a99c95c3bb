"""A process that clears up after the demo when the demo's own process is gone, however it went.

`python -I -S supervisor.py FOLDER`. Standard input is a pipe that only the demo holds, with lines `+PID` for a
process group that runs and `-PID` for one that has ended. At the pipe's end whatever still runs is killed and the
folder is removed. Standard library only.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import time

_PATIENCE_S = 20.0


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it goes when the demo goes
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        (groups.add if line.startswith("+") else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE_S
    # A killed process may be in the middle of a write: the folder goes when nobody can put something into it any more.
    while any(map(_alive, groups)) and time.monotonic() < deadline:
        time.sleep(0.05)
    while _held(os.path.join(sys.argv[1], "checkpoint", "lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def _held(lock: str) -> bool:
    """Whether the sequencer's Java lives: it has a process session of its own, and holds the checkpoint's lock."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group that has only zombies left
        return False
    return True


if __name__ == "__main__":
    main()
