"""Two replicas that must agree: each keeps the last value of each key, written to by two topics.

    python two_replicas.py one one.db localhost:9092
    python two_replicas.py two two.db localhost:9092

Where two topics write one key, the last one wins, and which is the last is the domain's order: the same for both. The
fingerprint takes in every value in the order of its coming, so that replicas which agree on it had the same history.
"""

import argparse
import hashlib
import signal
import sqlite3

import totalorder as to

SCHEMA = """
CREATE TABLE IF NOT EXISTS state (key BLOB PRIMARY KEY, value BLOB);
CREATE TABLE IF NOT EXISTS history (fingerprint TEXT NOT NULL);
"""


def follow(name: str, path: str, servers: str, start: to.Position | str) -> None:
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    with to.Subscriber(
        ["prices", "discounts"],
        id=f"replica-{name}",
        domain="shop",
        bootstrap_servers=servers,
        start=start,
        positions=to.SqlitePositions(path),
    ) as subscriber:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: subscriber.stop())
        for event in subscriber:
            with database:  # one transaction
                (before,) = database.execute("SELECT fingerprint FROM history").fetchone() or ("",)
                after = hashlib.sha256(before.encode() + repr((event.g, event.value)).encode()).hexdigest()
                database.execute("DELETE FROM history")
                database.execute("INSERT INTO history VALUES (?)", (after,))
                database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (event.key, event.value))
                subscriber.ack(event, within=database)


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("name", "path", "servers"):
        given.add_argument(name)
    follow(**vars(given.parse_args()), start="saved")
