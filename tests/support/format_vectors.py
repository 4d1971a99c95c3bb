"""Examples of all that goes over Kafka or lasts: made from one small history, and written to tests/vectors by `main`.

    make vectors            # after a change of a format: read the difference, then see docs/formats.md

Each file holds the examples of one format. An example has a name, the bytes as hex and what they say as JSON, in the
form in which tests/support/formats_reader.py reads them. What is in a zstd frame is there unpacked too: another release
of zstd packs otherwise.

tests/fixtures/written holds what former commits wrote, in the same form, and a whole domain (kept_domain.py). Files
there are added and never changed: they are as the logs and checkpoints that users have (`--keep NAME` adds a folder).
"""

import argparse
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from deliveries import Deliver
from delivery_world import one_event, plain
from formats_reader import unframed

from totalorder.sequencer import snapshot, state
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.snapshot import SnapshotMark, encode_mark, encode_parts
from totalorder.sequencer.state import EngineConfig, State, encode_cold, encode_hot
from totalorder.sequencer.wire import codec, control, cuts, position, receipts
from totalorder.sequencer.wire.codec import WireRecord, decode_part, encode_stamps
from totalorder.sequencer.wire.control import (
    Answer,
    Claim,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Repeated,
    Request,
    Retire,
    Retired,
    Skip,
    Skipped,
    Subscribe,
    Unsubscribe,
    answer_key,
    encode_answer,
    encode_claim,
    encode_request,
)
from totalorder.sequencer.wire.cuts import Cut, CutEncoder
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import Progress, SavedPosition, StampsMark, encode_saved
from totalorder.sequencer.wire.receipts import Receipts, encode_receipts
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source, StampedBatch, StampRows
from totalorder.streaming import record
from totalorder.streaming.cut import offset
from totalorder.streaming.cut.offset import BatchEnd, Looks
from totalorder.streaming.record import DomainRecord, EventTopic
from totalorder.subscriber.delivery.effects import Effect
from totalorder.subscriber.delivery.machine import Delivery

ROOT = Path(__file__).resolve().parents[1]
VECTORS = ROOT / "vectors"
KEPT = ROOT / "fixtures" / "written"
VERSIONS = {
    "control": control.VERSION,
    "grants": control.ANSWER_VERSION,
    "stamps": codec.VERSION,
    "cuts": cuts.VERSION,
    "positions": position.VERSION,
    "receipts": receipts.VERSION,
    "state": state.VERSION,
    "snapshots": snapshot.VERSION,
    "domain": record.VERSION,
    "ends": offset.VERSION,
}
READ_TOO = {"receipts": {2}}
"""Versions that are not written any more, and read."""
Vector = dict[str, Any]

DOMAIN, PARTITIONS, SHARDS = "shop", 2, 2
IDENTITY = "0123456789abcdef0123456789abcdef"
ORDERS, PAYMENTS = Source("orders", "b3JkZXJzb3JkZXJzb3JkZQ", 0), Source("payments", "cGF5bWVudHNwYXltZW50cw", 0)
TRUCKS, TRUCKS_ANEW = Source("trucks", "dHJ1Y2tzdHJ1Y2tzdHJ1Yw", 0), Source("trucks", "VFJVQ0tTVFJVQ0tTVFJVQw", 0)
STARTS = {PAYMENTS: 7}
"""The domain begins in the midst of payments."""
ORDERS_LOST: dict[str, Any] = {"topic": ORDERS.topic, "topic_id": ORDERS.topic_id, "partition": 0}
LEASE_S = 60
BEGAN_MS = 1_790_000_000_000
BILLING = "billing"


# --- the history ------------------------------------------------------------------------------------------------------


def event(source: Source, offset: int, value: str | None, *, slice_: int = 0, at_ms: int = BEGAN_MS) -> Row:
    crc = 0 if value is None else zlib.crc32(value.encode())
    return Row(source.topic, source.partition, offset, at_ms, source.topic, crc, None, slice_, source.topic_id)


def asked(at: int, value: Request | bytes, *, slice_: int = 0) -> Row:
    data = value if isinstance(value, bytes) else encode_request(value)
    return Row(f"{DOMAIN}.control", 0, at, BEGAN_MS, "", 0, data, slice_, "Y29udHJvbGNvbnRyb2xjbw")


