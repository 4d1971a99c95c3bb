"""One thread within a call, while another one tries its luck."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sim_kafka import SimTransport


@contextmanager
def within(call: Callable[[], object], transport: SimTransport) -> Iterator[None]:
    """Another thread makes a call that asks the transport, and is held there until the block ends."""
    inside, go_on = threading.Event(), threading.Event()

    def hold(_: float) -> None:
        inside.set()
        go_on.wait(30)

    transport.on_poll = hold
    first = threading.Thread(target=call)
    first.start()
    try:
        assert inside.wait(30)
        yield
    finally:
        go_on.set()
        first.join(30)
