"""An application with effects once: a balance for each account, which is right whenever and wherever it was killed.

    python effects_once.py balances.db localhost:9092

Events of the topic payments are JSON: {"account": "ann", "amount": 5}. The balance and the position in the order are
written in one transaction, so both are there or neither is.
"""

import argparse
import json
import signal
import sqlite3

import totalorder as to


def main(path: str, servers: str) -> None:
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, balance INTEGER NOT NULL)")
    database.commit()
    store = to.SqlitePositions(path)
    with to.Subscriber(
        ["payments"], id="balances", domain="bank", bootstrap_servers=servers, positions=store
    ) as subscriber:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: subscriber.stop())
        for event in subscriber:
            payment = json.loads(event.value or b"{}")
            with database:  # one transaction
                database.execute(
                    "INSERT INTO balances VALUES (:account, :amount) "
                    "ON CONFLICT (account) DO UPDATE SET balance = balance + :amount",
                    payment,
                )
                subscriber.ack(event, within=database)


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("path", "servers"):
        given.add_argument(name)
    main(**vars(given.parse_args()))