def subscribe(id_: str, topics: Sequence[str], generation: int = 1, ends: Mapping[int, int] | None = None) -> Subscribe:
    return Subscribe(
        id=id_,
        generation=generation,
        nonce=f"{id_}-1",
        topics=tuple(topics),
        lease_s=LEASE_S if id_ == BILLING else 0,
        stamps_ends=ends or {0: 0, 1: 0},
    )


FIRST_CLAIM = Claim(incarnation=1, owner=IDENTITY)
BATCHES: tuple[tuple[int, tuple[Row, ...]], ...] = (
    (
        BEGAN_MS,
        (
            asked(0, encode_claim(FIRST_CLAIM)),
            asked(1, subscribe(BILLING, ("orders", "payments"))),
            asked(2, subscribe("audit", ("orders", "payments", "trucks"))),
            event(ORDERS, 0, "one apple", slice_=1),
            event(ORDERS, 2, None, slice_=1, at_ms=BEGAN_MS + 5),
            event(PAYMENTS, 7, "50", slice_=2),
        ),
    ),
    (
        BEGAN_MS + 1_000,
        (
            event(TRUCKS, 0, "to Rome"),
            event(PAYMENTS, 8, "70"),
            asked(3, Renew(id=BILLING, generation=1, nonce="billing-1")),
            asked(4, b'{"kind":"subscribe"}'),
            asked(5, subscribe("audit", ("orders", "payments", "trucks"))),
            event(ORDERS, 3, "two apples", slice_=1),
            event(TRUCKS, 1, "to Bari", slice_=1),
        ),
    ),
    (
        BEGAN_MS + 2_000,
        (
            asked(6, subscribe(BILLING, ("orders", "trucks"), 2, {0: 2, 1: 2})),
            event(PAYMENTS, 9, "late"),
            event(ORDERS, 4, "three apples", slice_=1),
            event(TRUCKS, 2, "to Pisa", slice_=1),
            asked(
                7, Retire(id="sequencer", nonce="s-1", topic="trucks", topic_id=TRUCKS.topic_id, seen={0: 5}), slice_=2
            ),
        ),
    ),
    (
        BEGAN_MS + 1_000_000,
        (
            event(TRUCKS_ANEW, 0, "to Lodi"),
            asked(8, Unsubscribe(id="audit", generation=2, nonce="audit-1")),
            event(ORDERS, 5, "a pear", slice_=1),
        ),
    ),
)
"""Time and records of each batch. Behind the last one the lease of `billing` has run out."""


@dataclass
class History:
    """What the engine made of the first so many batches."""

    states: list[State]
    effects: list[list[Effects]] = field(default_factory=list)
    """By batch and shard."""

    @classmethod
    def of(cls, batches: int) -> "History":
        config = EngineConfig(
            domain=DOMAIN, identity=IDENTITY, stamps_partitions=PARTITIONS, shards=SHARDS, keyframe_every=4
        )
        made = cls([initial_state(replace(config, shard=shard)) for shard in range(SHARDS)])
        for number in range(batches):
            made.go_on(number)
        return made

    def go_on(self, number: int) -> None:
        done = [step(one, batch_of(number), STARTS) for one in self.states]
        self.states = [after for after, _ in done]
        self.effects.append([effects for _, effects in done])

    @property
    def answers(self) -> list[Answer]:
        return [answer for batch in self.effects for answer in batch[0].answers]

    @property
    def stamps(self) -> list[StampedBatch]:
        return [one for batch in self.effects for shard in batch for one in shard.stamps]


def batch_of(number: int) -> Batch:
    time_ms, rows = BATCHES[number]
    return Batch.of(time_ms, rows, cut=number + 1, topic_order=("payments",))


def deliver(
    machine: Delivery, answers: Iterable[Answer], batches: Iterable[StampedBatch], rows: Iterable[Row]
) -> list[list[int | str]]:
    """[topic, n, g, offset] of what a machine delivers once it has all that."""
    effects: list[Effect] = list(machine.start())
    for answer in answers:
        effects += machine.answer(answer)
    for at, one in enumerate(batches):
        effects += machine.stamped(one, offset=at, next_offset=at + 1)
    for row in rows:
        if row.control is None:
            source = Source(row.kafka_topic, row.topic_id, row.partition)
            effects += one_event(machine, source=source, offset=row.offset, topic=row.topic, crc=row.crc)
    return [[each.topic, each.n, each.g, each.offset] for each in plain(effects) if isinstance(each, Deliver)]


