"""Short forms for feeding a delivery machine by hand."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
from deliveries import Deliver, each
from sources import src

from totalorder.sequencer.wire.control import Answer, Ended, Grant
from totalorder.sequencer.wire.position import Progress, StampsMark
from totalorder.sequencer.wire.stamps import Source, StampedBatch, StampRows
from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost, Effect
from totalorder.subscriber.delivery.events import EventBlock
from totalorder.subscriber.delivery.machine import Delivery

Row = tuple[str, int, int, int, Mapping[str, int]]
"""topic, n, g, offset, entries. The event lies in partition 0 of the Kafka topic of the topic's name."""
BEGIN = 10
"""Offset at which stamps begin."""


def topic_id(name: str) -> int:
    """a, b, c … are 0, 1, 2 …"""
    return ord(name) - ord("a")


def stamped(
    rows: Sequence[Row],
    *,
    partition: int,
    batch: int = 2,
    g: int | None = None,
    control_g: int = 1,
    next_offsets: Mapping[Source, int] | None = None,
    previous: str = "",
    partitions: int = 1,
    m: int = 1,
    incarnation: int = 1,
) -> StampedBatch:
    """A sealed batch."""
    ordered = sorted(rows, key=lambda row: (row[0], row[1]))
    entries = [sorted((topic_id(name), n) for name, n in row[4].items()) for row in ordered]
    starts = np.cumsum([0] + [len(each) for each in entries])
    frontier = dict(next_offsets or {})
    for row in ordered:
        frontier[src(row[0])] = max(frontier.get(src(row[0]), 0), row[3] + 1)
    sources = tuple(frontier)

    def ints(values: Any) -> Any:
        return np.array(list(values), dtype=np.int64)

    return StampedBatch(
        domain="d",
        partition=partition,
        partitions=partitions,
        incarnation=incarnation,
        batch=batch,
        time_ms=0,
        cut=batch,
        min_subscriptions=m,
        g=g if g is not None else max([control_g, *(row[2] for row in rows)]),
        control_g=control_g,
        names={topic_id(name): name for row in ordered for name in (row[0], *row[4])},
        sources=sources,
        ends=tuple(frontier.values()),
        rows=StampRows(
            topic=ints(topic_id(row[0]) for row in ordered),
            n=ints(row[1] for row in ordered),
            g=ints(row[2] for row in ordered),
            source=ints(sources.index(src(row[0])) for row in ordered),
            offset=ints(row[3] for row in ordered),
            crc=ints(0 for _ in ordered),
            keyframe=np.zeros(len(ordered), dtype=np.bool_),
            entry_start=starts.astype(np.int64),
            entry_topic=ints(topic for each in entries for topic, _ in each),
            entry_n=ints(n for each in entries for _, n in each),
        ),
        previous_digest=previous,
    ).sealed()


def grant(
    topics: Sequence[str],
    *,
    g: int,
    clock: Mapping[str, int],
    former: Sequence[str] = (),
    generation: int = 1,
    nonce: str = "me",
    continuous: bool = True,
    next_offsets: Mapping[Source, int] | None = None,
    partitions: int = 1,
    m: int = 1,
) -> Grant:
    """A grant of subscriber s."""
    return Grant(
        id="s",
        generation=generation,
        nonce=nonce,
        g=g,
        offset=g,
        topics=tuple(topics),
        former=tuple(former),
        continuous=continuous,
        clock=clock,
        ids={name: topic_id(name) for name in clock},
        next_offsets=next_offsets or {},
        stamps_ends=dict.fromkeys(range(partitions), BEGIN),
        stamps_partitions=partitions,
        min_subscriptions=m,
        topic_by="topic",
        lease_s=0,
        batch=2,
        incarnation=1,
    )


def ended(reason: str, *, generation: int, g: int, clock: Mapping[str, int], nonce: str = "me") -> Ended:
    """The end of subscriber s's subscription: "unsubscribed", or "expired"."""
    offset = -1 if reason == "expired" else 9
    return Ended(
        id="s",
        generation=generation,
        nonce=nonce,
        g=g,
        offset=offset,
        reason=reason,
        clock=clock,
        batch=2,
        incarnation=1,
    )


def positioned(topics: Sequence[str], *, partitions: int = 1, m: int = 1) -> Progress:
    """Everything at its beginning, granted at g = 1 with generation 1."""
    return Progress(
        generation=1,
        switched_g=1,
        g=1,
        topics={topic_id(name): name for name in topics},
        clock=dict.fromkeys(map(topic_id, topics), 0),
        pending=(),
        sources={src(name): 0 for name in topics},
        stamps={number: StampsMark(offset=BEGIN, batch=1) for number in range(partitions)},
        stamps_partitions=partitions,
        min_subscriptions=m,
        topic_by="topic",
    )


