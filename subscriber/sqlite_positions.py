"""Positions in an application's SQLite database."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from os import PathLike, fspath
from typing import Any

from totalorder.errors import SettingsError
from totalorder.subscriber.position_store import Execute, PositionStore

_WAIT_S = 5.0
_CREATE = """
CREATE TABLE IF NOT EXISTS totalorder_positions (
    domain VARCHAR(200) NOT NULL,
    subscriber VARCHAR(255) NOT NULL,
    place VARCHAR(300) NOT NULL,
    generation BIGINT NOT NULL,
    nonce VARCHAR(64) NOT NULL,
    PRIMARY KEY (domain, subscriber)
)
"""


class SqlitePositions(PositionStore):
    """Keeps positions in the table `totalorder_positions` of the SQLite database at `path`.

        store = SqlitePositions("shop.db")
        with Subscriber(["orders"], id="shop", domain="shop", positions=store) as subscriber:
            for event in subscriber:
                with connection:  # one transaction
                    connection.execute("INSERT …")
                    subscriber.ack(event, within=connection)

    `within` is a sqlite3.Connection to the same file. `adopt` (once) takes over an id that had no store so far.
    """

    def __init__(self, path: str | PathLike[str], *, adopt: bool = False) -> None:
        self._path, self.adopt = fspath(path), adopt
        if self._path in ("", ":memory:"):
            raise SettingsError(
                f"path = {self._path!r} is no file", remedy="A position that ends with the process is none: name a file"
            )

    def __str__(self) -> str:
        return f"the position store {self._path}"

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def _prepare(self) -> None:
        with self._own(waits=True) as execute:
            execute(_CREATE, {})

    @contextmanager
    def _own(self, *, waits: bool) -> Iterator[Execute]:
        with closing(sqlite3.connect(self._path, timeout=_WAIT_S if waits else 0)) as connection, connection:
            yield _executing(connection)

    def _within(self, connection: Any) -> Execute:
        if not isinstance(connection, sqlite3.Connection):
            raise SettingsError(
                f"within = {connection!r} is no sqlite3.Connection", remedy="Give the application's own"
            )
        commits_at_once = connection.isolation_level is None or getattr(connection, "autocommit", False) is True
        if commits_at_once and not connection.in_transaction:
            raise SettingsError(
                "within is a connection that commits each statement by itself",
                remedy="Execute BEGIN before the effects, so that they and the position are one transaction",
            )
        return _executing(connection)


def _executing(connection: sqlite3.Connection) -> Execute:
    def execute(statement: str, values: Mapping[str, object]) -> tuple[int, Sequence[Sequence[Any]]]:
        cursor = connection.cursor()
        cursor.row_factory = None  # the application may have rows made into something else
        done = cursor.execute(statement, dict(values))
        return done.rowcount, done.fetchall()

    return execute