def saved_after(batches: int, *, acknowledged: int) -> SavedPosition:
    """What `billing` saves when it has read so many batches, and acknowledged so many events."""
    history = History.of(batches)
    machine = Delivery(id=BILLING, nonce="billing-1", domain=DOMAIN)
    rows = [row for _, batch in BATCHES[:batches] for row in batch]
    delivered = deliver(machine, history.answers, history.stamps, rows)
    machine.acknowledge(acknowledged)
    generation = max(answer.generation for answer in history.answers if isinstance(answer, Grant | Ended))
    through = max((int(g) for _, _, g, _ in delivered), default=0)
    return SavedPosition(
        id=BILLING,
        generation=generation,
        nonce="billing-1",
        delivered_through=through,
        position=machine.position(),
    )


# --- what the bytes say -----------------------------------------------------------------------------------------------


def stamps_content(batch: StampedBatch) -> Vector:
    rows = batch.rows
    fields = ("partition", "partitions", "incarnation", "batch", "time_ms", "cut", "min_subscriptions", "g")
    plain = ("topic", "n", "g", "source", "offset", "crc", "keyframe")
    columns = zip(*(getattr(rows, name).tolist() for name in plain), strict=True)
    return {
        **{name: getattr(batch, name) for name in (*fields, "control_g", "domain", "previous_digest", "digest")},
        "sources": [[*source, end] for source, end in zip(batch.sources, batch.ends, strict=True)],
        "names": {str(topic): name for topic, name in sorted(batch.names.items())},
        "rows": [
            dict(zip(plain, row, strict=True)) | {"entries": [list(entry) for entry in rows.entries(at).items()]}
            for at, row in enumerate(columns)
        ],
    }


def stamps_of(content: Vector) -> StampedBatch:
    """Undoes `stamps_content`."""
    rows = content["rows"]
    entries = [entry for row in rows for entry in row["entries"]]

    def ints(values: Iterable[int]) -> Any:
        return np.array(list(values), dtype=np.int64)

    return StampedBatch(
        **{name: content[name] for name in codec._SCALARS},
        sources=tuple(Source(*source[:3]) for source in content["sources"]),
        ends=tuple(source[3] for source in content["sources"]),
        names={int(topic): name for topic, name in content["names"].items()},
        rows=StampRows(
            **{name: ints(row[name] for row in rows) for name in ("topic", "n", "g", "source", "offset", "crc")},
            keyframe=np.array([row["keyframe"] for row in rows], dtype=np.bool_),
            entry_start=ints(np.cumsum([0, *(len(row["entries"]) for row in rows)])),
            entry_topic=ints(topic for topic, _ in entries),
            entry_n=ints(n for _, n in entries),
        ),
    )


def cut_content(cut: Cut) -> Vector:
    places = {source: place for place, source in enumerate(cut.sources)}
    return {
        **{name: getattr(cut, name) for name in ("domain", "incarnation", "cut")},
        "sources": [list(source) for source in cut.sources],
        "topic_order": list(cut.topic_order),
        "begins": cut.begins.tolist(),
        "ends": cut.ends.tolist(),
        "slices": len(cut.slice_start) - 1,
        "parts": [[part.slice, places[part.source], part.begin, part.end] for part in cut.parts],
        "end_check": cut.end_check,
    }


def cut_of(content: Vector) -> Cut:
    """Undoes `cut_content`."""
    looks: list[list[tuple[int, int]]] = [[] for _ in range(content["slices"])]
    for slice_, place, begin, end in content["parts"]:
        looks[slice_].append((place, end - begin))
    return Cut.of(
        **{name: content[name] for name in ("domain", "incarnation", "cut", "begins", "ends", "topic_order")},
        sources=[Source(*source) for source in content["sources"]],
        looks=looks[:-1],
    )


def receipts_content(found: Receipts) -> Vector:
    plain = ("generation", "sequence", "offset", "n", "g", "redelivered", "lost", "delivered_ms")
    rows = []
    for at in range(len(found)):
        names = {"topic": found.topics[found.topic[at]], "source": list(found.sources[found.source[at]])}
        rows.append({name: getattr(found, name)[at].item() for name in plain} | names)
    return {**{name: getattr(found, name) for name in ("domain", "id", "nonce")}, "rows": rows}


