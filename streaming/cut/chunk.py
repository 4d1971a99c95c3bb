"""Records packed as columns in one value: so Spark moves a few rows a batch, and shards take in arrays.

A row an event cost 8 of the 9.5 µs that a shard spent on it (docs/adr/0014). Packed: magic, version, rows, and the
directory's length; the directory, JSON; the columns; the control records' values. Of a large chunk each column is
stored as what its numbers exceed the least one by, in as few bytes each as that takes.
"""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from totalorder.errors import StateError
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES, MAX_PARTITION_NUMBER
from totalorder.sequencer.wire.stamps import Source

Ints = npt.NDArray[np.int64]
MAX_EVENTS = 65_536
"""Of one chunk; a larger range comes in several."""
COLUMNS = ("source", "offset", "timestamp_ms", "crc", "slice", "topic")

_HEAD = struct.Struct("<4sHII")
_MAGIC, _VERSION = b"TOCH", 1
_NARROW_FROM = 512
"""Rows: of fewer, to look for the narrowest form costs more than it saves."""
_WIDTHS = ((1 << 8, "<u1"), (1 << 16, "<u2"), (1 << 32, "<u4"))
_WIDE = "<i8"
_FORMS = {form: np.dtype(form).itemsize for form in (*(form for _, form in _WIDTHS), _WIDE)}


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Columns of equal length, one place for each Kafka record; rows of one source in order of offset.

    `source` counts in `sources`. `topic` counts in `names`, the pub/sub topics, and is
    -1 for control records and for events whose topic cannot be told; with topic_by = "topic", `names` is empty and
    `topic` is -1 everywhere: the Kafka topic is the name. `control` has the value of each control record by its place.
    `slice` is the number of the record's slice within the batch.
    """

    cut: int
    topic_order: tuple[str, ...]
    sources: tuple[Source, ...]
    names: tuple[str, ...]
    source: Ints
    offset: Ints
    timestamp_ms: Ints
    crc: Ints
    slice: Ints
    topic: Ints
    control: Mapping[int, bytes]

    def __len__(self) -> int:
        return len(self.offset)


# --- packing ----------------------------------------------------------------------------------------------------------


def encode(chunk: Chunk) -> bytes:
    """The chunk as one value; equal chunks give equal bytes."""
    pack = _narrow if len(chunk) >= _NARROW_FROM else _plain
    columns = [pack(getattr(chunk, name)) for name in COLUMNS]
    values = sorted(chunk.control.items())
    directory = {
        "cut": chunk.cut,
        "order": chunk.topic_order,
        "sources": chunk.sources,
        "names": chunk.names,
        "columns": [(form, least) for form, least, _ in columns],
        "control": [(place, len(value)) for place, value in values],
    }
    text = json.dumps(directory, separators=(",", ":")).encode()
    head = _HEAD.pack(_MAGIC, _VERSION, len(chunk), len(text))
    return b"".join([head, text, *(body for _, _, body in columns), *(value for _, value in values)])


def _plain(column: Ints) -> tuple[str, int, bytes]:
    return _WIDE, 0, column.astype(_WIDE, copy=False).tobytes()


def _narrow(column: Ints) -> tuple[str, int, bytes]:
    least = int(column.min())
    span = int(column.max()) - least
    for limit, form in _WIDTHS:
        if span < limit:
            return form, least, (column - least).astype(form).tobytes()
    return _plain(column)


# --- unpacking --------------------------------------------------------------------------------------------------------


def decode(data: bytes) -> Chunk:
    """What `encode` packed; StateError for anything else, and for columns that contradict each other."""
    try:
        chunk = _unpacked(data)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, struct.error) as error:
        raise _damaged(f"{type(error).__name__}: {error}") from error
    _require_sense(chunk)
    return chunk


def _unpacked(data: bytes) -> Chunk:
    magic, version, rows, length = _HEAD.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        raise _damaged(f"it begins with {magic!r}, version {version}")
    at = _HEAD.size + length
    directory = json.loads(data[_HEAD.size : at])
    columns, at = _columns(data, [(_form(form), least) for form, least in directory["columns"]], rows, at)
    control: dict[int, bytes] = {}
    for place, size in directory["control"]:
        control[place], at = data[at : at + _size(size)], at + size
    if at != len(data):
        raise _damaged(f"it has {len(data)} bytes, and should have {at}")
    sources = tuple(map(Source._make, directory["sources"]))
    order, names = tuple(directory["order"]), tuple(directory["names"])
    named = dict(zip(COLUMNS, columns, strict=True))
    return Chunk(cut=directory["cut"], topic_order=order, sources=sources, names=names, control=control, **named)


def _columns(data: bytes, forms: list[tuple[str, int]], rows: int, at: int) -> tuple[Ints, int]:
    """The columns as rows of one array, which a small chunk takes as a whole; the place behind them."""
    if all(form == _WIDE for form, _ in forms):
        count = rows * len(forms)
        table = np.frombuffer(data, dtype=_WIDE, count=count, offset=at).astype(np.int64).reshape(len(forms), rows)
        return table, at + count * _FORMS[_WIDE]
    if rows * sum(_FORMS[form] for form, _ in forms) > len(data) - at:  # before memory is taken for them
        raise ValueError(f"{rows} rows do not fit into {len(data)} bytes")
    table = np.empty((len(forms), rows), dtype=np.int64)
    for place, (form, least) in enumerate(forms):
        table[place] = np.frombuffer(data, dtype=form, count=rows, offset=at)
        table[place] += least
        at += rows * _FORMS[form]
    return table, at


def _form(form: object) -> str:
    if not isinstance(form, str) or form not in _FORMS:
        raise _damaged(f"a column is stored as {form!r}")
    return form


def _size(size: object) -> int:
    if not isinstance(size, int) or not 0 <= size <= MAX_CONTROL_BYTES + 1:
        raise _damaged(f"a control record has {size!r} bytes")
    return size


def _require_sense(chunk: Chunk) -> None:
    texts = [*chunk.topic_order, *chunk.names, *(text for source in chunk.sources for text in source[:2])]
    numbers = [chunk.cut, *(partition for _, _, partition in chunk.sources)]
    if not all(type(text) is str for text in texts) or not all(type(number) is int for number in numbers):
        raise _damaged("its directory has other things than texts and numbers")
    if chunk.cut < 0 or not all(0 <= partition <= MAX_PARTITION_NUMBER for partition in numbers[1:]):
        raise _damaged("a number of a cut or partition is out of its range")
    if not all(type(place) is int and 0 <= place < len(chunk) for place in chunk.control):
        raise _damaged("a control record stands at no row")
    if len(chunk):
        _require_ranges(chunk)


def _require_ranges(chunk: Chunk) -> None:
    bounds = {
        "source": (0, len(chunk.sources)),
        "offset": (0, 1 << 63),
        "crc": (0, 1 << 32),
        "slice": (0, 1 << 31),
        "topic": (-1, len(chunk.names)),
    }
    table = np.stack([getattr(chunk, name) for name in bounds])
    for name, lowest, highest in zip(bounds, table.min(axis=1).tolist(), table.max(axis=1).tolist(), strict=True):
        least, end = bounds[name]
        if lowest < least or highest >= end:
            raise _damaged(f"a number of its column {name} is out of its range")
    if ((chunk.offset[1:] <= chunk.offset[:-1]) & (chunk.source[1:] == chunk.source[:-1])).any():
        raise _damaged("offsets of one source do not ascend")


def _damaged(reason: str) -> StateError:
    return StateError(f"what a task of the source has packed cannot be read: {reason}", remedy="Start the job again")
