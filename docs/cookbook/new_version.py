"""Two versions of a service: the new one takes over while the old one runs, and no event is done twice or left out.

    python new_version.py v1 desk.db localhost:9092
    python new_version.py v2 desk.db localhost:9092        # while the first runs

Start the new version; when the sequencer has granted it the id, the old one hears Fenced at its next event or
acknowledgement, rolls back what it had begun, and ends. The new one does that event, and goes on. Each row says which
version did it.
"""

import argparse
import signal
import sqlite3
import sys

import totalorder as to


def main(version: str, path: str, servers: str) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS done (value TEXT NOT NULL, version TEXT NOT NULL)")
    database.commit()
    try:
        with to.Subscriber(
            ["tickets"],
            id="desk",
            domain="desk",
            bootstrap_servers=servers,
            positions=to.SqlitePositions(path),
        ) as subscriber:
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, lambda *_: subscriber.stop())
            for event in subscriber:
                with database:  # one transaction
                    database.execute("INSERT INTO done VALUES (CAST(? AS TEXT), ?)", (event.value, version))
                    subscriber.ack(event, within=database)
    except to.Fenced as fenced:
        print(f"{version} ends: {fenced}", file=sys.stderr)


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("version", "path", "servers"):
        given.add_argument(name)
    main(**vars(given.parse_args()))