def receipts_of(content: Vector) -> Receipts:
    """Undoes `receipts_content`."""
    rows = content["rows"]
    topics = tuple(dict.fromkeys(row["topic"] for row in rows))
    sources = tuple(dict.fromkeys(Source(*row["source"]) for row in rows))
    plain = ("generation", "sequence", "offset", "n", "g", "delivered_ms")
    columns: dict[str, Any] = {name: np.array([row[name] for row in rows], dtype=np.int64) for name in plain}
    return Receipts(
        **{name: content[name] for name in ("domain", "id", "nonce")},
        topics=topics,
        sources=sources,
        topic=np.array([topics.index(row["topic"]) for row in rows], dtype=np.int64),
        source=np.array([sources.index(Source(*row["source"])) for row in rows], dtype=np.int64),
        redelivered=np.array([row["redelivered"] for row in rows], dtype=np.bool_),
        lost=np.array([row["lost"] for row in rows], dtype=np.bool_),
        **columns,
    )


# --- the examples -----------------------------------------------------------------------------------------------------


def vector(name: str, value: bytes, content: Any, **more: Any) -> Vector:
    return {"name": name, **more, "value": value.hex(), "content": content}


def packed(name: str, wire: WireRecord, content: Any, **more: Any) -> Vector:
    """Of a record whose value is a zstd frame."""
    headers = {key: value.decode() for key, value in wire.headers}
    unpacked = {"unpacked": unframed(wire.value).hex()}
    return {"name": name, **more, "headers": headers, "value": wire.value.hex(), **unpacked, "content": content}


def control_vectors() -> list[Vector]:
    requests: dict[str, Request] = {
        "a subscription": subscribe(BILLING, ("orders", "payments"), ends={0: 0, 1: 12}),
        "names of any kind": Subscribe(
            id="me@here:1", generation=3, nonce="n.1", topics=('"\\\n\x7f', "été", "😀"), lease_s=0, stamps_ends={}
        ),
        "an unsubscription": Unsubscribe(id=BILLING, generation=2, nonce="billing-1"),
        "a renewal": Renew(id=BILLING, generation=1, nonce="billing-1"),
        "a Kafka topic is retired": Retire(
            id="sequencer", nonce="s-1", topic="trucks", topic_id=TRUCKS.topic_id, seen={0: 5}
        ),
        "what was lost is passed over": Skip(id="sequencer", nonce="s-2", **ORDERS_LOST, begin=6, end=2**62 - 1),
    }
    found = [vector(name, encode_request(one), json.loads(encode_request(one))) for name, one in requests.items()]
    claim = encode_claim(FIRST_CLAIM)
    return [*found, vector("a claim", claim, json.loads(claim))]


def grants_vectors() -> list[Vector]:
    answers = History.of(len(BATCHES)).answers
    kinds = {Grant, Ended, Renewed, Repeated, Retired, Rejection}
    assert kinds == {type(answer) for answer in answers}
    odd = replace(
        next(answer for answer in answers if isinstance(answer, Grant)),
        topics=('"\\\n\x7f', "été", "😀"),
        former=(),
        clock={'"\\\n\x7f': 0, "été": 2**53 + 1, "😀": 2**63 - 1},
        ids={'"\\\n\x7f': 999_999, "été": 1, "😀": 0},
    )
    named = [(f"g {answer.g} of the history", answer) for answer in answers]
    where: dict[str, Any] = {"topic": ORDERS.topic, "topic_id": ORDERS.topic_id, "batch": 5, "incarnation": 1}
    lost = Skipped(id="sequencer", nonce="s-2", g=23, offset=9, lost={0: (6, 2**62 - 1)}, **where)
    again = replace(lost, offset=10, lost={})
    more: list[tuple[str, Answer]] = [("names of any kind", odd), ("what was lost", lost), ("told before", again)]
    return [
        vector(name, encode_answer(answer), json.loads(encode_answer(answer)), key=answer_key(answer).decode())
        for name, answer in [*named, *more]
    ]


