"""What may be handed to the application next, in order: blocks of events, and notices of losses between them."""

from collections import deque
from collections.abc import Iterator

import numpy as np

from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost
from totalorder.subscriber.event import Event, Lost, events_of
from totalorder.subscriber.losses import not_skipped
from totalorder.subscriber.position import Position


class Ready:
    """A queue of what the delivery machine has put in order. Events are made when they are asked for.

    Without `skips_lost` a loss ends it: nothing is handed out behind, and `go_on` says what can be done.
    """

    def __init__(self, *, skips_lost: bool, go_on: str) -> None:
        self._skips_lost, self._go_on = skips_lost, go_on
        self.origin: Position | None = None
        """Where the positions of events count from; None while there are none, or where they have none."""
        self._items: deque[Deliveries | DeliverLost] = deque()
        self._count = 0
        self._at = 0
        """So many events of the first block are gone."""
        self._events: Iterator[Event] = iter(())
        self.made: Event | Lost | None = None
        """The first of all, once somebody has looked at it; `_events` gives those behind it in its block."""

    def __len__(self) -> int:
        return self._count

    def append(self, item: Deliveries | DeliverLost) -> None:
        """More to hand out."""
        self._items.append(item)
        self._count += _size(item)

    @property
    def skips_lost(self) -> bool:
        """Whether a loss is handed out in its place. With m = 2 nothing says what that is, and none is."""
        return self._skips_lost and self.origin is not None

    def check_next(self) -> None:
        """EventsLost where a loss comes next that nobody may pass over. It stays the next one."""
        if self._items and isinstance(loss := self._items[0], DeliverLost) and not self.skips_lost:
            raise not_skipped(loss, self._go_on)

    def clear(self) -> None:
        """Nothing is handed out any more."""
        self._items.clear()
        self._count = self._at = 0
        self.made, self._events = None, iter(())

    @property
    def front(self) -> Event | Lost:
        """The first one; it stays."""
        if self.made is None:
            item = self._items[0]
            if isinstance(item, DeliverLost):
                self.made, self._events = Lost.of(item, self.origin), iter(())
            else:
                self._events = events_of(item.part(self._at, len(item)), self.origin)
                self.made = next(self._events)
        return self.made

    @property
    def first_g(self) -> int:
        """The g of the first one."""
        item = self._items[0]
        return item.g if isinstance(item, DeliverLost) else int(item.rows.g[self._at])

    def max_g(self, most: int) -> int:
        """The greatest g of the first `most` ones that may be handed out; 0 when there are none."""
        found, start = 0, self._at
        for item in self._items:
            if most <= 0:
                break
            if isinstance(item, DeliverLost):
                if not self.skips_lost:
                    break
                found, most = max(found, item.g), most - 1
            else:
                g = item.rows.g[start : start + most]
                found, most = max(found, int(g.max())), most - len(g)
            start = 0
        return found

    def pop(self) -> tuple[Event | Lost, Deliveries | DeliverLost, int]:
        """The first one, and where it comes from: a loss, or a block and its place there."""
        event, item, at = self.made or self.front, self._items[0], self._at
        self._count -= 1
        self.made = behind = next(self._events, None)
        if behind is None:
            self._items.popleft()
            self._at = 0
        else:
            self._at = at + 1
        return event, item, at

    def take(self, most: int, through: int, *, events_only: bool) -> Deliveries | DeliverLost | None:
        """The first ones, at most `most` events of one block or one notice, none behind g `through`."""
        if not self._items:
            return None
        item = self._items[0]
        if isinstance(item, DeliverLost):
            return None if events_only or item.g > through else self.pop()[1]
        end = min(len(item), self._at + most)
        beyond = np.flatnonzero(item.rows.g[self._at : end] > through)
        end = self._at + int(beyond[0]) if len(beyond) else end
        if end == self._at:
            return None
        taken = item.part(self._at, end)
        self._count -= len(taken)
        self._at, self.made = end, None
        if end == len(item):
            self._items.popleft()
            self._at = 0
        return taken


def _size(item: Deliveries | DeliverLost) -> int:
    return len(item) if isinstance(item, Deliveries) else 1
