"""A thread that owns something, and does one thing after another with it for an event loop."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class Owner:
    """Its thread runs until `finish`, and holds no process back that ends."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def finish(self) -> None:
        """The thread ends when it has done what it was given so far."""
        self._jobs.put(None)

    def submit(self, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Has `work` done behind all that was given before; a future of the running loop has its result, or its error.

        `work` is done though nobody waits; shield the future where who waits may be cancelled.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                settle = partial(future.set_result, work())
            except BaseException as error:
                settle = partial(_fail, future, error)
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle)

        self._jobs.put(job)
        return future


def _fail(future: "asyncio.Future[T]", error: BaseException) -> None:
    future.set_exception(error)
    future.exception()  # an error that nobody waits for is told by the next call: no need to log it