def odd_stamps() -> StampedBatch:
    """Names of any kind, numbers of any size, and differences of either sign."""
    first, second = Source("a", "id-2", 2**31 - 1), Source("a", "id-1", 0)
    content = {
        "domain": "d.e-f",
        "partition": 1_023,
        "partitions": 1_024,
        "incarnation": 2**62 - 1,
        "batch": 2**40,
        "time_ms": 0,
        "cut": 2**41,
        "min_subscriptions": 2,
        "g": 2**62 - 1,
        "control_g": 0,
        "previous_digest": "f" * 32,
        "digest": "",
        "sources": [[*first, 2**62 - 1], [*second, 0]],
        "names": {"0": '"\\\n\x7f', "7": "été", "999999": "😀"},
        "rows": [
            _row(0, 2**61, 2**60, 0, 2**61, 0xFFFFFFFF, False, [[7, 5], [999_999, 2**62 - 1]]),
            _row(0, 2**61 + 1, 2**60 + 9, 0, 0, 0x7FFFFFFF, True, [[999_999, 2**62 - 1]]),
            _row(7, 6, 1, 1, 2**62 - 1, 0, True, []),
            _row(7, 7, 2**62 - 1, 1, 3, 1, False, [[0, 1]]),
        ],
    }
    return stamps_of(content).sealed()


def _row(
    topic: int, n: int, g: int, source: int, offset: int, crc: int, keyframe: bool, entries: list[list[int]]
) -> Vector:
    names = ("topic", "n", "g", "source", "offset", "crc", "keyframe", "entries")
    return dict(zip(names, (topic, n, g, source, offset, crc, keyframe, entries), strict=True))


def stamps_vectors() -> list[Vector]:
    found = []
    for batch in [*History.of(len(BATCHES)).stamps, odd_stamps()]:
        (wire,) = encode_stamps(batch)
        name = f"batch {batch.batch}, partition {batch.partition}" if batch.domain == DOMAIN else "names of any kind"
        found.append(packed(name, wire, stamps_content(batch)))
    parts = encode_stamps(odd_stamps(), max_part_bytes=1)
    assert len(parts) == 4
    return found + [
        packed(f"part {at} of the same", wire, stamps_content(decode_part(wire.value))) for at, wire in enumerate(parts)
    ]


def cuts_made() -> list[Cut]:
    begun = Cut.of(
        domain=DOMAIN,
        incarnation=1,
        cut=1,
        sources=(ORDERS, PAYMENTS),
        begins=(0, 7),
        ends=(3, 8),
        looks=[[], [(0, 3)]],
        topic_order=("payments",),
    )
    second = replace(
        begun, cut=2, begins=begun.ends, slice_start=np.array([0, 1]), place=np.array([1]), count=np.array([2**40])
    )
    joined = Cut.of(
        domain=DOMAIN,
        incarnation=1,
        cut=3,
        sources=(ORDERS, PAYMENTS, TRUCKS, replace_partition(TRUCKS, 2**31 - 1)),
        begins=(*second.ends.tolist(), 0, 2**61),
        ends=(4, int(second.ends[1]) + 1, 2, 2**61 + 300),
        looks=[[(0, 1), (3, 200)], [(2, 1)]],
        topic_order=("payments", '"\\\n\x7f', "été"),
    )
    return [begun, second, joined]


def replace_partition(source: Source, partition: int) -> Source:
    return source._replace(partition=partition)


def cuts_vectors() -> list[Vector]:
    encoder, names = (
        CutEncoder(),
        ("a key cut", "one that goes on from it", "a source and an order of topics have come"),
    )
    made = zip(names, cuts_made(), strict=True)
    return [packed(name, encoder.encode(cut), cut_content(cut)) for name, cut in made]


def positions_vectors() -> list[Vector]:
    at_grant = saved_after(1, acknowledged=0)
    found = {
        "nothing is acknowledged": at_grant,
        "a change lies behind": saved_after(3, acknowledged=3),
        "behind the change": saved_after(3, acknowledged=99),
        "names of any kind": replace(at_grant, position=_odd_position(at_grant.position)),
        "a database follows": replace(saved_after(3, acknowledged=99), stored=True),
        "a database is to begin anew": replace(at_grant, stored=True, anew=True),
    }
    return [
        vector(name, encode_saved(one), json.loads(encode_saved(one)), key=one.key.decode())
        for name, one in found.items()
    ]


def _odd_position(at: Progress) -> Progress:
    names = {3: "été", 5: "😀"}
    mark = StampsMark(offset=2**62 - 1, batch=2**40)
    return replace(
        at,
        topics=names,
        clock=dict.fromkeys(names, 2**61),
        stamps={stamps_partition(name, at.stamps_partitions): mark for name in names.values()}
        | dict.fromkeys((0, 1), mark),
        topic_by="header:é",
    )