def said(delivery: Deliver | DeliverLost) -> str | None:
    """Its tag, or that it tells of a loss."""
    return "lost" if isinstance(delivery, DeliverLost) else delivery.tag


def plain(effects: Iterable[Effect]) -> list[Any]:
    """The effects, with a Deliver for each event of Deliveries."""
    return [one for effect in effects for one in (each(effect) if isinstance(effect, Deliveries) else (effect,))]


def one_event(
    machine: Delivery, *, source: Source, offset: int, topic: str | None, crc: int, handle: object = None
) -> list[Any]:
    """A block of one record."""
    return plain(machine.events(source, EventBlock([offset], [topic], [crc], [handle])))


def event(machine: Delivery, topic: str, offset: int) -> list[Any]:
    """An event of the Kafka topic of the topic's name."""
    return one_event(machine, source=src(topic), offset=offset, topic=topic, crc=0, handle=(topic, offset))


class Feed:
    """A machine, and what came out of it."""

    def __init__(self, *, partitions: int = 1, m: int = 1, **arguments: Any) -> None:
        self.machine = Delivery(id="s", nonce="me", domain="d", **arguments)
        self.partitions, self.m = partitions, m
        self.all: list[Deliver | DeliverLost] = []
        self.last_effects: list[Any] = []
        self.log: list[StampedBatch] = []
        self.offsets: list[int] = []
        self._digests: dict[int, str] = {}
        self._batches: dict[int, int] = {}
        if "position" in arguments:
            self.machine.start()

    @classmethod
    def granted(cls, topics: Sequence[str], *, m: int = 1, **arguments: Any) -> Self:
        """One that was granted these topics at g = 1, before any event."""
        feed = cls(m=m, **arguments)
        feed.grant = grant(topics, g=1, clock=dict.fromkeys(topics, 0), next_offsets={src(t): 0 for t in topics}, m=m)
        feed.answer(feed.grant)
        if "max_buffered" in arguments:
            feed = cls(m=m, **arguments)
            feed.answer(grant(topics, g=1, clock=dict.fromkeys(topics, 0), next_offsets={src(topics[0]): 0}, m=m))
        return feed

    grant: Grant

    @property
    def last(self) -> StampedBatch:
        return self.log[-1]

    @property
    def names(self) -> list[tuple[str | None, int]]:
        return [(deliver.topic, deliver.n) for deliver in self.all]

    def delivered(self, effects: Sequence[Any]) -> list[tuple[str, int]]:
        return [(effect.topic, effect.n) for effect in effects if isinstance(effect, Deliver)]

    def answer(self, answer: Answer) -> list[Any]:
        return self._keep(self.machine.answer(answer))

    def events(self, *places: tuple[str, int]) -> list[tuple[str, int]]:
        found = []
        for topic, offset in places:
            found += self.delivered(self._keep(event(self.machine, topic, offset)))
        return found

    def stamps(self, *rows: Row, partition: int = 0, **fields: Any) -> list[Any]:
        """The partition's next batch."""
        number = self._batches.get(partition, 1) + 1
        batch = stamped(
            rows,
            partition=partition,
            batch=number,
            previous=self._digests.get(partition, ""),
            partitions=self.partitions,
            **({"m": self.m} | fields),
        )
        self._batches[partition], self._digests[partition] = number, batch.digest
        return self.again(batch)

    def again(self, batch: StampedBatch) -> list[Any]:
        """Any batch, at the end of the log."""
        offset = BEGIN + len(self.log)
        self.log.append(batch)
        self.offsets.append(offset)
        return self._keep(self.machine.stamped(batch, offset=offset, next_offset=offset + 1))

    def replay(self, log: Sequence[StampedBatch]) -> None:
        """Another machine's log, from where this one was told to read."""
        first = self.machine.position().stamps[0].offset - BEGIN
        for index, batch in enumerate(log):
            if index >= first:
                self._keep(self.machine.stamped(batch, offset=BEGIN + index, next_offset=BEGIN + index + 1))

    def _keep(self, effects: Iterable[Effect]) -> list[Any]:
        self.last_effects = plain(effects)
        self.all += [effect for effect in self.last_effects if isinstance(effect, Deliver | DeliverLost)]
        return self.last_effects
