"""Lineage tables of an honest domain, made by the real engine, as lists of rows that a test may tamper with."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from engine_world import BATCH_MS, DOMAIN, KAFKA_PARTITIONS, configs
from pyspark.sql import SparkSession
from reference import (
    Change,
    Event,
    GreedySubscriber,
    Item,
    change,
    feed,
    reference_deliveries,
    reference_group,
    reference_stamps,
)

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Renewed,
    Repeated,
    Retire,
    Retired,
    Skipped,
    Subscribe,
    Unsubscribe,
    encode_request,
)
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.sinks.schema import TABLES

TableRow = dict[str, Any]
ANEW = Change("job", frozenset())
"""Here the Kafka topic that all events are in is retired, and another one made under its name: offsets begin anew."""
LOST = {1: 2}
"""By partition, how many events a topic that is retired had beyond those that were stamped."""
_SLICES = 3
"""Of each batch."""
_START = datetime(2026, 11, 1, 12, tzinfo=UTC)


@dataclass
class World:
    """Rows of every table, by the table's name."""

    tables: dict[str, list[TableRow]]

    def __getitem__(self, table: str) -> list[TableRow]:
        return self.tables[table]

    def find(self, table: str, **values: object) -> TableRow:
        """The first row with these values."""
        return next(row for row in self[table] if all(row[name] == value for name, value in values.items()))

    def register(self, spark: SparkSession) -> None:
        """Makes the tables views of a session."""
        for name, table in TABLES.items():
            ddl = ", ".join(f"`{c.name}` {c.type}{'' if c.nullable else ' NOT NULL'}" for c in table.columns)
            rows = [tuple(row[column] for column in table.names) for row in self[name]]
            spark.createDataFrame(rows, ddl).createOrReplaceTempView(name)


def history(seed: int, *, length: int = 240) -> list[Item]:
    """Events of six topics among changes of five subscriptions; a change to the same set is a restart.

    In the middle the Kafka topic that they are in is made anew.
    """
    rng = random.Random(seed)
    held = {name: frozenset(rng.sample("abcdef", 3)) for name in "rstuv"}
    items: list[Item] = [Change(name, topics) for name, topics in held.items()]
    while len(items) < length:
        name = rng.choice("rstuv")
        if len(items) >= length // 2 and ANEW not in items:
            items.append(ANEW)
        if rng.random() < 0.04:
            held[name] = frozenset(rng.sample("abcdef", rng.randint(2, 4)))
            items.append(Change(name, held[name]))
        elif rng.random() < 0.02:
            items.append(Change(name, held[name]))
        elif rng.random() < 0.01:
            items.append(change(name))
        items.append(Event(rng.choice("abcdef")))
    return items


def honest_world(items: Sequence[Item], *, m: int = 1, seed: int = 0, batch_size: int = 20) -> World:
    """What the lineage job would have written of this history; with m = 2 subscribers deliver as they may."""
    requests = _Requests()
    batches = [
        _rows(requests, items, range(at, min(at + batch_size, len(items)))) for at in range(0, len(items), batch_size)
    ]
    state, effects = initial_state(configs(m=m)[0]), []
    for number, rows in enumerate(batches, 1):
        state, done = step(state, Batch.of(BATCH_MS, rows, cut=number), {})
        effects.append(done)
    answers = [answer for effect in effects for answer in effect.answers]
    stamped = [batch for effect in effects for batch in effect.stamps]
    events = [row for batch in stamped for row in _events(batch)]
    tables = {
        "cuts": list(_cuts(batches)),
        "events": events,
        "batches": [_batch(batch) for batch in stamped],
        "subscriptions": [_subscription(answer, m, offset) for offset, answer in enumerate(answers)],
        "sequencing_groups": list(_groups(items, m)),
        "deliveries": list(_deliveries(items, m, random.Random(seed), events, requests.processes)),
    }
    return World({name: [{"domain": DOMAIN} | row for row in rows] for name, rows in tables.items()})


def _cuts(batches: Iterable[Sequence[Row]]) -> Iterator[TableRow]:
    begins: dict[Source, int] = {}
    for number, rows in enumerate(batches, 1):
        taken = []
        placed = [(row.slice, Source(row.kafka_topic, row.topic_id, row.partition)) for row in rows]
        for (slice_, source), count in sorted(Counter(placed).items()):
            begin = begins.get(source, 0)
            begins[source] = begin + count
            taken.append((slice_, *source, begin, begins[source]))
        yield {
            "cut": number,
            "incarnation": 1,
            "slices": _SLICES,
            "taken": taken,
            "topic_order": [],
            "is_key": number % 3 == 1,
            "cut_time": _at(10 * number),
            "cuts_offset": number - 1,
        }


