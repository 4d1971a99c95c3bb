"""Parent and child rows into SQLite, with foreign keys: no order is ever seen before its customer.

    python parent_and_child.py shop.db localhost:9092

Customers and orders are two topics, and Kafka says nothing about which came first. In the domain's order an order that
was published after its customer was acknowledged comes after it, so the foreign key holds with no retries, and no table
of orphans. Events are JSON: {"id": 1, "name": "Ann"} and {"id": 7, "customer": 1}.
"""

import argparse
import json
import signal
import sqlite3

import totalorder as to

SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers (id));
"""
INSERT = {
    "customers": "INSERT INTO customers VALUES (:id, :name)",
    "orders": "INSERT INTO orders VALUES (:id, :customer)",
}


def main(path: str, servers: str) -> None:
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    database.execute("PRAGMA foreign_keys = ON")
    store = to.SqlitePositions(path)
    with to.Subscriber(INSERT, id="shop-db", domain="shop", bootstrap_servers=servers, positions=store) as subscriber:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: subscriber.stop())
        while not subscriber.stopped:
            batch = subscriber.poll_batch(1_000, 1.0)
            with database:  # one transaction for all that has come
                for event in batch:
                    database.execute(INSERT[event.topic], json.loads(event.value or b"{}"))
                if batch:
                    subscriber.ack(batch, within=database)


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("path", "servers"):
        given.add_argument(name)
    main(**vars(given.parse_args()))
