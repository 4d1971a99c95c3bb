"""A broker that stands still."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from totalorder.broker import LocalBroker


@contextmanager
def frozen(broker: LocalBroker) -> Iterator[None]:
    """The broker stands still: its connections stay open, and nothing is answered."""
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)
