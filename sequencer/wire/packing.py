"""A small container for state bytes: magic, version, JSON header, integer arrays, checksum; nothing executable."""

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from totalorder.errors import StateError
from totalorder.sequencer.wire.budget import affordable

_HEAD = struct.Struct("<4sHI")
_TAIL = struct.Struct("<I")
_REMEDY = "Restore the checkpoint from a copy; never delete single files in it"


def pack(magic: bytes, version: int, header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[np.int64]]) -> bytes:
    """Bytes of a header and of named int64 arrays; equal content gives equal bytes."""
    sizes = {name: len(array) for name, array in arrays.items()}
    text = json.dumps({"header": header, "arrays": sizes}, separators=(",", ":")).encode()
    body = b"".join(np.ascontiguousarray(array, dtype="<i8").tobytes() for array in arrays.values())
    content = _HEAD.pack(magic, version, len(text)) + text + body
    return content + _TAIL.pack(zlib.crc32(content))


def unpack(
    magic: bytes, version: int, data: bytes, what: str, fields: Set[str], most_units: int
) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.int64]]]:
    """Header, which has these fields, and arrays of packed bytes; StateError when damaged, of another kind, or of
    another version, or when the header has more values than `most_units` (budget.py).
    """
    if len(data) < _HEAD.size + _TAIL.size:
        raise StateError(f"the {what} is cut short ({len(data)} bytes)", remedy=_REMEDY)
    found_magic, found_version, length = _HEAD.unpack_from(data)
    if found_magic != magic:
        raise StateError(f"the {what} does not begin as it must", remedy=_REMEDY)
    if found_version != version:
        raise StateError(
            f"the {what} has version {found_version}; this program reads version {version}",
            remedy="Run the release that wrote it, or one whose CHANGELOG says that it converts this version",
        )
    if zlib.crc32(data[: -_TAIL.size]) != _TAIL.unpack_from(data, len(data) - _TAIL.size)[0]:
        raise StateError(f"the {what} is damaged (checksum)", remedy=_REMEDY)
    with readable(what):
        text = data[_HEAD.size : _HEAD.size + length]
        if not affordable(text, most_units):
            raise ValueError("it has more values than a state may have")
        described = json.loads(text)
        if odd := described["header"].keys() ^ fields:
            raise ValueError(f"fields are missing or unknown: {', '.join(sorted(odd))}")
        arrays, at = {}, _HEAD.size + length
        for name, size in described["arrays"].items():
            if type(size) is not int or not 0 <= size <= (len(data) - at) // 8:
                raise ValueError(f"array {name} does not fit")
            arrays[name] = np.frombuffer(data, dtype="<i8", count=size, offset=at).astype(np.int64)
            at += 8 * size
        return described["header"], arrays


@contextmanager
def readable(what: str) -> Iterator[None]:
    """A block that reads the content of packed bytes: StateError for what was never packed, checksum or not."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise StateError(f"the {what} is damaged ({error!r:.200})", remedy=_REMEDY) from None
