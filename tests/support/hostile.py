"""Everything that is decoded from outside, as targets for hostile input: samples that are right, changed and grown.

A *layer* of a format is what a forger can write at will: a whole value, the JSON within it, the columns behind that. A
target puts a layer back into all that is around it (frames, lengths, checksums), so that what is changed inside is not
refused for its wrapping.
"""

import gc
import json
import random
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
from engine_world import configs, rows_of, run
from reference import change, events

from totalorder.config import make_settings
from totalorder.errors import Error, WireError
from totalorder.sequencer.shards import of_shards, with_counts
from totalorder.sequencer.snapshot import (
    SnapshotAssembler,
    SnapshotMark,
    cut_of,
    decode_mark,
    encode_mark,
    encode_parts,
)
from totalorder.sequencer.state import decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.budget import parse_json
from totalorder.sequencer.wire.codec import StampsAssembler, decode_part, encode_stamps
from totalorder.sequencer.wire.control import (
    BadRequest,
    Grant,
    Request,
    Retire,
    Skip,
    Subscribe,
    Unsubscribe,
    claim_in,
    decode_answer,
    encode_answer,
    encode_request,
    parse_request,
)
from totalorder.sequencer.wire.cuts import Cut, CutsAssembler, encode_cut
from totalorder.sequencer.wire.position import Progress, SavedPosition, decode_saved, encode_saved
from totalorder.sequencer.wire.receipts import HEADERS, Receipts, decode_receipts, encode_receipts
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.record import DomainRecord, EventTopic
from totalorder.subscriber.parked import HEADER, KEY_HEADER, About, Parked
from totalorder.subscriber.stamps_log import looked_at
from totalorder.subscriber.transport import Record

MOST_S, MOST_BYTES = 1.0, 100_000_000
"""What refusing anything may take: time of the processor of a usual machine, and memory."""
_USUAL_S = 0.1
"""What a usual machine takes for a million additions."""
REFUSALS = (Error, BadRequest)


@dataclass(frozen=True)
class Target:
    """One layer of one format. `decode` takes the layer and does with what comes out what its reader would do."""

    name: str
    samples: tuple[bytes, ...]
    decode: Callable[[bytes], object]
    is_json: bool = False


def attack(target: Target, data: bytes) -> bool:
    """Whether it was decoded; AssertionError where it is neither decoded nor refused, or takes too much."""
    tracemalloc.start()
    try:
        decoded, taken_s = _tried(target, data)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if taken_s >= MOST_S:  # the tracing takes the most of it, and a machine may stand still
        with _uncollected():
            taken_s = min(_tried(target, data)[1] / _slowness() for _ in range(3))
    assert taken_s < MOST_S, f"{target.name}: {taken_s:.1f} s"
    assert most < MOST_BYTES, f"{target.name}: {most:,} bytes"
    return decoded


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector, which would go through all that a process of tests has."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _slowness() -> float:
    """How many times as long as on a usual machine work takes at this moment, 1 at least."""
    begun_s, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number
    return max(1.0, (time.process_time() - begun_s) / _USUAL_S)


def _tried(target: Target, data: bytes) -> tuple[bool, float]:
    """Whether it was decoded, and the processor's time for it."""
    begun_s = time.process_time()
    try:
        target.decode(data)
        decoded = True
    except REFUSALS:
        decoded = False
    return decoded, time.process_time() - begun_s


def mutated(target: Target, rng: random.Random) -> bytes:
    """A sample of the target, changed in a few places."""
    sample = rng.choice(target.samples)
    if target.is_json and rng.random() < 0.8:
        value = json.loads(sample)
        for _ in range(rng.randint(1, 3)):
            value = _changed_value(value, rng)
        text = json.dumps(value, allow_nan=True)
        if rng.random() < 0.05:  # something that json.dumps does not write
            text = text.replace("1", rng.choice(["9" * 5_000, "1e999", "-0", "\\ud800", "[" * 2_000]), 1)
        return text.encode()
    data = bytearray(sample)
    for _ in range(rng.randint(1, 6)):
        _change_bytes(data, rng)
    return bytes(data)


_ODD_NUMBERS = (0, 1, -1, 2, 255, 1 << 16, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30)
_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    1.5,
    1e300,
    float("nan"),
    "",
    "a",
    "\ud800",
    "x" * 300,
    "0",
    [],
    {},
    [[]],
    {"": 0},
    [0, 0, 0],
)


