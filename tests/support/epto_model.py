"""The ordering component of EpTO (its algorithms 2 and 3), one process, with the comparison as an argument.

Dissemination (algorithm 1) is left to the test, which hands each round's ball over by hand. Stability is the age rule
of algorithms 3 and 4: an event is deliverable when its age exceeds `ttl_rounds`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, kw_only=True)
class EptoEvent:
    """An event as broadcast: logical time, who sent it, and the sender's own count."""

    ts: int
    source: str
    sequence: int


Key: TypeAlias = Callable[[EptoEvent], Any]


def by_ts_alone(event: EptoEvent) -> int:
    """What EpTO compares (algorithm 2, lines 11, 25, 28 and 39)."""
    return event.ts


def by_total_key(event: EptoEvent) -> tuple[int, str, int]:
    """What it has to compare: the key that line 36 sorts by, made unique."""
    return event.ts, event.source, event.sequence


class EptoProcess:
    """A process's `received` and `delivered`; `delivered` is in the order of delivery."""

    def __init__(self, *, ttl_rounds: int, key: Key) -> None:
        self.delivered: list[EptoEvent] = []
        self._received: dict[EptoEvent, int] = {}
        self._ttl_rounds = ttl_rounds
        self._key = key

    def order_events(self, ball: Mapping[EptoEvent, int]) -> None:
        """One round: age what is held, take the ball in (event -> age), deliver what is stable and not overtaken."""
        self._received = {event: age + 1 for event, age in self._received.items()}
        for event, age in ball.items():
            if event not in self.delivered and not self._is_late(event):
                self._received[event] = max(age, self._received.get(event, 0))
        queued = [self._key(event) for event, age in self._received.items() if age <= self._ttl_rounds]
        stable = [event for event, age in self._received.items() if age > self._ttl_rounds]
        for event in sorted(stable, key=by_total_key):
            if not queued or self._key(event) <= min(queued):
                del self._received[event]
                self.delivered.append(event)

    def _is_late(self, event: EptoEvent) -> bool:
        return bool(self.delivered) and self._key(event) < self._key(self.delivered[-1])
