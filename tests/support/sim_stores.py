"""Databases of applications in a simulated world: effects of events, and the position, in one transaction."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from greenlet import GreenletExit
from sim_kafka import SimCrash

from totalorder.errors import StoreUnavailable
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost, SqlitePositions, sqlite_positions

if TYPE_CHECKING:
    from sim_process import Process
    from sim_world import World

_MEMORY = Path("/dev/shm")
"""Where there is one, nothing waits for a disk."""
_CREATE = "CREATE TABLE effects (number INTEGER PRIMARY KEY, nonce, delivery, name, id, partition, place, g)"
_INSERT = "INSERT INTO effects (nonce, delivery, name, id, partition, place, g) VALUES (?, ?, ?, ?, ?, ?, ?)"
_READ = "SELECT nonce, delivery, name, id, partition, place, g FROM effects ORDER BY number"


class Effect(NamedTuple):
    """What an application has done, and committed, for an event that a process was handed as its n-th, from 0."""

    nonce: str
    delivery: int
    source: Source
    offset: int
    g: int


class Stores:
    """Those of a world, by subscriber id; within `with`."""

    def __init__(self, world: "World") -> None:
        self._world, self._rng = world, world.rng
        self._directory = TemporaryDirectory(prefix="sim", dir=_MEMORY if _MEMORY.is_dir() else None)
        self._patch = patch.object(sqlite_positions, "_WAIT_S", 0.0)
        """Whoever has a lock goes on when all of this thread does, and no sooner."""
        self._made: set[str] = set()
        self._open: list[sqlite3.Connection] = []

    def __enter__(self) -> "Stores":
        self._patch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._open:
            connection.close()
        self._patch.__exit__(None, None, None)
        self._directory.cleanup()

    def positions(self, id: str) -> SqlitePositions:  # noqa: A002
        """The store of an id, and a place for its effects."""
        if id not in self._made:
            self._made.add(id)
            with closing(self._connect(id)) as connection, connection:
                connection.execute(_CREATE)
        return SqlitePositions(self._path(id))

    def effects(self, id: str) -> list[Effect]:  # noqa: A002
        """All that was committed, in order."""
        with closing(self._connect(id)) as connection:
            rows = connection.execute(_READ).fetchall()
        return [
            Effect(nonce, delivery, Source(name, topic_id, partition), offset, g)
            for nonce, delivery, name, topic_id, partition, offset, g in rows
        ]

    def work(self, process: "Process", count: int) -> None:
        """The effects of the first `count` events that the process was handed, as far as it comes: some at a time, in
        transactions that are committed, or rolled back, or left open by a process that dies.
        """
        if process.connection is None:
            process.connection = self._connect(process.id)
            self._open.append(process.connection)
        while process.committed < count:
            upto = min(count, process.committed + self._rng.randint(1, 3))
            process.acking.append((self._world.moment, upto))
            process.undone = not self._is_committed(process, process.connection, upto)
            if process.undone:
                process.connection.rollback()
                return
            process.committed = upto
            process.durable.append((self._world.moment, upto))
            self._die_perhaps(process)

    def _is_committed(self, process: "Process", connection: sqlite3.Connection, upto: int) -> bool:
        """False where the application fails, or another process's transaction is open."""
        rng, healing = self._rng, self._world.healing
        assert process.subscriber is not None
        with suppress(StoreUnavailable, sqlite3.OperationalError):
            for at in range(process.committed, upto):
                event = process.handed[at].event
                connection.execute(_INSERT, (process.nonce, at, *_place(event), event.g))
                # Behind one that came to nothing each is acknowledged again, in order.
                if at == upto - 1 or process.undone or rng.random() < 0.5:
                    process.subscriber.ack(event, within=connection)
            if not healing:
                self._let_others(process)
                self._die_perhaps(process)
                if rng.random() < 0.1:
                    return False
            connection.commit()
            return True
        return False

    def _let_others(self, process: "Process") -> None:
        """The transaction is open for a while."""
        for _ in range(self._rng.choice([0, 0, 1, 5])):
            self._world.let_others()
            if process.dead:
                raise GreenletExit

    def _die_perhaps(self, process: "Process") -> None:
        if self._world.has("crashes") and not self._world.healing and self._rng.random() < 0.05:
            process.dead = True
            raise SimCrash

    def _connect(self, id: str) -> sqlite3.Connection:  # noqa: A002
        return sqlite3.connect(self._path(id), timeout=0)

    def _path(self, id: str) -> str:  # noqa: A002
        return f"{self._directory.name}/{id}.db"


def end(process: "Process") -> None:
    """Of a process that is over nothing is committed any more."""
    if process.connection is not None:
        process.connection.close()
        process.connection = None


def _place(event: Event | Lost) -> tuple[str, str, int, int]:
    offset = event.first_offset if isinstance(event, Lost) else event.offset
    return event.kafka_topic, event.topic_id, event.partition, offset