def receipts_vectors() -> list[Vector]:
    def row(generation: int, sequence: int, topic: str, source: Source, *numbers: int, **flags: bool) -> Vector:
        plain = dict(zip(("offset", "n", "g", "delivered_ms"), numbers, strict=True))
        names = {"generation": generation, "sequence": sequence, "redelivered": False, "lost": False, **flags}
        return names | plain | {"topic": topic, "source": list(source)}

    head = {"domain": DOMAIN, "id": BILLING, "nonce": "billing-1"}
    one = {**head, "rows": [row(1, 1, "orders", ORDERS, 0, 1, 3, BEGAN_MS)]}
    several = {
        **head,
        "rows": [
            row(1, 2, "orders", ORDERS, 2, 2, 4, BEGAN_MS + 8, redelivered=True),
            row(1, 3, "payments", PAYMENTS, 7, 1, 5, BEGAN_MS + 9),
            row(2, 9, "orders", ORDERS, 2**62 - 1, 3, 2**62 - 1, BEGAN_MS + 7),
            row(2, 10, "été", TRUCKS, 0, 2**62 - 1, 1, 0),
            row(2, 11, "payments", PAYMENTS, 6, 2, 2, 253_402_300_799_999),
            row(2, 12, "orders", ORDERS, 3, 4, 9, BEGAN_MS, lost=True),
            row(2, 13, "orders", ORDERS, 6, 0, 23, BEGAN_MS, redelivered=True, lost=True),
        ],
    }
    found = []
    for name, content in (("one delivery", one), ("several", several)):
        (wire,) = encode_receipts(receipts_of(content))
        found.append(packed(name, wire, receipts_content(receipts_of(content)), key=BILLING))
    return found


def state_vectors() -> list[Vector]:
    """By shard, the hot and the cold part behind the batch before the last one."""
    found = []
    for shard, one in enumerate(History.of(len(BATCHES) - 1).states):
        for part, data in (("hot", encode_hot(one.hot)), ("cold", encode_cold(one.cold))):
            found.append({"name": f"{part}, shard {shard}", "shard": shard, "part": part, "value": data.hex()})
    return found


def snapshots_vectors() -> list[Vector]:
    """The same states, told in one part each, and the mark behind them."""
    states = History.of(len(BATCHES) - 1).states
    found = []
    for shard, one in enumerate(states):
        (wire,) = encode_parts(one)
        told = packed(f"the state of shard {shard}", wire, None)
        found.append({name: told[name] for name in told if name != "content"})
    mark = SnapshotMark(
        domain=DOMAIN,
        incarnation=1,
        batch=states[0].hot.batch,
        shards=SHARDS,
        cut=states[0].hot.batch,
        ends={Source(f"{DOMAIN}.control", "Y29udHJvbGNvbnRyb2xjbw", 0): 8, ORDERS: 5, PAYMENTS: 10},
        starts=STARTS,
        topic_order=("payments",),
        stamps_begins=(2, 2),
        stamps_ends=(3, 3),
        keys=Signatures(keys=("k" * 32,), domain=DOMAIN).prints,
    )
    busy = replace(mark, stamps_ends=None, keys=(), topic_order=())
    for name, told_mark in (("a mark", mark), ("one of a busy domain", busy)):
        record = encode_mark(told_mark)
        headers = {key: text.decode() for key, text in record.headers}
        found.append(vector(name, record.value, json.loads(record.value), headers=headers))
    return found


def domain_vectors() -> list[Vector]:
    found = DomainRecord(
        identity=IDENTITY,
        incarnation=1,
        fixed={
            "domain": DOMAIN,
            "stamps_partitions": PARTITIONS,
            "shards": SHARDS,
            "min_subscriptions": 1,
            "topic_by": "topic",
            "keyframe_every": 4,
        },
        own_ids={f"{DOMAIN}.control": "Y29udHJvbGNvbnRyb2xjbw"},
        topics=(
            EventTopic(name="orders", topic_id=ORDERS.topic_id),
            EventTopic(name="payments", topic_id=PAYMENTS.topic_id, starts={0: 7}),
            EventTopic(name="trucks", topic_id=TRUCKS.topic_id, state="retired"),
            EventTopic(name="trucks", topic_id=TRUCKS_ANEW.topic_id, state="gone"),
        ),
        orders=((), ("payments",)),
        claim=0,
    )
    before = replace(found, claim=None, topics=(), orders=((),), own_ids={})
    lost = found.losing({ORDERS: (6, 9), PAYMENTS._replace(partition=2): (0, 2**53)})
    named = {"a domain": found, "one that is not claimed": before, "one that has lost something": lost}
    return [vector(name, one.encode().encode(), json.loads(one.encode())) for name, one in named.items()]


