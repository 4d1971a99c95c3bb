"""An incident once more: what happened between two places of the order, in the order in which everybody saw it.

    python incident.py "$BEGIN" "$END" localhost:9092

Both places are what event.position printed, such as shop/0b428b26-2b39-414d-8c3a-ea9f07d8f88a/42: your services log it.
Each event behind the first and through the second comes as a line of JSON, with how many orders its customer had placed
since the first. A Reader subscribes to nothing: no service notices, and the job need not run.
"""

import argparse
import collections
import json

import totalorder as to


def main(begin: str, end: str, servers: str) -> None:
    start, until = to.Position.parse(begin), to.Position.parse(end)
    seen: collections.Counter[int] = collections.Counter()
    with to.Reader(
        ["customers", "orders"], domain=start.domain, bootstrap_servers=servers, start=start, until=until
    ) as reader:
        for event in reader:
            record = json.loads(event.value or b"{}")
            customer = record.get("customer", record.get("id"))
            seen[customer] += event.topic == "orders"
            print(json.dumps({"at": str(event.position), "topic": event.topic, "orders": seen[customer], **record}))


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("begin", "end", "servers"):
        given.add_argument(name)
    main(**vars(given.parse_args()))
