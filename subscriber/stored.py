"""One process's way with an application's store: where it goes on, what it has committed, and what Kafka may be told.

Kafka's saved position still holds the lease, retention and the promise by which repetitions are told; it follows what
the store has committed, and never runs ahead of it (docs/adr/0023).
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from totalorder.errors import AlreadyDone, NotCommitted, SettingsError, StateError, StoreUnavailable
from totalorder.subscriber.position import Position
from totalorder.subscriber.position_store import Holder, PositionStore, Row, check_held


def place_to_go_on(
    row: Row | None,
    *,
    holder: Holder,
    store: str,
    kafka: Position,
    handed_g: int,
    granted_g: int,
    adopt: bool,
) -> Position | None:
    """Through which position a process drops what comes; None where the store has none and begins with Kafka's.

    `kafka` is the position saved there; former processes may have handed out events through `handed_g`, 0: none.
    StateError where the store cannot be of this id's life so far: what it lacks would be missing in silence. Fenced
    where a later process has the id by now, however far that has got.
    """
    who = f"subscriber {holder.id!r}"
    if row is None:
        if handed_g and not adopt:
            raise StateError(
                f"{store} has no position of {who}, which may have been handed events through g {handed_g}",
                remedy=f"Was the database replaced, or restored from before? {_ANEW}. Where the id had no store so "
                f"far, adopt=True goes on behind {kafka}, which is what it acknowledged",
            )
        return None
    place = Position.parse(row.position)
    try:
        place.check_order(kafka)
    except SettingsError as error:
        raise StateError(f"{store} does not fit: {error}", remedy=_ANEW) from None
    if row.generation > holder.generation:
        check_held(holder, row)
    if place.g > granted_g:
        raise StateError(
            f"{store} has {who} at {place}, and the domain's order ends at g {granted_g}",
            remedy=f"Find out which of the two was restored from before. {_ANEW}",
        )
    if place < kafka:
        raise StateError(
            f"{store} has {who} at {place}, and it had been at {kafka}: the database is older, as when it "
            "was restored, and Kafka owes the events between no more",
            remedy=f"Read what it lacks with a Reader, from {place} through {kafka}, and move the position on by "
            f"repair() in each transaction; then start again. {_ANEW}",
        )
    return place


_ANEW = 'start="now" (--start now) gives up all that is owed, and begins at the present'


def without_store(id: str) -> SettingsError:  # noqa: A002
    """Kafka's position is known to follow a store: what that has and Kafka has not yet would have its effect twice."""
    return SettingsError(
        f"subscriber {id!r} keeps its position in a store (positions=), and none was given: what was committed there "
        "and is not told to Kafka yet would come again",
        remedy="Give the store; or another id, to look on. To do without it from now on: start=Position.parse(place), "
        f"of the id's row in totalorder_positions. {_ANEW}",
    )


class Stored:
    """The store of one process. `begin` comes first, at each grant."""

    def __init__(self, store: PositionStore, *, id: str, domain: str, nonce: str) -> None:  # noqa: A002
        self._store, self._id, self._domain, self._nonce = store, id, domain, nonce
        self._holder: Holder | None = None
        self.done: Position | None = None
        """What is committed for certain."""
        self._acked: deque[tuple[int, Position]] = deque()
        """Acknowledged behind that, in transactions of the application's: number of the delivery, and position."""

    def begin(self, *, generation: int, kafka: Position, handed_g: int, granted_g: int, anew: bool) -> None:
        """Claims the id for a generation of this process, and finds out where it goes on."""
        holder = Holder(id=self._id, domain=self._domain, generation=generation, nonce=self._nonce)
        if self._holder is not None:
            check_held(holder, self._store.claim(holder, kafka))
        elif anew:
            self.done = kafka
            if not self._store.reset(holder, kafka) and not self._store.begin(holder, kafka):
                self._store.reset(holder, kafka)
        else:
            place = partial(
                place_to_go_on,
                holder=holder,
                store=str(self._store),
                kafka=kafka,
                handed_g=handed_g,
                granted_g=granted_g,
                adopt=self._store.adopt,
            )
            self.done = self._claimed(holder, kafka, place)
        self._holder = holder

    def _claimed(self, holder: Holder, kafka: Position, place: Callable[[Row | None], Position | None]) -> Position:
        """Where it goes on. Of two processes that begin in the same moment both find no row, and one makes it: then the
        later generation has it, whoever was quicker.
        """
        row = self._store.claim(holder, kafka)
        found = place(row)
        if found is None:
            if self._store.begin(holder, kafka):
                return kafka
            row = self._store.claim(holder, kafka)
            found = place(row)
        check_held(holder, row)
        return kafka if found is None else found

    def write(self, connection: Any, sequence: int, position: Position) -> None:
        """Acknowledges a delivery, and all before it, within the application's transaction."""
        assert self._holder is not None
        assert self.done is not None
        before = self.done
        acked = list(self._acked)
        for number, place in acked:
            if number < sequence:
                before = place
        self._store.write(connection, self._holder, before, position)
        while self._acked and self._acked[-1][0] >= sequence:
            self._acked.pop()  # that transaction came to nothing, and what was done in it is done once more
        self._acked.append((sequence, position))

    @property
    def is_open(self) -> bool:
        """Whether something was acknowledged that was not seen committed: its transaction may hold the row locked."""
        return bool(self._acked)

    def committed(self) -> int:
        """The last delivery of which it is known, by now, that its transaction was committed; 0: none that is new.

        Fenced where another process has claimed the id, StateError where the row is gone.
        """
        if self._holder is None or not self._acked:
            return 0
        with suppress(StoreUnavailable):  # then it is known later
            row = check_held(self._holder, self._store.read(self._holder))
            return self._committed(Position.parse(row.position))
        return 0

    def _committed(self, place: Position) -> int:
        found = 0
        while self._acked and self._acked[0][1] <= place:
            found, self.done = self._acked.popleft()
        return found

    def give_up(self) -> None:
        """What was acknowledged and is not committed counts no longer: a transaction that came to nothing is not done
        again. Where it is open the row is locked, and `covers` goes no further.
        """
        self._acked.clear()

    def covers(self, position: Position, *, waits: bool = False) -> bool:
        """Sees to it that the store is as far as `position`, up to which nothing is owed; False while it cannot be.
        `waits` for what others have locked, and raises StoreUnavailable where that takes too long.
        """
        assert self._holder is not None
        assert self.done is not None
        if position <= self.done:
            return True
        if self._acked:
            return False  # a transaction of the application's is open, or came to nothing
        later = (NotCommitted, AlreadyDone) if waits else (StoreUnavailable, NotCommitted, AlreadyDone)
        with suppress(*later):
            self._store.move(self._holder, self.done, position, waits=waits)
            self.done = position
            return True
        return False
