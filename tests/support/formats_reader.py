"""A reader of stamps, grants, cuts and the rest as docs/formats.md describes them: it imports nothing of totalorder.

Written from that page alone, slowly and in plain integers, so that the page is shown to say enough. It trusts its
input: what a reader must refuse is tested elsewhere.
"""

import hashlib
import hmac
import json
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import zstandard

Object = dict[str, Any]
MOST_UNPACKED = 64_000_000


# --- common to all ----------------------------------------------------------------------------------------------------


def blake2b(data: bytes, size: int) -> bytes:
    return hashlib.blake2b(data, digest_size=size).digest()


def text_of(text: str, *, is_utf8: bool) -> str:
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\b": "\\b"}
    found = []
    for character in text:
        code = ord(character)
        if character in short:
            found.append(short[character])
        elif 0x20 <= code <= 0x7E or (is_utf8 and code >= 0x20):
            found.append(character)
        elif code <= 0xFFFF:
            found.append(f"\\u{code:04x}")
        else:
            high, low = divmod(code - 0x10000, 0x400)
            found.append(f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}")
    return '"' + "".join(found) + '"'


def written(value: Any, *, is_spaced: bool = False, is_utf8: bool = False) -> str:
    """JSON: compact or spaced, escaped or as UTF-8."""
    comma, colon = (", ", ": ") if is_spaced else (",", ":")

    def again(value: Any) -> str:
        return written(value, is_spaced=is_spaced, is_utf8=is_utf8)

    def pair(one: tuple[str, Any]) -> str:
        return again(one[0]) + colon + again(one[1])

    if isinstance(value, dict):
        return "{" + comma.join(map(pair, value.items())) + "}"
    if isinstance(value, list):
        return "[" + comma.join(map(again, value)) + "]"
    return text_of(value, is_utf8=is_utf8) if isinstance(value, str) else json.dumps(value)


def i64(values: Iterable[int]) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=True) for value in values)


def partition_of(name: str, partitions: int) -> int:
    return int.from_bytes(blake2b(name.encode(), 8), "big") % partitions


def unframed(value: bytes) -> bytes:
    """The content of a zstd frame."""
    with zstandard.ZstdDecompressor().stream_reader(value) as stream:
        return stream.read(MOST_UNPACKED)


def unpacked(value: bytes) -> tuple[Any, bytes]:
    """Head, and the bytes of the columns."""
    raw = unframed(value)
    (length,) = struct.unpack("<I", raw[:4])
    return json.loads(raw[4 : 4 + length]), raw[4 + length :]


def columns_of(data: bytes, counts: Mapping[str, int], widths: Sequence[int]) -> dict[str, list[int]]:
    found, at = {}, 0
    for (name, count), width in zip(counts.items(), widths, strict=True):
        planes = [data[at + plane * count : at + (plane + 1) * count] for plane in range(width)]
        found[name] = [int.from_bytes(bytes(each), "little", signed=True) for each in zip(*planes, strict=True)]
        at += width * count
    assert at == len(data), "something is behind the last column"
    return found


def sums(steps: Iterable[int], before: int = 0) -> list[int]:
    found = []
    for step in steps:
        before += step
        found.append(before)
    return found


# --- stamps -----------------------------------------------------------------------------------------------------------

_FRAME = (
    *("partition", "partitions", "incarnation", "batch", "time_ms", "cut", "min_subscriptions", "g", "control_g"),
    *("domain", "previous_digest", "digest"),
)


def read_part(value: bytes) -> Object:
    """One part of a batch: the fields of its head, `sources`, `names` by topic id, and `rows`."""
    head, data = unpacked(value)
    rows, entries, sources = head["rows"], head["entries"], head["sources"]
    counts = dict.fromkeys(("source_topic", "source_partition", "end"), sources)
    counts |= dict.fromkeys(("topic", "source", "offset", "g", "crc", "keyframe", "entries"), rows)
    counts |= dict.fromkeys(("entry_topic", "entry_n"), entries)
    columns = columns_of(data, counts, head["widths"])
    ids = sums(head["ids"])
    places = zip(sums(columns["source_topic"]), sums(columns["source_partition"]), columns["end"], strict=True)
    return {
        **{name: head[name] for name in _FRAME},
        "sources": [[*head["kafka_topics"][topic], partition, end] for topic, partition, end in places],
        "names": dict(zip(ids, head["names"], strict=True)),
        "rows": _rows(columns, head, ids),
    }


