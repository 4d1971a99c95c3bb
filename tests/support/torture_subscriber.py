"""An application of the storm: prints each event that it is handed, and acknowledges it.

Arguments: id, domain, servers, seconds that a start may take, seconds that an outage is borne, topics.
"""

import signal
import sys
from typing import TextIO

from totalorder.cli.subscribe import json_line
from totalorder.subscriber import Subscriber

SUBSCRIBED = "subscribed"


def say(stream: TextIO, text: str) -> None:
    """A line at once."""
    stream.write(f"{text}\n")
    stream.flush()


def main(name: str, domain: str, servers: str, start_timeout_s: str, outage_timeout_s: str, *topics: str) -> None:
    """Until it is killed, Kafka is away for too long, or SIGTERM, which ends it in good order."""
    with Subscriber(
        topics,
        id=name,
        domain=domain,
        bootstrap_servers=servers,
        start_timeout_s=float(start_timeout_s),
        outage_timeout_s=float(outage_timeout_s),
        save_interval_s=0.5,
    ) as subscriber:
        signal.signal(signal.SIGTERM, lambda *_: subscriber.stop())
        say(sys.stderr, SUBSCRIBED)
        for event in subscriber:
            say(sys.stdout, json_line(event))
            subscriber.ack(event)


if __name__ == "__main__":
    main(*sys.argv[1:])
