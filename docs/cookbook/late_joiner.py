"""A replica that joins late: it takes another one's state and position, and goes on from exactly there.

    python late_joiner.py one.db late late.db localhost:9092

SQLite copies the database of a replica (two_replicas.py) that runs, as it is between two of its transactions: state and
position together. The copy begins at that position, under an id of its own; once it has a row of its own, it goes on
behind that, however often it is killed.
"""

import argparse
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from two_replicas import follow

import totalorder as to

PLACE = "SELECT place FROM totalorder_positions WHERE subscriber = ?"


def copied(source: str, path: str) -> None:
    """The copy is there as a whole, or not at all."""
    half = f"{path}.half"
    with closing(sqlite3.connect(source)) as running, closing(sqlite3.connect(half)) as copy:
        running.backup(copy)
    os.replace(half, path)


def main(source: str, name: str, path: str, servers: str) -> None:
    if not Path(path).exists():
        copied(source, path)
    with closing(sqlite3.connect(path)) as database:
        own = database.execute(PLACE, (f"replica-{name}",)).fetchone()
        (place,) = database.execute(PLACE, ("replica-one",)).fetchone()
    follow(name, path, servers, start="saved" if own else to.Position.parse(place))


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("source", "name", "path", "servers"):
        given.add_argument(name)
    main(**vars(given.parse_args()))
