"""What all peers are given: the same events by the same producers, and the same subscribers.

The producers' clocks go wrong and the producers stall, as they do: an event carries the time at which it was made, by
its producer's clock, and a stalled producer publishes late what it made in time.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from totalorder.bench.workload import SHAPES, Ints, Workload

TOPICS = 16
SHARED = (1, 2, 4, 5)
"""The topics, by rank of popularity, that the subset subscribers share."""
PAYLOAD_BYTES = 200
CLOCKS_MS = (0, 80, -120)
"""How far each producer's clock is ahead of the true time."""
STALL_S = 0.4
STALL_EVERY_S = 6.0
_SEED = 1
_HEAD = struct.Struct("<qq")


@dataclass(frozen=True, kw_only=True)
class Made:
    """One event: when it is published, in seconds after the start, and how long before that it was made."""

    event: int
    topic: int
    publish_s: float
    stalled_s: float


@dataclass(frozen=True, kw_only=True)
class Load:
    """`count` events, numbered from `first` on, `rate` a second; rate 0: as fast as it goes."""

    first: int
    count: int
    rate: float

    @property
    def topics(self) -> Ints:
        """The topic of each event: the paper's popularity."""
        return Workload(topics=TOPICS, shape=SHAPES[0], seed=_SEED + self.first).events(self.count)

    def share(self, producer: int) -> Iterator[Made]:
        """The events of one producer, in the order in which it publishes them."""
        producers = np.random.default_rng([_SEED, self.first]).integers(len(CLOCKS_MS), size=self.count)
        topics = self.topics
        for index in np.flatnonzero(producers == producer).tolist():
            made_s = index / self.rate if self.rate else 0.0
            stalled_s = _stalled_s(made_s, producer) if self.rate else 0.0
            yield Made(
                event=self.first + index,
                topic=int(topics[index]),
                publish_s=made_s + stalled_s,
                stalled_s=stalled_s,
            )

    def expected(self, topics: frozenset[int]) -> Ints:
        """The events that a subscriber of these topics has to get, ascending."""
        return self.first + np.flatnonzero(np.isin(self.topics, sorted(topics)))


def _stalled_s(made_s: float, producer: int) -> float:
    """How long an event waits in its producer: they stall one after the other, each once every `STALL_EVERY_S`."""
    first_s = STALL_EVERY_S / len(CLOCKS_MS) * (producer + 1) - STALL_S
    since_s = (made_s - first_s) % STALL_EVERY_S
    return STALL_S - since_s if made_s >= first_s and since_s < STALL_S else 0.0


def subscriptions(subsets: int) -> Mapping[str, frozenset[int]]:
    """Subscriber → its topics: up to four of three topics, of which any two share two, and one of all topics."""
    found = {f"subset-{n}": frozenset(each) for n, each in enumerate(list(combinations(SHARED, 3))[:subsets])}
    return {**found, "all": frozenset(range(TOPICS))}


def topic_name(topic: int) -> str:
    """Name of a topic, wherever it is one."""
    return f"topic-{topic:02}"


def payload(event: int, sent_us: int) -> bytes:
    """What is published: the event's number, the moment of publishing, and padding."""
    return _HEAD.pack(event, sent_us).ljust(PAYLOAD_BYTES, b".")


def parse_payload(value: bytes) -> tuple[int, int]:
    """(event, sent_us) of a payload."""
    event, sent_us = _HEAD.unpack_from(value)
    return event, sent_us
