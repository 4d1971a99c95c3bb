"""A word on a long wait: without it a program that waits looks like one that hangs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread, Timer

LONG_S = 3.0
"""How long a wait may last without a word, in seconds."""
MOST_SILENCE_S = 30.0
"""How long it may last without another word."""


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


@contextmanager
def while_long(say: Callable[[], object]) -> Iterator[None]:
    """Calls `say` again and again, from a thread of its own, while the block lasts: more and more seldom."""
    over = Event()

    def keep_saying() -> None:
        pause_s = LONG_S
        while not over.wait(pause_s):
            say()
            pause_s = min(2 * pause_s, MOST_SILENCE_S)

    thread = Thread(target=keep_saying, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
