"""A process that is killed by kill -9 at every step of its way: each event has its effect once, in order.

The database is a real SQLite file, and the kill a real one. Kafka and the sequencer are in memory, and on disk after
each record that is written, so that the next process finds them as a broker would be found.
"""

import multiprocessing
import os
import pickle
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Self

from sim_kafka import SimTransport
from sim_small import World

from totalorder.subscriber import SqlitePositions
from totalorder.subscriber.transport import Partition

EVENTS = 3
_FORK = multiprocessing.get_context("fork")


def _nothing() -> None:
    """The default is a lambda, which cannot be written to disk."""


def new_world(path: Path) -> None:
    """One with a sequencer that runs, and nothing published."""
    world = World()
    world.sequencer.meanwhile = _nothing
    save(world, path)


def save(world: World, path: Path) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(pickle.dumps(world))
    partial.replace(path)


class Steps:
    """Kills the process at its k-th step; with 0 never."""

    def __init__(self, killed_at: int) -> None:
        self.killed_at, self.count = killed_at, 0

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledTransport(SimTransport):
    """A step before and after each record that is written."""

    step: Steps
    save: Callable[[], None]

    def send(self, partition: Partition, key: bytes | None, value: bytes | None, **rest: Any) -> int:
        self.step()
        offset = super().send(partition, key, value, **rest)
        self.save()
        self.step()
        return offset


def stepping(step: Steps) -> type[sqlite3.Connection]:
    """Connections with a step before and after each statement that writes, and each commit. What is only read leaves
    everything as it was at the step before.
    """

    class SteppingCursor(sqlite3.Cursor):
        def execute(self, *given: Any) -> Self:
            writes = not given[0].lstrip().startswith(("SELECT", "PRAGMA"))
            if writes:
                step()
            done = super().execute(*given)
            if writes:
                step()
            return done

    class Stepping(sqlite3.Connection):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.execute("PRAGMA synchronous = OFF")  # that is for a loss of power, and takes time

        def cursor(self, _: Any = None) -> SteppingCursor:  # type: ignore[override]
            return super().cursor(SteppingCursor)

        def execute(self, *given: Any) -> sqlite3.Cursor:
            return self.cursor().execute(*given)

        def __enter__(self) -> Self:
            return super().__enter__()

        def __exit__(self, *error: Any) -> Any:
            writes = self.in_transaction
            if writes:
                step()
            done = super().__exit__(*error)
            if writes:
                step()
            return done

    return Stepping


def live(world_path: Path, database: Path, killed_at: int) -> None:
    """A process of the application: it handles what comes until all is done."""
    world: World = pickle.loads(world_path.read_bytes())
    step, connect = Steps(killed_at), sqlite3.connect
    kind = stepping(step)
    sqlite3.connect = lambda *given, **named: connect(*given, factory=kind, **named)  # type: ignore[assignment]
    transport = KilledTransport(world.kafka, world.rng, world.tick)
    transport.step, transport.save = step, lambda: save(world, world_path)
    nonce = f"process-{os.getpid()}"
    settings: dict[str, Any] = {"positions": SqlitePositions(database), "save_interval_s": 0.001, "nonce": nonce}
    with world.subscriber("ab", transport=transport, **settings) as subscriber:
        published = sum(len(log) for at, log in world.kafka.logs.items() if at.topic in "ab")
        for number in range(published, EVENTS):
            world.publish("ab"[number % 2], str(number))
        while (done := len(effects(database))) < EVENTS:
            for event in subscriber.poll_batch(2 if done else 1, 1):
                with closing(sqlite3.connect(database)) as connection, connection:
                    connection.execute("INSERT INTO effects VALUES (?, ?)", (event.g, event.value))
                    subscriber.ack(event, within=connection)
    save(world, world_path)
    os._exit(7)


def effects(database: Path) -> list[tuple[int, bytes]]:
    """What was done, in order."""
    with closing(sqlite3.Connection(database)) as connection:
        return connection.execute("SELECT g, value FROM effects ORDER BY rowid").fetchall()


def run(*given: Any) -> int:
    """Its exit code: 7 when it came to its end, -9 when it was killed."""
    process = _FORK.Process(target=live, args=given)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def test_each_event_has_its_effect_once_wherever_a_process_was_killed(tmp_path: Path) -> None:
    warm = World()  # what is compiled is loaded once, and not in each process
    warm.publish("a")
    warm.tick(0)
    killed_at, code = 0, -signal.SIGKILL
    while code == -signal.SIGKILL:
        killed_at += 1
        world, database = tmp_path / f"world{killed_at}", tmp_path / f"shop{killed_at}.db"
        new_world(world)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE effects (g INTEGER, value BLOB)")
        code = run(world, database, killed_at)
        if code == -signal.SIGKILL:
            assert run(world, database, 0) == 7, f"killed at step {killed_at}"
        done = effects(database)
        assert sorted(value for _, value in done) == [b"0", b"1", b"2"], f"killed at step {killed_at}"
        assert [g for g, _ in done] == sorted(g for g, _ in done)
    assert code == 7
    assert killed_at > 40
