"""What something does in a fork of this process."""

import os
import signal
from collections.abc import Callable


def in_a_fork(work: Callable[[], str]) -> str:
    """What it says there."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(20)
        try:
            os.write(writes, work().encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writes)
    with os.fdopen(reads) as said:
        found = said.read()
    assert os.waitpid(child, 0)[1] == 0, "it ended otherwise than it should"
    return found
