"""Where the acknowledged position is kept: with the application's own data, so that effects and position are one.

One row for each subscriber id of a domain: the position through which everything is done, and the process that may move
it on. It moves on within the application's transaction (`write`), so that a commit has both or neither. A process that
takes the id over puts its generation and nonce there first (`claim`): what an older one still does then fails, with
whatever effects are in the same transaction.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from totalorder.errors import AlreadyDone, Fenced, NotCommitted, StateError, StoreUnavailable
from totalorder.subscriber.position import Position


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process of a subscriber id, as its row names it."""

    id: str
    domain: str
    generation: int
    nonce: str


class Row(NamedTuple):
    """What a store holds of an id. `position` is the text of a Position."""

    position: str
    generation: int
    nonce: str


class Execute(Protocol):
    """Executes a statement in a transaction: how many rows it changed, and those that it gives."""

    def __call__(self, statement: str, values: Mapping[str, object]) -> tuple[int, Sequence[Sequence[Any]]]: ...


_READ = """
SELECT place, generation, nonce FROM totalorder_positions WHERE domain = :domain AND subscriber = :id
"""
_INSERT = """
INSERT INTO totalorder_positions (domain, subscriber, place, generation, nonce)
VALUES (:domain, :id, :place, :generation, :nonce)
"""
_CLAIM = """
UPDATE totalorder_positions SET generation = :generation, nonce = :nonce
WHERE domain = :domain AND subscriber = :id AND generation < :generation AND place LIKE :order
"""
_RESET = """
UPDATE totalorder_positions SET generation = :generation, nonce = :nonce, place = :place
WHERE domain = :domain AND subscriber = :id AND (generation < :generation OR place NOT LIKE :order)
"""
_HELD = "domain = :domain AND subscriber = :id AND generation = :generation AND nonce = :nonce"
_MOVE = f"UPDATE totalorder_positions SET place = :place WHERE {_HELD} AND place = :before"  # noqa: S608
_REPAIR = """
UPDATE totalorder_positions SET place = :place WHERE domain = :domain AND subscriber = :id AND place = :before
"""

_TABLE, _ABSENT = "totalorder_positions", ("no such table", "does not exist", "doesn't exist")
"""What databases say of a table that is not there."""
_KEEP_SHORT = (
    "One that is locked has another transaction open: keep them short, and none open while events are waited for"
)
_LOCKED = f"Roll back, and acknowledge again when it can. {_KEEP_SHORT}"
_NOT_BEGUN = f"Make a new Subscriber when it can: nothing is lost. {_KEEP_SHORT}"
_OTHER = (
    "Roll back. The store makes its table when a Subscriber begins: so the connection is to another database (or file, "
    "or schema) than the store's, or somebody removed the table. Open both by one URL, or one absolute path"
)


