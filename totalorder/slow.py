"""A word on a long wait: without it a program that waits looks like one that hangs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

LONG_S = 3.0
"""How long a wait may last without a word, in seconds."""


@contextmanager
def when_long(say: Callable[[], object]) -> Iterator[None]:
    """Calls `say`, once and from a thread of its own, when the block has lasted `LONG_S`."""
    timer = Timer(LONG_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
