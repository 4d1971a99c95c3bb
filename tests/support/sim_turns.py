"""Processes that take turns: greenlets of which one goes on at a time, up to its next call of Kafka."""

import random
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from greenlet import getcurrent, greenlet


class Alive(Protocol):
    """Whatever has a life of its own."""

    run: greenlet | None


P = TypeVar("P", bound=Alive)


class Turns(Generic[P]):
    """The processes of a world; `alive` are those that have begun and are not over."""

    def __init__(self, rng: random.Random) -> None:
        self.alive: list[P] = []
        self.are_over = False
        """Whether nobody waits for others any more."""
        self._rng, self._hub = rng, getcurrent()
        self._favourite: P | None = None

    def begin(self, process: P, life: Callable[[], None]) -> None:
        """It goes on when its turn comes."""
        process.run = greenlet(life)
        self.alive.append(process)

    def end(self, process: P) -> None:
        """It goes no further; not even its `finally` blocks reach Kafka."""
        if process in self.alive:
            self.alive.remove(process)

    def let_others(self) -> None:
        """Called by the process that goes on."""
        if not self.are_over:
            self._hub.switch()

    def go_on(self, change: float, stays: Callable[[P], bool] = lambda _: False) -> P | None:
        """One process goes on by one call, if there is any: as a rule the one that did before. With the chance `change`
        it may be another, unless the former one `stays`.
        """
        before = self._favourite
        if before is None or before not in self.alive or (self._rng.random() < change and not stays(before)):
            self._favourite = self._rng.choice(self.alive) if self.alive else None
        process = self._favourite
        if process is not None:
            assert process.run is not None
            process.run.switch()
            if process.run.dead:
                self.end(process)
        return process
