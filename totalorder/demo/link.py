"""A demo process's end of the line to the demo: orders in, what it has to say out."""

import contextlib
import json
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

_SAY_EVERY_S = 0.25


class Link:
    """The link to the process that started this one. `spec` is what it was given to do."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._orders: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._said_at = 0.0
        threading.Thread(target=self._listen, name="orders", daemon=True).start()
        self.spec = self.await_order()

    def say(self, **status: object) -> None:
        """Tell the demo."""
        self._out.write(json.dumps(status).encode() + b"\n")

    def say_sometimes(self, status: Callable[[], dict[str, object]]) -> None:
        """Tell the demo, unless it was told a moment ago."""
        now = time.monotonic()
        if now - self._said_at >= _SAY_EVERY_S:
            self._said_at = now
            self.say(**status())

    def order(self) -> dict[str, Any]:
        """The next order, {} if there is none yet."""
        with contextlib.suppress(queue.Empty):
            return self._orders.get_nowait()
        return {}

    def await_order(self) -> dict[str, Any]:
        """The next order."""
        return self._orders.get()

    def _listen(self) -> None:
        # Not by sys.stdin: its lock would be held for ever, and the interpreter wants it to end.
        heard = b""
        while chunk := os.read(0, 1 << 16):
            *lines, heard = (heard + chunk).split(b"\n")
            for line in lines:
                self._orders.put(json.loads(line))
        os._exit(1)
