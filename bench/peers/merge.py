"""A consumer's merge by record timestamp: what one writes who has no common order, and has to choose a wait."""

import heapq
from collections import deque
from typing import NamedTuple


class Key(NamedTuple):
    """The order that all such consumers agree on, as far as nothing comes late."""

    timestamp_ms: int
    topic: str
    partition: int
    offset: int


_FIRST = Key(-1, "", 0, 0)


class MergeBuffer:
    """Holds each event for `wait_ms` after it came, then releases it and everything held that is before it.

    An event that comes after a later one was released is late: delivered, it would break the order; it is dropped and
    counted. Pure: time is an argument.
    """

    def __init__(self, wait_ms: int) -> None:
        self.dropped = 0
        self._wait_ms = wait_ms
        self._held: list[tuple[Key, bytes]] = []
        self._came: deque[tuple[float, Key]] = deque()
        self._due = self._released = _FIRST

    def add(self, key: Key, value: bytes, now_ms: float) -> None:
        """An event has come."""
        if key < self._released:
            self.dropped += 1
            return
        heapq.heappush(self._held, (key, value))
        self._came.append((now_ms, key))

    def release(self, now_ms: float, *, lagging_ms: float = float("inf")) -> list[bytes]:
        """What may be delivered now.

        `lagging_ms`: the greatest timestamp that has come of a partition with more to read, the least such of all
        partitions. Nothing within the wait before it is released: its events may yet come from there.
        """
        while self._came and self._came[0][0] + self._wait_ms <= now_ms:
            self._due = max(self._due, self._came.popleft()[1])
        found = []
        limit_ms = lagging_ms - self._wait_ms
        while self._held and self._held[0][0] <= self._due and self._held[0][0].timestamp_ms < limit_ms:
            self._released, value = heapq.heappop(self._held)
            found.append(value)
        return found

    def wait_s(self, now_ms: float, at_most_s: float) -> float:
        """Seconds until something is due."""
        if not self._came:
            return at_most_s
        return min(at_most_s, max(0.0, (self._came[0][0] + self._wait_ms - now_ms) / 1000))
