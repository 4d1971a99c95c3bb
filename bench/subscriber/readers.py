"""What reads the backlog: each a process of its own, by a plain client or by a Subscriber."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from totalorder.subscriber.clients import Client

AT_ONCE = 1_000
"""So many events are taken at most at a time, by whatever hands out several."""
_POLL_S = 0.5
_SILENCE_S = 60.0
"""So long without an event: no more will come."""
_GRANT_TIMEOUT_S = 90.0
_PLAIN = {"enable.auto.commit": "false", "group.id": "bench", "auto.offset.reset": "earliest"}
Take = Callable[[], int]
"""Takes what has come, waiting half a second for something; how many events it was."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A way to read: a Subscriber with this `client` below it, or the client alone."""

    client: Client
    face: str
    is_ordered: bool

    @property
    def label(self) -> str:
        """How tables call it."""
        return f"{'Subscriber' if self.is_ordered else 'alone'}, {self.client} {self.face}"


READERS = (
    *(Reader(client="kafka-python", face=face, is_ordered=False) for face in ("poll",)),
    *(Reader(client="confluent", face=face, is_ordered=False) for face in ("poll", "consume")),
    *(Reader(client="kafka-python", face=face, is_ordered=True) for face in ("iterator", "poll_batch")),
    *(Reader(client="confluent", face=face, is_ordered=True) for face in ("iterator", "poll_batch")),
)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A backlog that was read, but for its first events: with them clients connect.

    `first_s`: from the start of the reader until the first event was handed out. `most_mb`: resident, what the
    benchmark imports included. `idle`: the share of a core that it takes when nothing comes any more.
    """

    events: int
    cpu_s: float
    wall_s: float
    first_s: float
    most_mb: float
    idle: float


def subscribe(pipe: Connection, servers: str, topics: Sequence[str], domain: str, ids: Sequence[str]) -> None:
    """Has the ids granted, since events from before a subscription are not delivered."""
    from totalorder.subscriber import Subscriber

    for id_ in ids:
        Subscriber(topics, **_settings(servers, domain, id_, "kafka-python")).close()
    pipe.send("subscribed")


def read(
    pipe: Connection,
    reader: Reader,
    servers: str,
    topics: Sequence[str],
    domain: str,
    id_: str,
    load: tuple[int, float],
) -> None:
    """Reads so many events, then idles for so many seconds, and says a Reading."""
    expected, idle_s = load
    began = time.monotonic()
    with _opened(reader, servers, topics, domain, id_) as take:
        first = _events(take, 1)
        first_s = time.monotonic() - began
        gc.freeze()  # what was imported, as the receivers of other benchmarks do
        cpu_s, wall_s = time.process_time(), time.monotonic()
        events = first + _events(take, expected - first)
        cpu_s, wall_s = time.process_time() - cpu_s, time.monotonic() - wall_s
        most_mb = _most_mb()
        idle = _idle(take, idle_s)
    reading = Reading(events=events - first, cpu_s=cpu_s, wall_s=wall_s, first_s=first_s, most_mb=most_mb, idle=idle)
    pipe.send((events, reading))


def _events(take: Take, expected: int) -> int:
    """Takes so many, or those that come."""
    events, last = 0, time.monotonic()
    while events < expected and time.monotonic() - last < _SILENCE_S:
        if found := take():
            events, last = events + found, time.monotonic()
    return events


def _idle(take: Take, seconds: float) -> float:
    deadline, cpu_s = time.monotonic() + seconds, time.process_time()
    while time.monotonic() < deadline:
        take()
    return (time.process_time() - cpu_s) / seconds


def _most_mb() -> float:
    """Of this program: what getrusage says counts what the process was before."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1_024


# --- ways to read -----------------------------------------------------------------------------------------------------


@contextmanager
def _opened(reader: Reader, servers: str, topics: Sequence[str], domain: str, id_: str) -> Iterator[Take]:
    if reader.is_ordered:
        opened = _ordered(reader, _settings(servers, domain, id_, reader.client), topics)
    else:
        opened = (_kafka_python if reader.client == "kafka-python" else _confluent)(reader, servers, topics)
    with opened as take:
        yield take


def _settings(servers: str, domain: str, id_: str, client: Client) -> Mapping[str, Any]:
    """A Subscriber as it comes, but for positions: saved each second, as nobody else here saves any."""
    return {
        "id": id_,
        "domain": domain,
        "bootstrap_servers": servers,
        "client": client,
        "start_timeout_s": _GRANT_TIMEOUT_S,
        "save_interval_s": 1.0,
    }


@contextmanager
def _ordered(reader: Reader, settings: Mapping[str, Any], topics: Sequence[str]) -> Iterator[Take]:
    from totalorder.subscriber import Subscriber

    with Subscriber(topics, **settings) as subscriber:

        def poll() -> int:
            event = subscriber.poll(_POLL_S)
            if event is None:
                return 0
            subscriber.ack(event)
            return 1

        def poll_batch() -> int:
            batch = subscriber.poll_batch(AT_ONCE, _POLL_S)
            subscriber.ack(batch)
            return len(batch.value)

        yield poll_batch if reader.face == "poll_batch" else poll


@contextmanager
def _kafka_python(_: Reader, servers: str, topics: Sequence[str]) -> Iterator[Take]:
    from kafka import KafkaConsumer, TopicPartition

    settings = {"enable_auto_commit": False, "auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    consumer = KafkaConsumer(bootstrap_servers=servers, max_poll_records=AT_ONCE, **settings)
    consumer.assign([TopicPartition(topic, 0) for topic in topics])
    try:
        yield lambda: sum(map(len, consumer.poll(timeout_ms=round(_POLL_S * 1_000)).values()))
    finally:
        consumer.close()


@contextmanager
def _confluent(reader: Reader, servers: str, topics: Sequence[str]) -> Iterator[Take]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, **_PLAIN})
    consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])

    def poll() -> int:
        message = consumer.poll(_POLL_S)
        return 0 if message is None or message.error() else len((message.value(),))

    def consume() -> int:
        return sum(message.error() is None for message in consumer.consume(AT_ONCE, _POLL_S))

    try:
        yield consume if reader.face == "consume" else poll
    finally:
        consumer.close()
