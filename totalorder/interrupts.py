"""Ctrl-C while this process is in what must not be left by an exception at any place."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def own_interrupt() -> Iterator[None]:
    """Keeps this process's way with Ctrl-C: what runs within puts its own in the place."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if handler is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def interrupts_kept() -> Iterator[Callable[[], None]]:
    """Within, SIGINT waits until what this gives is called, behind it."""
    kept: list[int] = []

    def obey() -> None:
        if kept:
            signal.raise_signal(signal.SIGINT)

    with own_interrupt():
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, lambda number, _: kept.append(number))
        yield obey