def _rows(columns: Mapping[str, list[int]], head: Object, ids: Sequence[int]) -> list[Object]:
    offset, g = head["first"]
    rows = [
        {
            "topic": ids[place],
            "n": 0,
            "g": at_g,
            "source": source,
            "offset": at,
            "crc": crc % 2**32,
            "keyframe": keyframe == 1,
            "entries": [],
        }
        for place, source, at, at_g, crc, keyframe in zip(
            sums(columns["topic"]),
            columns["source"],
            sums(columns["offset"], offset),
            sums(columns["g"], g),
            columns["crc"],
            columns["keyframe"],
            strict=True,
        )
    ]
    base, seen = dict(zip(ids, head["base"], strict=True)), dict.fromkeys(ids, 0)
    for row in rows:
        seen[row["topic"]] += 1
        row["n"] = base[row["topic"]] + seen[row["topic"]]
    mentions, at = [], 0
    for row, length in zip(rows, columns["entries"], strict=True):
        for place, step in zip(
            sums(columns["entry_topic"][at : at + length]), columns["entry_n"][at : at + length], strict=True
        ):
            entry = [ids[place], step]
            row["entries"].append(entry)
            mentions.append((row["g"], entry))
        at += length
    newest = dict(base)
    for _, entry in sorted(mentions, key=lambda mention: mention[0]):
        newest[entry[0]] += entry[1]
        entry[1] = newest[entry[0]]
    return rows


def join_parts(parts: Sequence[Object]) -> Object:
    """The batch; its parts are all there, in order."""
    assert all({**part, "rows": 0, "names": 0} == {**parts[0], "rows": 0, "names": 0} for part in parts)
    names = {topic: name for part in parts for topic, name in part["names"].items()}
    return {**parts[0], "names": dict(sorted(names.items())), "rows": [row for part in parts for row in part["rows"]]}


def digest_of(batch: Object) -> str:
    rows = batch["rows"]
    sources = [[source[:3] for source in batch["sources"]], [source[3] for source in batch["sources"]]]
    entries = [entry for row in rows for entry in row["entries"]]
    head = {name: batch[name] for name in ("domain", *_FRAME[:9])} | {
        "sources": blake2b(written(sources).encode(), 16).hex(),
        "names": [[topic, name] for topic, name in sorted(batch["names"].items())],
        "previous": batch["previous_digest"],
        "sizes": [len(rows), len(entries)],
    }
    content = written(head).encode()
    content += b"".join(i64(row[name] for row in rows) for name in ("topic", "n", "g", "source", "offset", "crc"))
    content += bytes(int(row["keyframe"]) for row in rows)
    content += i64([0, *sums(len(row["entries"]) for row in rows)])
    content += i64(topic for topic, _ in entries) + i64(n for _, n in entries)
    return blake2b(content, 16).hex()


def first_digest(domain: str, partition: int, owner: str) -> str:
    return blake2b(written([domain, partition, owner], is_spaced=True).encode(), 16).hex()


# --- cuts -------------------------------------------------------------------------------------------------------------


