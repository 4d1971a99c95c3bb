"""Builds engine input from a plain list π, and reads the engine's output back into the reference's terms."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from reference import Change, Event, Item, Loss, ReferenceStamp

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, EngineConfig, initial_state, step
from totalorder.sequencer.state import State
from totalorder.sequencer.wire.control import Skip, Subscribe, Unsubscribe, encode_request
from totalorder.sequencer.wire.stamps import StampedBatch

DOMAIN = "d"
BATCH_MS = 10**6
"""Every batch's time."""
KAFKA_PARTITIONS = 3


@dataclass
class Requests:
    """Turns changes into control values, keeping the generations as a well-behaved subscriber would."""

    generations: dict[str, int] = field(default_factory=dict)
    live: set[str] = field(default_factory=set)

    def value(self, change: Change) -> bytes:
        """The control record of a change; a change to nothing of an id that has nothing is refused, and takes a g."""
        generation = self.generations.get(change.id, 0) + 1
        if change.topics:
            self.generations[change.id] = generation
            self.live.add(change.id)
            topics = tuple(sorted(change.topics))
            request = Subscribe(
                id=change.id, generation=generation, nonce="n", topics=topics, lease_s=0, stamps_ends={}
            )
            return encode_request(request)
        if change.id in self.live:
            self.generations[change.id] = generation
            self.live.discard(change.id)
        return encode_request(Unsubscribe(id=change.id, generation=generation, nonce="n"))


def rows_of(items: Iterable[Item], clocks: random.Random | None = None, *, topic_id: str = "") -> list[Row]:
    """Rows whose π is exactly the given list: one Kafka topic `all` (keyed), timestamps counting up.

    With `clocks` each row has a slice of its own, and a timestamp that says nothing. `topic_id` is that of the Kafka
    topic, which losses need.
    """
    requests = Requests()
    offsets: dict[object, int] = {}
    rows = []
    for at, item in enumerate(items, 1):
        if isinstance(item, Event):
            partition = at % KAFKA_PARTITIONS
            offset = offsets[partition] = offsets.get(partition, -1) + 1
            rows.append(Row("all", partition, offset, at, item.topic, at, topic_id=topic_id))
        else:
            offset = offsets["control"] = offsets.get("control", -1) + 1
            value = _skip(item, offsets, topic_id) if isinstance(item, Loss) else requests.value(item)
            rows.append(Row(f"{DOMAIN}.control", 0, offset, at, control=value))
    if clocks is None:
        return rows
    return [row._replace(slice=at, timestamp_ms=clocks.randrange(2 * BATCH_MS)) for at, row in enumerate(rows)]


def _skip(loss: Loss, offsets: dict[object, int], topic_id: str) -> bytes:
    """What the job says of a loss; the partition goes on behind it."""
    begin = offsets.get(loss.partition, -1) + 1
    offsets[loss.partition] = begin + loss.count - 1
    return encode_request(
        Skip(
            id="job",
            nonce="n",
            topic="all",
            topic_id=topic_id,
            partition=loss.partition,
            begin=begin,
            end=begin + loss.count,
        )
    )


def configs(*, shards: int = 1, partitions: int = 4, m: int = 1, keyframe_every: int = 3) -> list[EngineConfig]:
    """One config for each shard of a small keyed domain."""
    return [
        EngineConfig(
            domain=DOMAIN,
            identity="test",
            stamps_partitions=partitions,
            shards=shards,
            shard=shard,
            min_subscriptions=m,
            topic_by="key",
            keyframe_every=keyframe_every,
        )
        for shard in range(shards)
    ]


def run(batches: Sequence[Sequence[Row]], shard_configs: Sequence[EngineConfig]) -> tuple[list[State], list[Effects]]:
    """Runs every shard over the batches; returns the last states and all effects, batch by batch, shard by shard."""
    states = [initial_state(config) for config in shard_configs]
    effects = []
    for rows in batches:
        for shard in range(len(states)):
            states[shard], done = step(states[shard], Batch.of(BATCH_MS, rows), {})
            effects.append(done)
    return states, effects


def full_stamps(stamped: Iterable[StampedBatch], *, undelta: bool = True) -> list[ReferenceStamp]:
    """Every stamp in π's order with all entries: undoes the delta coding by the stamps of the topic before.

    Entries that a keyframe does not repeat have left the group.
    """
    names: dict[int, str] = {}
    held: dict[int, dict[int, int]] = {}
    found = []
    for batch in stamped:
        names.update(batch.names)
        for row in range(len(batch.rows)):
            topic = int(batch.rows.topic[row])
            before: Mapping[int, int] = {} if batch.rows.keyframe[row] or not undelta else held.get(topic, {})
            held[topic] = {**before, **batch.rows.entries(row)}
            found.append((int(batch.rows.g[row]), topic, int(batch.rows.n[row]), dict(held[topic])))
    return [
        ReferenceStamp(g=g, topic=names[t], n=n, entries={names[x]: k for x, k in sorted(entries.items())})
        for g, t, n, entries in sorted(found, key=lambda stamp: stamp[0])
    ]


def same_rows(one: StampedBatch, other: StampedBatch) -> bool:
    """Whether two batches have equal rows, column for column."""
    return all(
        np.array_equal(getattr(one.rows, name), getattr(other.rows, name)) for name in one.rows.__dataclass_fields__
    )
