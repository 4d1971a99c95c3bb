"""docs/formats.md says all that a reader needs: one that was written from it alone reads whatever the program writes.

tests/vectors has examples of each format. The program writes exactly those, and reads them back; `make vectors` makes
them anew when a format changes.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cut_runs import runs
from engine_world import configs, rows_of, run
from format_vectors import (
    VECTORS,
    VERSIONS,
    Vector,
    cut_content,
    cut_of,
    made,
    read,
    receipts_content,
    receipts_of,
    stamps_content,
    stamps_of,
)
from formats_reader import (
    answer_key,
    blake2b,
    columns_of,
    digest_of,
    first_digest,
    in_order,
    join_parts,
    key_print,
    partition_of,
    read_cut,
    read_part,
    read_receipts,
    read_snapshot,
    read_state,
    unframed,
    written,
)
from hypothesis import given, settings, strategies as st
from reference import Event, Item, change

from totalorder.sequencer.snapshot import SnapshotAssembler, decode_mark, encode_mark, encode_parts
from totalorder.sequencer.state import decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.codec import StampsAssembler, decode_part, encode_stamps
from totalorder.sequencer.wire.control import (
    claim_in,
    decode_answer,
    encode_answer,
    encode_claim,
    encode_request,
    parse_request,
)
from totalorder.sequencer.wire.cuts import Cut, CutEncoder, CutsAssembler
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.planes import to_planes, width_of
from totalorder.sequencer.wire.position import decode_saved, encode_saved
from totalorder.sequencer.wire.receipts import decode_receipts, encode_receipts
from totalorder.sequencer.wire.stamps import StampedBatch
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.record import DomainRecord
from totalorder.subscriber import parked

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"
FILES = read(VECTORS)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def vectors(name: str) -> list[Vector]:
    found: list[Vector] = FILES[name]["vectors"]
    return found


def value(vector: Mapping[str, Any]) -> bytes:
    return bytes.fromhex(vector["value"])


def headers(vector: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: text.encode() for name, text in vector["headers"].items()}


def plain(content: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(content))


def beside_frames(vectors: list[Vector]) -> list[Vector]:
    """The examples without what depends on the release of zstd: what is in the frame is there too."""
    return [
        {name: vector[name] for name in vector if name != "value" or "unpacked" not in vector} for vector in vectors
    ]


# --- the examples -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(made()))
def test_the_examples_are_what_the_program_writes(name: str) -> None:
    assert FILES[name]["version"] == VERSIONS.get(name), "the version is another one: make vectors"
    assert beside_frames(vectors(name)) == beside_frames(plain(made()[name])), "the format has changed: make vectors"


def test_what_is_in_the_frames_of_the_examples_is_what_they_say() -> None:
    packed = [vector for name in FILES for vector in vectors(name) if "unpacked" in vector]
    assert len(packed) > 15
    assert all(unframed(value(vector)).hex() == vector["unpacked"] for vector in packed)


def test_the_page_has_the_versions() -> None:
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (\d+) \| [^|]+ \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = {what: int(version) for what, version in rows}
    assert found == {
        "requests, claims": VERSIONS["control"],
        "answers": VERSIONS["grants"],
        "stamps": VERSIONS["stamps"],
        "cuts": VERSIONS["cuts"],
        "saved positions": VERSIONS["positions"],
        "receipts": VERSIONS["receipts"],
        "parked events": parked.VERSION,
        "state, hot and cold": VERSIONS["state"],
        "snapshots": VERSIONS["snapshots"],
        "`domain.json`": VERSIONS["domain"],
        "a batch's end": VERSIONS["ends"],
    }


# --- read by the page -------------------------------------------------------------------------------------------------


def test_stamps_are_read_by_the_page() -> None:
    wholes = [vector for vector in vectors("stamps") if vector["headers"]["parts"] == "1"]
    parts = [vector for vector in vectors("stamps") if vector["headers"]["parts"] != "1"]
    assert [plain(read_part(value(vector))) for vector in vectors("stamps")] == [
        vector["content"] for vector in vectors("stamps")
    ]
    for vector in wholes:
        batch = read_part(value(vector))
        assert digest_of(batch) == batch["digest"]
        assert {name: vector["headers"][name] for name in ("kind", "version", "part")} == {
            "kind": "stamps",
            "version": "4",
            "part": "0",
        }
    assert [vector["headers"]["part"] for vector in parts] == ["0", "1", "2", "3"]
    joined = join_parts([read_part(value(vector)) for vector in parts])
    assert plain(joined) == wholes[-1]["content"]
    assert digest_of(joined) == joined["digest"]


def test_digests_of_the_examples_make_a_chain_by_the_page() -> None:
    (claim,) = [vector["content"] for vector in vectors("control") if vector["content"]["kind"] == "claim"]
    for partition in range(2):
        batches = [vector["content"] for vector in vectors("stamps")]
        chain = [one for one in batches if one["domain"] == "shop" and one["partition"] == partition]
        before = first_digest("shop", partition, claim["owner"])
        for one in chain:
            assert one["previous_digest"] == before
            before = one["digest"]
        assert len(chain) == 4


def test_cuts_are_read_by_the_page() -> None:
    before = None
    for vector in vectors("cuts"):
        before = read_cut(value(vector), before)
        assert plain(before) == vector["content"]
    assert [vector["headers"]["key"] for vector in vectors("cuts")] == ["1", "0", "1"]


def test_answers_are_read_by_the_page() -> None:
    for vector in vectors("grants"):
        assert value(vector).decode() == written(in_order(vector["content"]), is_utf8=True)
        assert vector["key"] == answer_key(vector["content"])


def test_positions_are_read_by_the_page() -> None:
    for vector in vectors("positions"):
        content = vector["content"]
        assert value(vector).decode() == written(in_order(content))
        assert vector["key"] == f"{content['id']}/{content['generation']}"


def test_receipts_are_read_by_the_page() -> None:
    for vector in vectors("receipts"):
        assert plain(read_receipts(value(vector))) == vector["content"]


def test_state_is_read_by_the_page() -> None:
    found = {vector["name"]: read_state(value(vector)) for vector in vectors("state")}
    hot, cold = found["hot, shard 1"], found["cold, shard 1"]
    assert (hot["magic"], cold["magic"], hot["version"], cold["version"]) == ("TOhs", "TOcs", 3, 3)
    (last,) = [
        vector["content"]
        for vector in vectors("stamps")
        if (vector["content"]["domain"], vector["content"]["batch"], vector["content"]["partition"]) == ("shop", 3, 1)
    ]
    assert {name: hot["header"][name] for name in ("batch", "g", "control_g", "digests")} == {
        **{name: last[name] for name in ("batch", "g", "control_g")},
        "digests": [[1, last["digest"]]],
    }
    clocks = dict(zip(cold["header"]["topics"], hot["arrays"]["clocks"], strict=True))
    assert clocks == {"orders": 4, "payments": 3, "trucks": 3}
    ranks = [name for name, _ in cold["header"]["kafka_topics"]]
    sources = [[ranks[rank], partition] for rank, partition in cold["header"]["sources"]]
    reached = dict(zip(map(tuple, sources), hot["arrays"]["next_offsets"], strict=True))
    assert reached == {("orders", 0): 5, ("payments", 0): 10}
    (grant,) = [vector["content"] for vector in vectors("grants") if vector["name"] == "g 13 of the history"]
    id_, generation, nonce, topics, lease_ms, expires_ms, g, has_ended = cold["header"]["subscriptions"][1]
    assert [id_, generation, nonce, g] == [grant[name] for name in ("id", "generation", "nonce", "g")]
    assert ({cold["header"]["topics"][topic] for topic in topics}, lease_ms, has_ended) == (
        set(grant["topics"]),
        60_000,
        False,
    )
    assert expires_ms == last["time_ms"] + lease_ms
    counts = cold["arrays"]["counts"]
    together = {(a, b): n for a, b, n in zip(counts[::3], counts[1::3], counts[2::3], strict=True)}
    assert together[0, 2] == 2  # orders and trucks: both hold them


def test_snapshots_are_read_by_the_page() -> None:
    states = {(vector["shard"], vector["part"]): read_state(value(vector)) for vector in vectors("state")}
    *parts, mark, busy = vectors("snapshots")
    for shard, vector in enumerate(parts):
        head = vector["headers"]
        hot, cold = map(read_state, read_snapshot([value(vector)], head["digest"]))
        assert hot == states[shard, "hot"]
        assert cold == states[shard, "cold"] | {"arrays": {"counts": []}}
        assert (head["kind"], int(head["shard"]), int(head["parts"])) == ("part", shard, 1)
        assert int(head["batch"]) == hot["header"]["batch"] == mark["content"]["batch"]
    assert json.loads(value(mark)) == mark["content"]
    assert mark["content"]["keys"] == [key_print("k" * 32, "shop")]
    reached = {(topic, part): offset for topic, _, rows in mark["content"]["ends"] for part, offset in rows}
    assert reached == {("shop.control", 0): 8, ("orders", 0): 5, ("payments", 0): 10}
    assert busy["content"]["stamps_ends"] is None


# --- read and written by the program ----------------------------------------------------------------------------------


def test_stamps_go_through_the_program() -> None:
    assembler: dict[tuple[str, int], StampsAssembler] = {}
    for vector in vectors("stamps"):
        content = vector["content"]
        place = content["domain"], content["partition"]
        reader = assembler.setdefault(place, StampsAssembler(domain=place[0], partition=place[1]))
        found = reader.add(value(vector), headers(vector))
        assert stamps_content(decode_part(value(vector))) == content
        if vector["headers"]["parts"] == "1":
            assert found is not None
            assert stamps_content(found) == content
            (wire,) = encode_stamps(stamps_of(content))
            assert unframed(wire.value).hex() == vector["unpacked"]
            assert dict(wire.headers) == headers(vector)


def test_cuts_go_through_the_program() -> None:
    reader, writer = CutsAssembler(domain="shop"), CutEncoder()
    for vector in vectors("cuts"):
        (found,) = reader.add(value(vector), headers(vector))
        assert cut_content(found) == vector["content"]
        wire = writer.encode(cut_of(vector["content"]))
        assert unframed(wire.value).hex() == vector["unpacked"]
        assert dict(wire.headers) == headers(vector)


def test_receipts_go_through_the_program() -> None:
    for vector in vectors("receipts"):
        assert receipts_content(decode_receipts(value(vector), headers(vector))) == vector["content"]
        (wire,) = encode_receipts(receipts_of(vector["content"]))
        assert unframed(wire.value).hex() == vector["unpacked"]


def test_snapshots_go_through_the_program() -> None:
    *parts, mark, busy = vectors("snapshots")
    for vector in (mark, busy):
        found = decode_mark(value(vector), headers(vector), "shop")
        assert found is not None
        assert encode_mark(found).value == value(vector)
        assert dict(encode_mark(found).headers) == headers(vector)
        assembler = SnapshotAssembler(mark=found)
        for part in parts:
            assembler.add(value(part), headers(part))
        for part, state in zip(parts, assembler.snapshot().states, strict=True):
            (wire,) = encode_parts(state)
            assert unframed(wire.value).hex() == part["unpacked"]
            assert dict(wire.headers) == headers(part)


def _request(data: bytes) -> bytes:
    claim = claim_in(data)
    return encode_request(parse_request(data)) if claim is None else encode_claim(claim)


def _state(vector: Vector) -> bytes:
    data = value(vector)
    return encode_hot(decode_hot(data)) if vector["part"] == "hot" else encode_cold(decode_cold(data))


AGAIN: dict[str, Callable[[Vector], bytes]] = {
    "control": lambda vector: _request(value(vector)),
    "grants": lambda vector: encode_answer(decode_answer(value(vector))),
    "positions": lambda vector: encode_saved(decode_saved(value(vector))),
    "state": _state,
    "domain": lambda vector: DomainRecord.decode(value(vector).decode(), "here").encode().encode(),
    "ends": lambda vector: written(BatchEnd.decode(vector["content"], "here").encode(), is_spaced=True).encode(),
}


@pytest.mark.parametrize("name", sorted(AGAIN))
def test_what_is_read_is_written_alike(name: str) -> None:
    for vector in vectors(name):
        assert AGAIN[name](vector) == value(vector), vector["name"]


# --- whatever the program writes --------------------------------------------------------------------------------------

topics = st.sampled_from(["T", "X", '"\\\n\x7f', "été", "😀", "a" * 200])
histories: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(topics.map(Event), topics.map(Event), st.builds(change, st.sampled_from("rs"), st.sets(topics))),
    min_size=1,
    max_size=40,
)


def read_whole(batch: StampedBatch, max_part_bytes: int = 600_000) -> Any:
    return join_parts([read_part(record.value) for record in encode_stamps(batch, max_part_bytes=max_part_bytes)])


@settings(max_examples=60)
@given(items=histories, m=st.sampled_from([1, 2]), limit=st.sampled_from([1, 500, 600_000]))
def test_whatever_stamps_the_engine_makes_are_read_by_the_page(items: list[Item], m: int, limit: int) -> None:
    middle = len(items) // 2
    rows = rows_of(items)
    _, effects = run([part for part in (rows[:middle], rows[middle:]) if part], configs(partitions=2, m=m))
    for batch in [one for done in effects for one in done.stamps]:
        found = read_whole(batch, limit)
        assert plain(found) == plain(stamps_content(batch))
        assert digest_of(found) == batch.digest


@st.composite
def wild_stamps(draw: st.DrawFn) -> StampedBatch:
    """Numbers of any size, which no engine would give. Rows are in order of topic and g, entries in order of topics."""
    count = st.integers(0, 2**62 - 1)
    ids = sorted(draw(st.sets(st.integers(0, 999_999), min_size=1, max_size=4)))
    sources = draw(st.lists(st.tuples(names, names, st.integers(0, 2**31 - 1)), min_size=1, max_size=3, unique=True))
    positions = iter(sorted(draw(st.sets(st.integers(1, 2**62 - 1), min_size=8, max_size=8)), key=hash))
    rows = []
    for topic in ids:
        n = draw(st.integers(1, 2**61))
        for g in sorted(next(positions) for _ in range(draw(st.integers(0, 2)))):
            peers = sorted(draw(st.sets(st.sampled_from(ids))) - {topic})
            row: Vector = {"topic": topic, "n": n, "g": g, "source": draw(st.integers(0, len(sources) - 1))}
            more = {"offset": draw(count), "crc": draw(st.integers(0, 2**32 - 1)), "keyframe": draw(st.booleans())}
            rows.append(row | more | {"entries": [[peer, draw(count)] for peer in peers]})
            n += 1
    used = {row["topic"] for row in rows} | {entry[0] for row in rows for entry in row["entries"]}
    scalars = ("incarnation", "batch", "time_ms", "cut", "g", "control_g")
    return stamps_of(
        {
            **{name: draw(count) for name in scalars},
            "domain": draw(names),
            "partition": 3,
            "partitions": 9,
            "min_subscriptions": 1,
            "previous_digest": draw(names),
            "digest": "",
            "sources": [[*source, draw(count)] for source in sources],
            "names": {str(topic): draw(names) for topic in ids if topic in used},
            "rows": rows,
        }
    ).sealed()


@given(batch=wild_stamps(), limit=st.sampled_from([1, 600_000]))
def test_whatever_numbers_stamps_have_they_are_read_by_the_page(batch: StampedBatch, limit: int) -> None:
    found = read_whole(batch, limit)
    assert plain(found) == plain(stamps_content(batch))
    assert digest_of(found) == batch.digest


@settings(max_examples=60)
@given(run=runs(), key_every=st.integers(1, 4))
def test_whatever_cuts_there_are_they_are_read_by_the_page(run: list[Cut], key_every: int) -> None:
    encoder, before = CutEncoder(key_every=key_every), None
    for one in run:
        before = read_cut(encoder.encode(one).value, before)
        assert plain(before) == plain(cut_content(one))


grants = st.fixed_dictionaries(
    {
        "v": st.just(2),
        "kind": st.just("grant"),
        **dict.fromkeys(("id", "nonce", "topic_by"), names),
        **{
            name: st.integers(0, 2**63 - 1) for name in ("g", "offset", "generation", "batch", "incarnation", "lease_s")
        },
        "stamps_partitions": st.integers(1, 1024),
        "min_subscriptions": st.sampled_from([1, 2]),
        "continuous": st.booleans(),
        "clock": st.dictionaries(names, st.integers(0, 2**63 - 1), max_size=4),
        "next_offsets": st.lists(
            st.tuples(names, names, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)).map(list),
            max_size=3,
            unique_by=lambda source: tuple(source[:3]),
        ).map(sorted),
        "stamps_ends": st.dictionaries(st.integers(0, 1023).map(str), st.integers(0, 2**63 - 1), max_size=3),
    }
)


@given(grant=grants, data=st.data())
def test_whatever_grants_there_are_they_are_read_by_the_page(grant: dict[str, Any], data: st.DataObject) -> None:
    known = sorted(grant["clock"])
    middle = data.draw(st.integers(0, len(known)))
    ids = st.lists(st.integers(0, 999_999), unique=True, min_size=len(known), max_size=len(known))
    content = {
        **grant,
        "topics": known[:middle],
        "former": known[middle:],
        "ids": dict(zip(known, data.draw(ids), strict=True)),
    }
    bytes_ = written(in_order(content), is_utf8=True).encode()
    assert encode_answer(decode_answer(bytes_)) == bytes_
    assert json.loads(bytes_) == content


@given(name=names, partitions=st.integers(1, 1024))
def test_the_partition_of_a_name_is_that_of_the_page(name: str, partitions: int) -> None:
    assert partition_of(name, partitions) == stamps_partition(name, partitions)


@given(columns=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9), max_size=4))
def test_columns_are_those_of_the_page(columns: list[list[int]]) -> None:
    arrays = [np.array(column, dtype=np.int64) for column in columns]
    widths = [width_of(array) for array in arrays]
    data = b"".join(to_planes(array, width) for array, width in zip(arrays, widths, strict=True))
    found = columns_of(data, {str(at): len(column) for at, column in enumerate(columns)}, widths)
    assert list(found.values()) == columns


@given(value=st.recursive(st.one_of(st.text(), st.integers(), st.booleans(), st.none()), st.lists, max_leaves=9))
def test_json_is_spelt_as_the_page_says(value: Any) -> None:
    """By the library that the program writes with."""
    assert written(value) == json.dumps(value, separators=(",", ":"))
    assert written(value, is_spaced=True) == json.dumps(value)
    assert written(value, is_utf8=True) == json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def test_the_readers_hash_is_the_usual_one() -> None:
    assert blake2b(b"abc", 8).hex() == "d8bb14d833d59559"