def read_cut(value: bytes, before: Object | None = None) -> Object:
    """A cut; one that is no key cut goes on from the one before."""
    head, data = unpacked(value)
    domain, incarnation, number, check, slices, advances, widths, *key = head
    counts = {"slices": slices, "place": advances, "count": advances}
    if key:
        counts = {"topic": key[0], "partition": key[0], "begin": key[0]} | counts
    columns = columns_of(data, counts, widths)
    if key:
        topics = [key[1][place] for place in sums(columns["topic"])]
        sources = [[*topic, part] for topic, part in zip(topics, sums(columns["partition"]), strict=True)]
        begins, order = columns["begin"], key[2]
    else:
        assert before is not None, "reading begins at a key cut"
        assert before["end_check"] == check, "it goes on from another cut"
        sources, begins, order = before["sources"], before["ends"], before["topic_order"]
    parts, at = [], 0
    ends = list(begins)
    for slice_, length in enumerate(columns["slices"]):
        places = sums(columns["place"][at : at + length])
        for place, count in zip(places, columns["count"][at : at + length], strict=True):
            parts.append([slice_, place, ends[place], ends[place] + count])
            ends[place] += count
        at += length
    table = blake2b(written([domain, sources, order], is_spaced=True).encode(), 8)
    assert check == blake2b(table + i64([number - 1, *begins]), 8).hex()
    return {
        "domain": domain,
        "incarnation": incarnation,
        "cut": number,
        "sources": sources,
        "topic_order": order,
        "begins": begins,
        "ends": ends,
        "slices": slices,
        "parts": parts,
        "end_check": blake2b(table + i64([number, *ends]), 8).hex(),
    }


# --- answers, positions, receipts, state ------------------------------------------------------------------------------


def in_order(value: Any) -> Any:
    """The same with the keys of all objects ascending."""
    if isinstance(value, dict):
        return {key: in_order(value[key]) for key in sorted(value)}
    return [in_order(one) for one in value] if isinstance(value, list) else value


def answer_key(answer: Object) -> str:
    kind = answer["kind"]
    if kind in ("grant", "ended"):
        return str(answer["id"])
    if kind == "renewed":
        return f"renew/{answer['id']}"
    if kind == "retired":
        return f"retired/{answer['topic']}/{answer['topic_id']}"
    if kind == "skipped":
        return f"skipped/{answer['offset']}"
    return f"reject/{answer['offset']}"


def read_receipts(value: bytes) -> Object:
    """The directory's fields, and `rows` with names and sources written out."""
    with pa.ipc.open_stream(unframed(value)) as stream:
        directory = json.loads(stream.schema.metadata[b"totalorder"])
        columns = stream.read_next_batch().to_pydict()
    for name in ("generation", "sequence", "g", "delivered_ms"):
        columns[name] = sums(columns[name])
    for name, group in (("offset", "source"), ("n", "topic")):
        reached: dict[int, int] = {}
        for row, of in enumerate(columns[group]):
            reached[of] = columns[name][row] = columns[name][row] + reached.get(of, 0)
    columns["topic"] = [directory["topics"][at] for at in columns["topic"]]
    columns["source"] = [directory["sources"][at] for at in columns["source"]]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {**{name: directory[name] for name in ("domain", "id", "nonce")}, "rows": rows}


def read_state(data: bytes) -> Object:
    """Magic, version, header and arrays of a part of the state."""
    magic, version, length = struct.unpack("<4sHI", data[:10])
    described = json.loads(data[10 : 10 + length])
    found, at = {}, 10 + length
    for name, count in described["arrays"].items():
        found[name] = list(struct.unpack(f"<{count}q", data[at : at + 8 * count]))
        at += 8 * count
    assert struct.unpack("<I", data[at:]) == (zlib.crc32(data[:at]),)
    return {"magic": magic.decode(), "version": version, "header": described["header"], "arrays": found}


def read_snapshot(parts: Sequence[bytes], digest: str) -> tuple[bytes, bytes]:
    """The hot and the cold part of a shard's state, from the values of its parts in order."""
    content = unframed(b"".join(parts))
    assert blake2b(content, 16).hex() == digest
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length], content[8 + length :]


def key_print(key: str, domain: str) -> str:
    """What a mark says of a control key."""
    return hmac.new(key.encode(), b"totalorder print\0" + domain.encode(), hashlib.sha256).hexdigest()