class PositionStore(ABC):
    """A table of positions in a database of the application's.

    With `adopt` an id that has no row yet, and had no store so far, goes on behind what Kafka has saved of it.

    Errors of all methods: StoreUnavailable, with what the database said and what to do.
    """

    adopt: bool

    @abstractmethod
    def _prepare(self) -> None:
        """Makes the table `totalorder_positions` if it is not there: texts domain and subscriber, which are the key,
        place and nonce, and the number generation.
        """

    @abstractmethod
    def _own(self, *, waits: bool) -> AbstractContextManager[Execute]:
        """A transaction of its own, which is committed when the block ends and rolled back when it raises; without
        `waits` one that is locked fails at once.
        """

    @abstractmethod
    def _within(self, connection: Any) -> Execute:
        """Executes in the transaction of the application's connection; Error where there would be none."""

    @property
    @abstractmethod
    def _failures(self) -> tuple[type[Exception], ...]:
        """What the database raises."""

    @abstractmethod
    def __str__(self) -> str: ...

    @contextmanager
    def _told(self, doing: str, remedy: str = _LOCKED) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            said = str(getattr(error, "orig", error))  # SQLAlchemy adds the statement, which names the table too
            is_other = _TABLE in said and any(absent in said for absent in _ABSENT)
            raise StoreUnavailable(f"{self} cannot {doing}: {error}", remedy=_OTHER if is_other else remedy) from error

    def claim(self, holder: Holder, order: Position) -> Row | None:
        """Makes a process the one that may move the position on, unless one of a later generation is there, or the
        position is of another order; returns what is there by then, with the place as it was. None: nothing.
        """
        values = {**vars(holder), "order": _pattern(order)}
        with self._told("make its table", _NOT_BEGUN):
            self._prepare()
        with self._told("be claimed", _NOT_BEGUN), self._own(waits=True) as execute:
            execute(_CLAIM, values)
            return _row(execute, values)

    def begin(self, holder: Holder, position: Position) -> bool:
        """The first row of the id; False where another process has made one since this one looked."""
        try:
            with self._told("take a position", _NOT_BEGUN), self._own(waits=True) as execute:
                execute(_INSERT, {**vars(holder), "place": str(position)})
        except StoreUnavailable:
            with suppress(StoreUnavailable):
                if self.read(holder) is not None:
                    return False
            raise
        return True

    def reset(self, holder: Holder, position: Position) -> bool:
        """Claims the id, and gives up what is owed before a position, also one of another order; False where there is
        no row yet. Fenced as `check_held`.
        """
        values = {**vars(holder), "place": str(position), "order": _pattern(position)}
        with self._told("make its table", _NOT_BEGUN):
            self._prepare()
        with self._told("take a position", _NOT_BEGUN), self._own(waits=True) as execute:
            if execute(_RESET, values)[0] == 1:
                return True
            row = _row(execute, values)
        if row is not None:
            check_held(holder, row)
        return row is not None

    def read(self, holder: Holder) -> Row | None:
        """What is committed."""
        with self._told("be read"), self._own(waits=False) as execute:
            return _row(execute, vars(holder))

    def move(self, holder: Holder, before: Position, position: Position, *, waits: bool) -> None:
        """Moves the position on in a transaction of its own: nothing that was handed out lies between. `waits`: see
        `_own`.
        """
        with self._told("take a position"), self._own(waits=waits) as execute:
            self._move(execute, holder, before, position)

    def write(self, connection: Any, holder: Holder, before: Position, position: Position) -> None:
        """Moves the position on within the application's transaction.

        Fenced where another process has claimed the id; AlreadyDone where the position was committed before;
        NotCommitted where `before` was not: the transaction that acknowledged it came to nothing.
        """
        with self._told("take a position"):
            self._move(self._within(connection), holder, before, position)

    def _move(self, execute: Execute, holder: Holder, before: Position, position: Position) -> None:
        values = {**vars(holder), "place": str(position), "before": str(before)}
        if execute(_MOVE, values)[0] == 1:
            return
        row = check_held(holder, _row(execute, values))
        done = Position.parse(row.position)
        if done >= position:
            raise AlreadyDone(
                f"{self} has it that subscriber {holder.id!r} is done through {done}: {position} and its "
                "effects are there",
                remedy="Roll this transaction back, and go on with the next event; or where this very transaction has "
                "acknowledged it already, just go on",
            )
        raise NotCommitted(
            f"{self} has {done} for subscriber {holder.id!r}, and not {before}, which was acknowledged before "
            f"{position}: that transaction was rolled back, or is open in another connection",
            remedy="Do all events behind the first position again, in order; or make a new Subscriber, which hands "
            "them out again",
        )

    def repair(self, connection: Any, *, id: str, before: Position, position: Position) -> None:  # noqa: A002
        """Moves the position of an id that no process holds from `before` on, within the application's transaction: for
        a database that was restored, whose missing events a Reader has read. NotCommitted where it is not `before`.
        """
        before.check_order(position)
        values = {"domain": position.domain, "id": id, "place": str(position), "before": str(before)}
        with self._told("take a position"):
            if self._within(connection)(_REPAIR, values)[0] != 1:
                raise NotCommitted(f"{self} does not have {before} for subscriber {id!r}", remedy="Read it anew")


def _row(execute: Execute, values: Mapping[str, object]) -> Row | None:
    _, found = execute(_READ, {"domain": values["domain"], "id": values["id"]})
    return Row(*found[0]) if found else None


def check_held(holder: Holder, row: Row | None) -> Row:
    """Fenced unless the row is the holder's; StateError where there is none any more."""
    if row is None:
        raise StateError(
            f"the position of subscriber {holder.id!r} is gone from its store",
            remedy="Somebody removed it, or the connection is to another database than the store's",
        )
    if (row.generation, row.nonce) != (holder.generation, holder.nonce):
        raise Fenced(
            f"another process took over subscriber id {holder.id!r} with generation {row.generation}; this one, of "
            f"generation {holder.generation}, commits nothing more",
            remedy="Roll back. Give each process an id of its own, or run one process per id",
        )
    return row


def _pattern(order: Position) -> str:
    return f"{order.at(0)}"[:-1] + "%"