def _at(ms: float) -> datetime:
    return _START + timedelta(milliseconds=ms)


@dataclass
class _Requests:
    """Control values of changes, and by id the (position, generation, nonce) of each."""

    processes: dict[str, list[tuple[int, int, str]]] = field(default_factory=dict)
    held: dict[str, frozenset[str]] = field(default_factory=dict)

    def value(self, g: int, change: Change) -> bytes:
        """The request; another process asks where the set is the same as before, or nothing was held."""
        former = self.processes.setdefault(change.id, [(0, 0, f"{change.id}-0")])
        _, generation, nonce = former[-1]
        if change.topics == self.held.get(change.id, frozenset()) or not self.held.get(change.id):
            nonce = f"{change.id}-{generation + 1}"
        if change.topics or self.held.get(change.id):
            former.append((g, generation + 1, nonce))
        self.held[change.id] = change.topics
        who = {"id": change.id, "generation": generation + 1, "nonce": nonce}
        if not change.topics:
            return encode_request(Unsubscribe(**who))  # type: ignore[arg-type]
        return encode_request(Subscribe(**who, topics=tuple(sorted(change.topics)), lease_s=0, stamps_ends={}))  # type: ignore[arg-type]


def _rows(requests: _Requests, items: Sequence[Item], places: range) -> list[Row]:
    rows = []
    for at in places:
        item, slice_ = items[at], _SLICES * (at - places[0]) // len(places)
        topic_id, events = _present_topic(items[:at])
        if isinstance(item, Event):
            place = ("all", events % KAFKA_PARTITIONS, events // KAFKA_PARTITIONS)
            rows.append(Row(*place, at, item.topic, at, slice=slice_, topic_id=topic_id))
        else:
            assert isinstance(item, Change)
            offset = sum(isinstance(before, Change) for before in items[:at])
            value = _retire(topic_id, events) if item == ANEW else requests.value(at + 1, item)
            control = f"{DOMAIN}.control"
            rows.append(Row(control, 0, offset, at, control=value, slice=slice_, topic_id=f"id-{control}"))
    return rows


def _present_topic(items: Sequence[Item]) -> tuple[str, int]:
    """Kafka's id of the topic that events are in behind these items, and how many it has."""
    began = max((at for at, item in enumerate(items, 1) if item == ANEW), default=0)
    return f"id-all-{items.count(ANEW)}", sum(isinstance(item, Event) for item in items[began:])


def _retire(topic_id: str, events: int) -> bytes:
    seen = {
        partition: len(range(partition, events, KAFKA_PARTITIONS)) + LOST.get(partition, 0)
        for partition in range(KAFKA_PARTITIONS)
    }
    return encode_request(Retire(id=ANEW.id, nonce="n", topic="all", topic_id=topic_id, seen=seen))


def _events(batch: StampedBatch) -> Iterator[TableRow]:
    rows = batch.rows
    for at in range(len(rows)):
        g = int(rows.g[at])
        kafka_topic, topic_id, partition = batch.sources[int(rows.source[at])]
        yield {
            "topic": batch.names[int(rows.topic[at])],
            "kafka_topic": kafka_topic,
            "topic_id": topic_id,
            "partition": partition,
            "offset": int(rows.offset[at]),
            "n": int(rows.n[at]),
            "g": g,
            "batch": batch.batch,
            "incarnation": batch.incarnation,
            "event_time": _at(10 * g),
            "batch_time": _at(10 * batch.g + 5),
            "stamped_time": _at(10 * batch.g + 40),
            "crc32": int(rows.crc[at]),
            "read_crc32": int(rows.crc[at]),
            "keyframe": bool(rows.keyframe[at]),
            "entries": {batch.names[topic]: n for topic, n in rows.entries(at).items()},
            "payload": None,
            "stamps_partition": batch.partition,
            "stamps_offset": batch.batch,
        }


def _batch(batch: StampedBatch) -> TableRow:
    return {
        "stamps_partition": batch.partition,
        "partitions": batch.partitions,
        "incarnation": batch.incarnation,
        "batch": batch.batch,
        "batch_time": _at(10 * batch.g + 5),
        "cut": batch.cut,
        "stamped_time": _at(10 * batch.g + 40),
        "min_subscriptions": batch.min_subscriptions,
        "g": batch.g,
        "control_g": batch.control_g,
        "events": len(batch.rows),
        "next_offsets": [(*source, offset) for source, offset in sorted(batch.next_offsets.items())],
        "previous_digest": batch.previous_digest,
        "digest": batch.digest,
        "stamps_offset": batch.batch,
        "next_stamps_offset": batch.batch + 1,
    }


def _subscription(answer: Answer, m: int, grants_offset: int) -> TableRow:
    grant = answer if isinstance(answer, Grant) else None
    retired = answer if isinstance(answer, Retired) else None
    assert not isinstance(answer, Skipped)
    kinds = {Grant: "granted", Ended: "ended", Renewed: "renewed", Repeated: "repeated", Retired: "retired"}
    return {
        "subscriber": answer.id,
        "generation": None if isinstance(answer, Retired) else answer.generation,
        "nonce": answer.nonce,
        "kind": kinds.get(type(answer), "rejected"),
        "reason": getattr(answer, "reason", None),
        "g": answer.g,
        "control_offset": answer.offset,
        "topics": list(grant.topics) if grant else None,
        "former": list(grant.former) if grant else None,
        "continuous": grant.continuous if grant else None,
        "clock": dict(answer.clock) if isinstance(answer, Grant | Ended) else None,
        "lease_s": grant.lease_s if grant else None,
        "min_subscriptions": m if grant else None,
        "kafka_topic": retired.topic if retired else None,
        "topic_id": retired.topic_id if retired else None,
        "lost": [(partition, *offsets) for partition, offsets in retired.lost.items()] if retired else None,
        "batch": answer.batch,
        "incarnation": answer.incarnation,
        "answered_time": _at(10 * answer.g + 40),
        "grants_offset": grants_offset,
    }


def _groups(items: Sequence[Item], m: int) -> Iterator[TableRow]:
    began: dict[tuple[str, str], int] = {}
    for p in range(len(items) + 1):
        if p and not isinstance(items[p - 1], Change):
            continue
        now = {(topic, member) for topic in "abcdef" for member in reference_group(items, p, topic, m)}
        for topic, member in sorted(began.keys() - now):
            yield {"topic": topic, "member": member, "valid_from_g": began.pop((topic, member)), "valid_to_g": p}
        for pair in now - began.keys():
            began[pair] = p
    for (topic, member), p in began.items():
        yield {"topic": topic, "member": member, "valid_from_g": p, "valid_to_g": None}


def _deliveries(
    items: Sequence[Item],
    m: int,
    rng: random.Random,
    events: Sequence[TableRow],
    processes: Mapping[str, Sequence[tuple[int, int, str]]],
) -> Iterator[TableRow]:
    by_g = {event["g"]: event for event in events}
    for name, changes in processes.items():
        intervals = [
            (p, item.topics)
            for p, item in enumerate(items, 1)
            if item == Change(name, getattr(item, "topics", frozenset()))
        ]
        if m == 1:
            order = reference_deliveries(items, intervals)
        else:
            stamps = reference_stamps(items, m, opening=True)
            order = feed(GreedySubscriber(items, intervals), stamps, rng)
        starts = [change for before, change in pairwise(changes) if change[2] != before[2]]
        for number, (start, first_generation, nonce) in enumerate(starts):
            end = starts[number + 1][0] if number + 1 < len(starts) else len(items) + 1
            own = [g for g in order if start < g <= end]
            before = [g for g in order if g <= start]
            again = before[-rng.randint(0, 3) :] if m == 1 and by_g and before and rng.random() < 0.7 else []
            again = [g for g in again if number and g > starts[number - 1][0]]
            for index, g in enumerate([*again, *own], 1):
                generation = max([gen for p, gen, who in changes if p < g and who == nonce], default=first_generation)
                yield _delivery(name, generation, nonce, index, by_g[g], "redelivered" if g in again else None)


def _delivery(name: str, generation: int, nonce: str, index: int, event: TableRow, tag: str | None) -> TableRow:
    same = {key: event[key] for key in ("topic", "kafka_topic", "topic_id", "partition", "offset", "n", "g")}
    delivered = event["stamped_time"] + timedelta(milliseconds=5 + index % 7)
    return same | {
        "subscriber": name,
        "generation": generation,
        "nonce": nonce,
        "delivery_index": index,
        "tag": tag,
        "delivered_time": delivered,
        "receipt_time": delivered + timedelta(milliseconds=20),
        "receipts_partition": 0,
        "receipts_offset": index // 10,
    }
