"""Positions in any database that SQLAlchemy speaks to (the extra `sqlalchemy`)."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from totalorder.errors import EnvironmentProblem, SettingsError
from totalorder.subscriber.position_store import Execute, PositionStore

try:
    from sqlalchemy import BigInteger, Column, Connection, Engine, MetaData, String, Table, inspect, text
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import SingletonThreadPool, StaticPool
except ImportError as error:
    raise EnvironmentProblem(
        "SqlAlchemyPositions needs the package sqlalchemy", remedy="pip install 'totalorder[sqlalchemy]'"
    ) from error

_WAIT_S = 5.0
METADATA = MetaData()
_TABLE = Table(
    "totalorder_positions",
    METADATA,
    Column("domain", String(200), primary_key=True),
    Column("subscriber", String(255), primary_key=True),
    Column("place", String(300), nullable=False),
    Column("generation", BigInteger, nullable=False, autoincrement=False),
    Column("nonce", String(64), nullable=False),
)


class SqlAlchemyPositions(PositionStore):
    """Keeps positions in the table `totalorder_positions` of an engine's database.

        store = SqlAlchemyPositions(engine)
        with Subscriber(["orders"], id="shop", domain="shop", positions=store) as subscriber:
            for event in subscriber:
                with engine.begin() as connection:  # one transaction
                    connection.execute(…)
                    subscriber.ack(event, within=connection)

    `within` is a Connection to the same database; of an ORM session, `session.connection()`. `adopt`
    (once) takes over an id that had no store so far. A row that another process's transaction has locked is waited for
    as long as the database does, with PostgreSQL for five seconds.
    """

    def __init__(self, engine: Engine, *, adopt: bool = False) -> None:
        if not isinstance(engine, Engine):
            raise SettingsError(f"engine = {engine!r} is no sqlalchemy.Engine", remedy="Give create_engine(…)")
        if engine.url.get_backend_name() == "sqlite" and engine.url.database in (None, "", ":memory:"):
            raise SettingsError(
                "engine has its database in memory", remedy="A position that ends with the process is none: name a file"
            )
        if isinstance(engine.pool, StaticPool | SingletonThreadPool):
            raise SettingsError(
                "engine has one connection for all: a question of ours would commit a transaction of the application's",
                remedy="Leave poolclass out",
            )
        self._engine, self.adopt = engine, adopt

    def __str__(self) -> str:
        return f"the position store {self._engine.url.render_as_string(hide_password=True)}"

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        return (SQLAlchemyError,)

    def _prepare(self) -> None:
        try:
            METADATA.create_all(self._engine)
        except SQLAlchemyError:
            # Another process may have made it since somebody looked.
            if not inspect(self._engine).has_table(_TABLE.name):
                raise

    @contextmanager
    def _own(self, *, waits: bool) -> Iterator[Execute]:
        with self._engine.begin() as connection:
            if connection.dialect.name == "postgresql":  # it would wait for ever; of others the engine knows how long
                connection.execute(text(f"SET LOCAL lock_timeout = {round(_WAIT_S * 1000) if waits else 1}"))
            yield _executing(connection)

    def _within(self, connection: Any) -> Execute:
        if not isinstance(connection, Connection):
            raise SettingsError(
                f"within = {connection!r} is no sqlalchemy.Connection",
                remedy="Give the one of the application's transaction; of an ORM session, session.connection()",
            )
        if _commits_at_once(connection):
            raise SettingsError(
                "within is a connection that commits each statement by itself",
                remedy="Give one in a transaction, as of engine.begin(), so that effects and position are one",
            )
        return _executing(connection)


def _commits_at_once(connection: Connection) -> bool:
    """Whether each statement is a transaction of its own: by options, by the engine, or by how the driver is used."""
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return True
    driver: Any = connection.connection.dbapi_connection
    if isinstance(driver, sqlite3.Connection):
        return driver.isolation_level is None and not driver.in_transaction
    told = getattr(driver, "get_autocommit", None)
    return (told() if callable(told) else getattr(driver, "autocommit", False)) is True


def _executing(connection: Connection) -> Execute:
    def execute(statement: str, values: Mapping[str, object]) -> tuple[int, Sequence[Sequence[Any]]]:
        done = connection.execute(text(statement), dict(values))
        return done.rowcount, [tuple(row) for row in done] if done.returns_rows else []

    return execute