def ends_vectors() -> list[Vector]:
    found = {
        "where a domain begins": BatchEnd(cut=0, order=0, ends={0: (0,), 2: (7,)}),
        "three slices": BatchEnd(
            cut=2, order=1, ends={0: (4,), 1: (3, 0), 2: (9,)}, looks=Looks.of([[(0, 2)], [(1, 1), (3, 2)]])
        ),
    }
    return [vector(name, json.dumps(one.encode()).encode(), one.encode()) for name, one in found.items()]


def history_vectors() -> list[Vector]:
    """What goes on behind the state and the positions: the last batch, and what `billing` is owed of all, until its
    lease runs out and until another process takes over.
    """
    before, after = History.of(len(BATCHES) - 1), History.of(len(BATCHES))
    last = after.effects[-1]
    events = [row for _, rows in BATCHES for row in rows if row.control is None]
    grants = [answer for answer in after.answers if isinstance(answer, Grant) and answer.id == BILLING]
    takeover = replace(
        grants[-1],
        generation=3,
        nonce="billing-2",
        g=after.states[0].hot.g + 1,
        offset=9,
        former=(),
        continuous=False,
        clock={"orders": 5, "trucks": 4},
        ids={name: grants[-1].ids[name] for name in grants[-1].topics},
        batch=after.states[0].hot.batch + 1,
    )
    first = Delivery(id=BILLING, nonce="billing-1", domain=DOMAIN)
    second = Delivery(id=BILLING, nonce="billing-2", domain=DOMAIN, position=Progress.at(grants[0]))
    return [
        {
            "name": "the last batch",
            "time_ms": BATCHES[-1][0],
            "rows": [
                [*row[:6], None if row.control is None else row.control.hex(), *row[7:]] for row in BATCHES[-1][1]
            ],
            "answers": [json.loads(encode_answer(answer)) for answer in last[0].answers],
            "digests": {str(one.partition): one.digest for shard in last for one in shard.stamps},
            "batch": before.states[0].hot.batch + 1,
        },
        {
            "name": "what is delivered",
            "events": [[*row[:3], row.crc, row.topic_id] for row in events],
            "delivered": deliver(first, after.answers, after.stamps, events),
            "takeover": json.loads(encode_answer(takeover)),
            "delivered_then": deliver(second, [*after.answers, takeover], after.stamps, events),
        },
    ]


@cache
def made() -> dict[str, list[Vector]]:
    """All examples by format."""
    return {
        "control": control_vectors(),
        "grants": grants_vectors(),
        "stamps": stamps_vectors(),
        "cuts": cuts_vectors(),
        "positions": positions_vectors(),
        "receipts": receipts_vectors(),
        "state": state_vectors(),
        "snapshots": snapshots_vectors(),
        "domain": domain_vectors(),
        "ends": ends_vectors(),
        "history": history_vectors(),
    }


def read(folder: Path) -> dict[str, Any]:
    """All files of a folder: each with the version of its format, and its examples."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, vectors in made().items():
        content = {"format": name, "version": VERSIONS.get(name), "vectors": vectors}
        text = json.dumps(content, indent=1, ensure_ascii=True)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Write examples of all formats to tests/vectors.")
    parser.add_argument(
        "--keep", metavar="NAME", help="keep them, and a whole domain, as tests/fixtures/written/NAME too, for ever"
    )
    kept = parser.parse_args().keep
    write(VECTORS)
    if kept:
        if (KEPT / kept).exists():
            parser.error(f"{KEPT / kept} is there: what was written once stays as it is")
        from kept_domain import ARCHIVE, keep  # here: only this needs a broker and Spark

        write(KEPT / kept)
        keep(KEPT / kept / ARCHIVE)


if __name__ == "__main__":
    main()