def _changed_value(value: Any, rng: random.Random) -> Any:
    places = list(_places(value))
    if not places or rng.random() < 0.02:
        return deepcopy(rng.choice(_ODD))
    holder, key = rng.choice(places)
    old, kind = holder[key], rng.randrange(6)
    if kind == 0:
        holder[key] = deepcopy(rng.choice(_ODD))
    elif kind == 1:
        holder[key] = rng.choice(_ODD_NUMBERS)
    elif kind == 2 and isinstance(old, int):
        holder[key] = old + rng.choice((-1, 1))
    elif kind == 3 and isinstance(holder, list):
        holder[key : key + 1] = [deepcopy(old) for _ in range(rng.choice((0, 2, 3, 1_000)))]
    elif kind == 4 and isinstance(holder, dict):
        del holder[key]
    else:
        other, place = rng.choice(places)
        holder[key] = deepcopy(other[place])
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inner: Any = range(len(value)) if isinstance(value, list) else list(value) if isinstance(value, dict) else ()
    for key in inner:
        yield value, key
        yield from _places(value[key])


def _change_bytes(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(5)
    if kind == 0:
        data[at : at + 1] = bytes([rng.randrange(256)])
    elif kind == 1:
        del data[at : at + rng.randint(1, 16)]
    elif kind == 2:
        data[at:at] = rng.choice((b"\0", b"\xff", b"\x7f")) * rng.choice((1, 4, 8, 1_000))
    elif kind == 3:
        data[at:at] = data[at : at + rng.randint(1, 64)] * rng.choice((1, 2, 50))
    else:
        data[at : at + 8] = struct.pack("<q", rng.choice((0, 1, -1, 1 << 31, 1 << 40, 1 << 62, (1 << 63) - 1)))


# --- the targets ------------------------------------------------------------------------------------------------------


def zstd(raw: bytes) -> bytes:
    return bytes(pa.compress(raw, codec="zstd", asbytes=True))


def unzstd(value: bytes) -> bytes:
    return bytes(pa.CompressedInputStream(pa.BufferReader(value), "zstd").read())


def _framed(head: bytes, columns: bytes) -> bytes:
    return zstd(struct.pack("<I", len(head)) + head + columns)


def _unframed(value: bytes) -> tuple[bytes, bytes]:
    raw = unzstd(value)
    end = 4 + int.from_bytes(raw[:4], "little")
    return raw[4:end], raw[end:]


_ITEMS = [change("r", "TX"), change("s", ["T", "été"]), *events("TXTTX"), change("r", "X"), *events(["été", "T"])]
(_STATE,), _EFFECTS = run([rows_of(_ITEMS)], configs())
_ANSWERS = [answer for effects in _EFFECTS for answer in effects.answers]
_GRANTS = [answer for answer in _ANSWERS if isinstance(answer, Grant)]
_KEYS = Signatures(keys=("k" * 40,), domain="d")
_STAMPS = next(stamped for effects in _EFFECTS for stamped in effects.stamps if len(stamped.rows))
_SOURCES = (Source("a", "id-a", 0), Source("a", "id-a", 1), Source("b", "id-b", 0))
_CUT = Cut.of(
    domain="d", incarnation=1, cut=1, sources=_SOURCES, begins=[0, 5, 0], ends=[9, 9, 1], looks=[[(0, 2), (1, 1)], []]
)


def _headers(name: str, headers: Mapping[str, bytes], decode: Callable[[dict[str, bytes]], object]) -> Target:
    """A record's headers, as JSON of their texts."""

    def decode_text(data: bytes) -> None:
        try:
            told = dict(parse_json(data, 1_000_000).items())
        except (ValueError, AttributeError):
            raise WireError("these are no headers") from None
        decode({key: str(value).encode(errors="replace") for key, value in told.items()})

    sample = json.dumps({key: value.decode() for key, value in headers.items()})
    return Target(f"{name}: headers", (sample.encode(),), decode_text, is_json=True)


def _requests() -> Target:
    requests: list[Request] = [
        Subscribe(id="s", generation=1, nonce="n", topics=("T", "été"), lease_s=9, stamps_ends={0: 7, 1: 2}),
        Unsubscribe(id="s", generation=2, nonce="n"),
        Retire(id="s", nonce="n", topic="k", topic_id="uuid", seen={0: 3}),
        Skip(id="s", nonce="n", topic="k", topic_id="uuid", partition=1, begin=3, end=9),
    ]
    claim = b'{"incarnation":1,"kind":"claim","owner":"me","v":1}'

    def decode(value: bytes) -> None:
        claim_in(value)
        for signatures in (_KEYS, None):
            encode_request(parse_request(value, signatures))

    signed = encode_request(requests[0], _KEYS.signer("s"))
    return Target("requests", (*(encode_request(request) for request in requests), signed, claim), decode, is_json=True)


def _answers() -> Target:
    def decode(value: bytes) -> None:
        answer = decode_answer(value)
        assert decode_answer(encode_answer(answer)) == answer
        if isinstance(answer, Grant):
            Progress.at(answer)

    return Target("answers", tuple(map(encode_answer, _ANSWERS)), decode, is_json=True)


def _positions() -> Target:
    def decode(value: bytes) -> None:
        saved = decode_saved(value)
        assert decode_saved(encode_saved(saved)) == saved

    first, *others = _GRANTS
    values = dict(vars(Progress.at(first))) | {"pending": tuple(others)}
    saves = [
        SavedPosition(id="r", generation=1, nonce="n", delivered_through=3, position=position)
        for position in (Progress.at(first), Progress(**values))
    ]
    return Target("positions", tuple(map(encode_saved, saves)), decode, is_json=True)


def _parked() -> Target:
    def decode(value: bytes) -> None:
        """The header; who writes it writes a key that fits."""
        try:
            head = json.loads(value)
            key = "/".join(
                str(head[name]) for name in ("id", "kafka_topic", "topic_id", "partition", "offset")
            ).encode()
        except (KeyError, TypeError, ValueError, RecursionError):
            key = b"s/a/i/0/4"
        headers = (("h", b""), (KEY_HEADER, b"k"), (HEADER, value))
        record = Record("parking", 0, 0, key, b"", headers, 0)
        parked = Parked.read(record)
        written, again = parked.written()
        assert Parked.read(record._replace(value=written, headers=tuple(again))) == parked

    about = About(
        domain="d", id="s", g=3, n=1, topic="a", kafka_topic="a", topic_id="i", partition=0, offset=4, timestamp_ms=5,
        attempts=1, error="ValueError: no", parked_ms=6,
    )  # fmt: skip
    _, headers = Parked(about=about, key=b"k", value=None, headers=(("h", None),)).written()
    return Target("parked", (headers[-1][1],), decode, is_json=True)


def _stamps() -> Iterator[Target]:
    (record,) = encode_stamps(_STAMPS)
    headers = dict(record.headers)
    head, columns = _unframed(record.value)

    def decode(value: bytes) -> None:
        part = decode_part(value)
        part.compute_digest()
        list(part.rows.plain(np.arange(len(part.rows))))
        StampsAssembler(domain=_STAMPS.domain, partition=_STAMPS.partition).add(value, headers)

    def decode_headers(told: dict[str, bytes]) -> None:
        looked_at(Record("d.stamps", _STAMPS.partition, 0, None, record.value, tuple(told.items()), 0), _STAMPS.domain)
        StampsAssembler(domain=_STAMPS.domain, partition=_STAMPS.partition).add(record.value, told)

    yield _headers("stamps", headers, decode_headers)
    yield Target("stamps", (record.value,), decode)
    yield Target("stamps: directory", (head,), lambda data: decode(_framed(data, columns)), is_json=True)
    yield Target("stamps: columns", (columns,), lambda data: decode(_framed(head, data)))


def _cuts() -> Iterator[Target]:
    record = encode_cut(_CUT, is_key=True)
    headers = dict(record.headers)
    head, columns = _unframed(record.value)

    def decode(value: bytes) -> None:
        for cut in CutsAssembler(domain="d").add(value, headers):
            assert cut.digest
            assert len(cut.looks) < 1 << 17

    yield _headers("cuts", headers, lambda told: CutsAssembler(domain="d").add(record.value, told))
    yield Target("cuts", (record.value,), decode)
    yield Target("cuts: head", (head,), lambda data: decode(_framed(data, columns)), is_json=True)
    yield Target("cuts: columns", (columns,), lambda data: decode(_framed(head, data)))


def _receipts() -> Iterator[Target]:
    up = np.arange(1, 6, dtype=np.int64)
    receipts = Receipts(
        domain="d",
        id="s",
        nonce="n",
        topics=("T", "X"),
        sources=_SOURCES[:2],
        generation=up * 0 + 1,
        sequence=up,
        topic=up % 2,
        source=up % 2,
        offset=up * 10,
        n=up,
        g=up * 2,
        redelivered=up > 2,
        lost=up == 4,
        delivered_ms=up * 1_000,
    )
    (record,) = encode_receipts(receipts)
    raw = unzstd(record.value)
    with pa.ipc.open_stream(raw) as reader:
        batch = reader.read_next_batch()
    head = batch.schema.metadata[b"totalorder"]

    def decode(value: bytes) -> None:
        len(decode_receipts(value, dict(HEADERS)))

    def around(data: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        schema = batch.schema.with_metadata({b"totalorder": data})
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(batch.columns, schema=schema))
        return zstd(sink.getvalue().to_pybytes())

    yield _headers("receipts", dict(HEADERS), lambda told: decode_receipts(record.value, told))
    yield Target("receipts", (record.value,), decode)
    yield Target("receipts: stream", (raw,), lambda data: decode(zstd(data)))
    yield Target("receipts: directory", (head,), lambda data: decode(around(data)), is_json=True)


def _state_layers(name: str, data: bytes, decode: Callable[[bytes], object]) -> Iterator[Target]:
    """Those of a part of the state as it is packed."""
    begin = struct.calcsize("<4sHI")
    end = begin + int.from_bytes(data[begin - 4 : begin], "little")

    def sealed(content: bytes) -> bytes:
        return content + struct.pack("<I", zlib.crc32(content))

    def around(head: bytes) -> bytes:
        return sealed(data[: begin - 4] + struct.pack("<I", len(head)) + head + data[end:-4])

    yield Target(name, (data[:-4],), lambda content: decode(sealed(content)))
    yield Target(f"{name}: header", (data[begin:end],), lambda head: decode(around(head)), is_json=True)


def _state() -> Iterator[Target]:
    yield from _state_layers("hot state", encode_hot(_STATE.hot), lambda data: encode_hot(decode_hot(data)))
    yield from _state_layers("cold state", encode_cold(_STATE.cold), lambda data: encode_cold(decode_cold(data)))


def _snapshots() -> Iterator[Target]:
    mark = SnapshotMark(
        domain="d",
        incarnation=1,
        batch=_STATE.hot.batch,
        shards=1,
        cut=5,
        ends={Source("d.control", "id-c", 0): 3, **dict.fromkeys(_SOURCES, 7)},
        starts={_SOURCES[0]: 2},
        topic_order=("a",),
        stamps_begins=(1,) * _STATE.cold.config.stamps_partitions,
        stamps_ends=(4,) * _STATE.cold.config.stamps_partitions,
        keys=("f" * 64,),
    )
    record, (part,) = encode_mark(mark), encode_parts(_STATE)

    def decode_as_mark(value: bytes) -> None:
        found = decode_mark(value, dict(record.headers), "d")
        assert found is not None
        assert decode_mark(encode_mark(found).value, dict(record.headers), "d") == found
        cut_of(found)

    def decode(value: bytes, headers: dict[str, bytes]) -> None:
        assembler = SnapshotAssembler(mark=mark)
        assembler.add(value, headers)
        for state in of_shards(assembler.snapshot().states, _STATE.cold.config):
            with_counts(state)

    raw = unzstd(part.value)
    hot, cold = raw[8 : 8 + int.from_bytes(raw[:8], "little")], raw[8 + int.from_bytes(raw[:8], "little") :]

    def whole(hot: bytes, cold: bytes) -> None:
        content = struct.pack("<Q", len(hot)) + hot + cold
        digest = blake2b(content, digest_size=16).hexdigest()
        decode(zstd(content), dict(part.headers) | {"digest": digest.encode()})

    yield _headers("snapshot", dict(part.headers), lambda told: SnapshotAssembler(mark=mark).add(part.value, told))
    yield Target("snapshot: mark", (record.value,), decode_as_mark, is_json=True)
    yield Target("snapshot", (part.value,), lambda data: decode(data, dict(part.headers)))
    yield from _state_layers("snapshot: hot", hot, lambda data: whole(data, cold))
    yield from _state_layers("snapshot: cold", cold, lambda data: whole(hot, data))


def _record() -> Target:
    settings = make_settings(domain="d", topic_pattern=".*", checkpoint_dir="c")
    topics = [EventTopic(name="a", topic_id="id-a", starts={0: 5}), EventTopic(name="b", topic_id="i", state="gone")]
    text = DomainRecord.begin(settings, topics=topics, own_ids={"d.control": "id-c"}).encode()

    def decode(data: bytes) -> None:
        try:
            told = data.decode()
        except UnicodeDecodeError:
            return  # the file's reader says so
        record = DomainRecord.decode(told, "here")
        assert DomainRecord.decode(record.encode(), "here") == record
        record.numbered()

    return Target("domain.json", (text.encode(),), decode, is_json=True)


TARGETS = (
    _requests(),
    _answers(),
    _positions(),
    _parked(),
    *_stamps(),
    *_cuts(),
    *_receipts(),
    *_state(),
    *_snapshots(),
    _record(),
)
