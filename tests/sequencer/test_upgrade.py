"""What former commits wrote is read, or refused by its version; and this program goes on from it.

tests/fixtures/written has a folder for each time that a format changed: logs and checkpoints as users have them. They
are never written anew (`make vectors ARGS="--keep NAME"` adds one).
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from format_vectors import (
    DOMAIN,
    KEPT,
    READ_TOO,
    VERSIONS,
    Vector,
    cut_content,
    deliver,
    made,
    read,
    receipts_content,
    stamps_content,
)
from formats_reader import unframed

from totalorder.errors import Error, StateError, WireError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import step
from totalorder.sequencer.shards import with_counts
from totalorder.sequencer.snapshot import SnapshotAssembler, decode_mark, encode_mark
from totalorder.sequencer.state import State, decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.codec import StampsAssembler, decode_part
from totalorder.sequencer.wire.control import (
    BadRequest,
    answer_key,
    claim_in,
    decode_answer,
    encode_answer,
    encode_claim,
    encode_request,
    parse_request,
)
from totalorder.sequencer.wire.cuts import CutsAssembler
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import decode_saved, encode_saved
from totalorder.sequencer.wire.receipts import decode_receipts
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.record import DomainRecord
from totalorder.subscriber.delivery.machine import Delivery

FOLDERS = sorted(path for path in KEPT.iterdir() if path.is_dir())
FILES = {folder.name: read(folder) for folder in FOLDERS}


def value(vector: Mapping[str, Any]) -> bytes:
    return bytes.fromhex(vector["value"])


def headers(vector: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in vector["headers"].items()}


def _control(vectors: list[Vector]) -> list[Any]:
    claims = [claim_in(value(vector)) for vector in vectors]
    return [
        json.loads(encode_request(parse_request(value(vector))) if claim is None else encode_claim(claim))
        for vector, claim in zip(vectors, claims, strict=True)
    ]


def _stamps(vectors: list[Vector]) -> list[Any]:
    readers: dict[tuple[str, int], StampsAssembler] = {}
    for vector in vectors:
        place = vector["content"]["domain"], vector["content"]["partition"]
        reader = readers.setdefault(place, StampsAssembler(domain=place[0], partition=place[1]))
        found = reader.add(value(vector), headers(vector))
        assert found is not None or int(vector["headers"]["part"]) + 1 < int(vector["headers"]["parts"])
    return [stamps_content(decode_part(value(vector))) for vector in vectors]


def _cuts(vectors: list[Vector]) -> list[Any]:
    reader = CutsAssembler(domain=DOMAIN)
    return [cut_content(cut) for vector in vectors for cut in reader.add(value(vector), headers(vector))]


def _state(vectors: list[Vector]) -> list[Any]:
    """What its content is, `test_the_engine_goes_on_from_a_state` says."""
    return [(decode_hot if vector["part"] == "hot" else decode_cold)(value(vector)) and None for vector in vectors]


def _snapshots(vectors: list[Vector]) -> list[Any]:
    """Of marks what they say. Of states nothing: `test_a_recovery_goes_on_from_a_snapshot` says that."""
    marks = [decode_mark(value(vector), headers(vector), DOMAIN) for vector in vectors]
    return [mark and json.loads(encode_mark(mark).value) for mark in marks]


READ: dict[str, Callable[[list[Vector]], list[Any]]] = {
    "control": _control,
    "grants": lambda vectors: [json.loads(encode_answer(decode_answer(value(vector)))) for vector in vectors],
    "stamps": _stamps,
    "cuts": _cuts,
    "positions": lambda vectors: [json.loads(encode_saved(decode_saved(value(vector)))) for vector in vectors],
    "receipts": lambda vectors: [
        receipts_content(decode_receipts(value(vector), headers(vector))) for vector in vectors
    ],
    "state": _state,
    "snapshots": _snapshots,
    "domain": lambda vectors: [
        json.loads(DomainRecord.decode(value(vector).decode(), "here").encode()) for vector in vectors
    ],
    "ends": lambda vectors: [BatchEnd.decode(json.loads(value(vector)), "here").encode() for vector in vectors],
}


def is_read(folder: str, *names: str) -> bool:
    """Whether this program reads these formats as they are in a folder."""
    return all(
        name in FILES[folder] and FILES[folder][name]["version"] in {VERSIONS[name], *READ_TOO.get(name, ())}
        for name in names
    )


def test_there_are_formats_as_they_are_now() -> None:
    """After a change of a version: make vectors ARGS="--keep NAME"."""
    assert any(is_read(folder, *VERSIONS) and (KEPT / folder / "domain.tar.xz").exists() for folder in FILES)
    assert READ.keys() == VERSIONS.keys() == made().keys() - {"history"}


def contains(found: Any, kept: Any) -> bool:
    """Whether all that was kept is there still, as it was: a later program may say more of it."""
    if isinstance(kept, dict):
        return isinstance(found, dict) and all(name in found and contains(found[name], kept[name]) for name in kept)
    if isinstance(kept, list):
        return len(found) == len(kept) and all(map(contains, found, kept))
    return bool(found == kept)


@pytest.mark.parametrize("name", sorted(READ))
@pytest.mark.parametrize("folder", sorted(FILES))
def test_what_was_written_is_read_or_refused_by_its_version(folder: str, name: str) -> None:
    if name not in FILES[folder]:
        pytest.skip("it was not there yet")
    vectors, version = FILES[folder][name]["vectors"], FILES[folder][name]["version"]
    if is_read(folder, name):
        found = json.loads(json.dumps(READ[name](vectors)))
        assert contains(found, [vector.get("content") for vector in vectors])
        return
    for vector in vectors:
        with pytest.raises((Error, BadRequest), match=rf"version (b')?{version}\b"):
            READ[name]([vector])


@pytest.mark.parametrize("folder", sorted(FILES))
def test_records_go_where_former_ones_went(folder: str) -> None:
    """Under another key, or in another partition, they would not take the place of those of before."""
    if is_read(folder, "grants"):
        for vector in FILES[folder]["grants"]["vectors"]:
            assert answer_key(decode_answer(value(vector))) == vector["key"].encode()
    if is_read(folder, "positions"):
        for vector in FILES[folder]["positions"]["vectors"]:
            assert decode_saved(value(vector)).key == vector["key"].encode()
    batches = [vector["content"] for vector in FILES[folder]["stamps"]["vectors"]]
    rows = [(one, row) for one in batches if one["domain"] == DOMAIN for row in one["rows"]]
    assert rows
    for one, row in rows:
        assert stamps_partition(one["names"][str(row["topic"])], one["partitions"]) == one["partition"]


@pytest.mark.parametrize("folder", sorted(FILES))
def test_the_engine_goes_on_from_a_state(folder: str) -> None:
    if not is_read(folder, "state", "control", "grants", "stamps"):
        pytest.skip("its state is refused")
    parts = {(one["shard"], one["part"]): value(one) for one in FILES[folder]["state"]["vectors"]}
    last = FILES[folder]["history"]["vectors"][0]
    rows = [Row(*row)._replace(control=None if row[6] is None else bytes.fromhex(row[6])) for row in last["rows"]]
    batch = Batch.of(last["time_ms"], rows, cut=last["batch"], topic_order=("payments",))
    answers: list[Any] = []
    digests: dict[str, str] = {}
    for shard in sorted({shard for shard, _ in parts}):
        state = State(hot=decode_hot(parts[shard, "hot"]), cold=decode_cold(parts[shard, "cold"]))
        after, effects = step(state, batch, {})
        assert after.hot.batch == last["batch"]
        answers += [json.loads(encode_answer(answer)) for answer in effects.answers]
        digests |= {str(one.partition): one.digest for one in effects.stamps}
    assert contains(answers, last["answers"])
    assert digests == last["digests"]


@pytest.mark.parametrize("folder", sorted(FILES))
def test_a_recovery_goes_on_from_a_snapshot(folder: str) -> None:
    """With the states that it was made of."""
    if not is_read(folder, "snapshots", "state"):
        pytest.skip("its snapshots are refused, or there were none yet")
    vectors = FILES[folder]["snapshots"]["vectors"]
    mark = decode_mark(value(vectors[-1]), headers(vectors[-1]), DOMAIN)
    assert mark is not None
    assembler = SnapshotAssembler(mark=mark)
    for vector in vectors:
        assembler.add(value(vector), headers(vector))
    found = assembler.snapshot().states
    parts = {(one["shard"], one["part"]): value(one) for one in FILES[folder]["state"]["vectors"]}
    for shard, state in enumerate(map(with_counts, found)):
        assert encode_hot(state.hot) == parts[shard, "hot"]
        assert encode_cold(state.cold) == parts[shard, "cold"]


@pytest.mark.parametrize("saved", ["", "nothing is acknowledged", "a change lies behind", "behind the change"])
@pytest.mark.parametrize("folder", sorted(FILES))
def test_a_subscriber_goes_on_from_a_position(folder: str, saved: str) -> None:
    """From one that a former release saved, or from its grant, over answers and stamps that it wrote."""
    if not is_read(folder, "positions", "grants", "stamps"):
        pytest.skip("its positions or stamps are refused")
    files = {name: FILES[folder][name]["vectors"] for name in ("positions", "grants", "stamps", "history")}
    answers = [decode_answer(value(one)) for one in files["grants"] if one["name"].startswith("g ")]
    stamps = [decode_part(value(one)) for one in files["stamps"] if one["content"]["domain"] == DOMAIN]
    last = files["history"][1]
    rows = [Row(topic, part, offset, 0, topic, crc, topic_id=id_) for topic, part, offset, crc, id_ in last["events"]]
    if not saved:
        machine = Delivery(id="billing", nonce="billing-1", domain=DOMAIN)
        assert deliver(machine, answers, stamps, rows) == last["delivered"]
        return
    (position,) = [decode_saved(value(one)).position for one in files["positions"] if one["name"] == saved]
    answers.append(decode_answer(json.dumps(last["takeover"]).encode()))
    machine = Delivery(id="billing", nonce="billing-2", domain=DOMAIN, position=position)
    delivered = deliver(
        machine,
        answers,
        [
            one
            for one in stamps
            if one.partition not in position.stamps or one.batch > position.stamps[one.partition].batch
        ],
        [row for row in rows if row.offset >= position.sources.get(_source(row), 0)],
    )
    assert delivered == [one for one in last["delivered_then"] if one[2] > position.g]
    assert delivered


def _source(row: Row) -> Source:
    return Source(row.kafka_topic, row.topic_id, row.partition)


# --- versions that are not known --------------------------------------------------------------------------------------


def raised(vector: Vector, name: str, version: int | None) -> Vector:
    """The example as of another version, or of none."""
    if "headers" in vector:
        rest = {key: text for key, text in vector["headers"].items() if key != "version"}
        return vector | {"headers": rest if version is None else rest | {"version": str(version)}}
    if name == "state":
        data = bytearray(value(vector))
        data[4:6] = (version or 0).to_bytes(2, "little")
        return vector | {"value": data.hex()}
    field = "v" if "v" in (content := json.loads(value(vector))) else "version"
    rest = {key: one for key, one in content.items() if key != field}
    return vector | {"value": json.dumps(rest if version is None else rest | {field: version}).encode().hex()}


@pytest.mark.parametrize("name", sorted(VERSIONS))
@pytest.mark.parametrize("more", [-1, 1, 1_000, None])
def test_another_version_is_refused_and_both_are_named(name: str, more: int | None) -> None:
    version = None if more is None else VERSIONS[name] + more
    if version in READ_TOO.get(name, ()):
        version = min(READ_TOO[name]) - 1
    for vector in made()[name]:
        if name == "control" and vector["content"]["kind"] == "claim":
            assert claim_in(value(raised(vector, name, version))) is None
            continue
        with pytest.raises((WireError, StateError, BadRequest)) as refused:
            READ[name]([raised(vector, name, version)])
        if version is not None:
            assert re.search(rf"version (b')?{version}\b.* reads (version )?{VERSIONS[name]}\b", str(refused.value))


# --- what a later release may say beside ------------------------------------------------------------------------------

LATER = {"later": [1, {"release": None}]}


def with_header(vector: Vector) -> Vector:
    return vector | {"headers": vector["headers"] | {"later": "é"}}


def with_key(vector: Vector) -> Vector:
    """Of a record that is a JSON object."""
    return vector | {"value": json.dumps(json.loads(value(vector)) | LATER).encode().hex()}


def with_more_in_head(vector: Vector) -> Vector:
    """Of a packed record: a key, or an element of a list."""
    raw = unframed(value(vector))
    (length,) = struct.unpack_from("<I", raw)
    head = json.loads(raw[4 : 4 + length])
    more = json.dumps([*head, LATER] if isinstance(head, list) else head | LATER).encode()
    return reframed(vector, struct.pack("<I", len(more)) + more + raw[4 + length :])


def with_another_column(vector: Vector) -> Vector:
    raw = unframed(value(vector))
    (length,) = struct.unpack_from("<I", raw)
    head = json.loads(raw[4 : 4 + length])
    more = json.dumps(head | {"widths": [*head["widths"], 1]}).encode()
    return reframed(vector, struct.pack("<I", len(more)) + more + raw[4 + length :] + bytes(head["rows"]))


def reframed(vector: Vector, raw: bytes) -> Vector:
    return vector | {"value": pa.compress(raw, codec="zstd", asbytes=True).hex()}


def with_key_in_directory(vector: Vector) -> Vector:
    """Of receipts."""
    with pa.ipc.open_stream(unframed(value(vector))) as stream:
        schema, batch = stream.schema, stream.read_next_batch()
    directory = json.loads(schema.metadata[b"totalorder"]) | LATER
    return restreamed(vector, batch.replace_schema_metadata({"totalorder": json.dumps(directory)}))


def with_column_of_receipts(vector: Vector) -> Vector:
    with pa.ipc.open_stream(unframed(value(vector))) as stream:
        schema, batch = stream.schema, stream.read_next_batch()
    return restreamed(vector, batch.append_column("later", batch.column(0)).replace_schema_metadata(schema.metadata))


def restreamed(vector: Vector, batch: pa.RecordBatch) -> Vector:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return reframed(vector, sink.getvalue())


def with_key_in_state(vector: Vector) -> Vector:
    data = value(vector)
    magic, version, length = struct.unpack_from("<4sHI", data)
    described = json.loads(data[10 : 10 + length])
    more = json.dumps(described | {"header": described["header"] | LATER}).encode()
    content = struct.pack("<4sHI", magic, version, len(more)) + more + data[10 + length : -4]
    return vector | {"value": (content + struct.pack("<I", zlib.crc32(content))).hex()}


Change = Callable[[Vector], Vector]
PASSED_OVER: list[tuple[str, Change]] = [
    ("stamps", with_header),
    ("stamps", with_more_in_head),
    ("cuts", with_header),
    ("grants", with_key),
    ("positions", with_key),
    ("receipts", with_header),
    ("receipts", with_key_in_directory),
]
REFUSED: list[tuple[str, Change]] = [
    ("control", with_key),
    ("stamps", with_another_column),
    ("cuts", with_more_in_head),
    ("receipts", with_column_of_receipts),
    ("state", with_key_in_state),
    ("domain", with_key),
    ("ends", with_key),
]


@pytest.mark.parametrize(("name", "change"), PASSED_OVER)
def test_what_is_said_beside_is_passed_over(name: str, change: Change) -> None:
    vectors = made()[name]
    changed = [change(vector) for vector in vectors]
    assert changed != vectors
    assert READ[name](changed) == READ[name](vectors)


@pytest.mark.parametrize(("name", "change"), REFUSED)
def test_what_would_be_read_by_guess_is_refused(name: str, change: Change) -> None:
    vectors = [vector for vector in made()[name] if int(vector.get("headers", {}).get("parts", 1)) == 1]
    for at, vector in enumerate(vectors):
        if name == "control" and vector["content"]["kind"] == "claim":
            assert claim_in(value(change(vector))) is None
            continue
        with pytest.raises((WireError, StateError, BadRequest)):
            READ[name]([*vectors[:at], change(vector)])


@pytest.mark.parametrize("kind", sorted({vector["content"]["kind"] for vector in made()["grants"]}))
def test_an_answer_that_says_less_is_refused(kind: str) -> None:
    (vector, *_) = [vector for vector in made()["grants"] if vector["content"]["kind"] == kind]
    for name in vector["content"]:
        rest = {key: one for key, one in vector["content"].items() if key != name}
        with pytest.raises(WireError):
            decode_answer(json.dumps(rest).encode())


def test_a_saved_position_keeps_changes_that_say_more() -> None:
    """Those that lie behind are answers, and a process saves them again as it knows them."""
    (vector,) = [one for one in made()["positions"] if one["content"]["pending"]]
    more = [answer | LATER for answer in vector["content"]["pending"]]
    changed = json.dumps(vector["content"] | {"pending": more}).encode()
    assert decode_saved(changed) == decode_saved(value(vector))
    assert encode_saved(decode_saved(changed)) == value(vector)


def test_a_saved_position_whose_changes_do_not_follow_each_other_is_damaged() -> None:
    (vector,) = [one for one in made()["positions"] if one["content"]["pending"]]
    content = vector["content"]
    for other in ({"switched_g": content["pending"][0]["g"]}, {"pending": content["pending"][:1] * 2}):
        with pytest.raises(WireError, match="its changes do not follow each other"):
            decode_saved(json.dumps(content | other).encode())
