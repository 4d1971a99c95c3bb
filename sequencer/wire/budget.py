"""What text from outside may cost: JSON whose values are counted before any of them is made.

A list takes three bytes of text and seventy of memory, so a limit on bytes alone bounds nothing. The zstd frames of
stamps and cuts are bounded by their reader (codec.py, `unpacked`), which asks here for the directory.
"""

import json
from typing import Any

import numpy as np

from totalorder.sequencer.wire.limits import MAX_JSON_UNITS

_CHUNK_BYTES = 1 << 20
_CONTAINER_UNITS = 4
"""A list or an object takes as much memory as so many numbers."""
_QUOTE, _COMMA, _LIST, _OBJECT = (ord(char) for char in '",[{')


def parse_json(text: bytes, most_bytes: int) -> Any:
    """The value of a JSON text in UTF-8. ValueError for one that is none, is nested too deep, has more than
    `most_bytes` or more values than anything of ours has, which is found out before memory is taken for them.
    """
    if len(text) > most_bytes:
        raise ValueError(f"{len(text)} bytes of JSON, and may have {most_bytes}")
    if not affordable(text):
        raise ValueError(f"its JSON has more values than {MAX_JSON_UNITS} numbers' worth")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("its JSON is nested too deep") from None


def affordable(text: bytes, most_units: int | None = None) -> bool:
    """Whether a JSON text has no more values than may be made of it, each container counted as several.

    `most_units`: None for MAX_JSON_UNITS.
    """
    most = MAX_JSON_UNITS if most_units is None else most_units
    # Inside of names these characters mean nothing, but nearly always this tells already.
    if text.count(b",") + _CONTAINER_UNITS * (text.count(b"[") + text.count(b"{")) <= most:
        return True
    units, inside = 0, False
    # A pair of characters that escapes something may lie across the border of two chunks, so it goes first.
    plain = text.replace(rb"\\", b"").replace(rb"\"", b"")
    for at in range(0, len(plain), _CHUNK_BYTES):
        chunk = np.frombuffer(plain, dtype=np.uint8, count=min(_CHUNK_BYTES, len(plain) - at), offset=at)
        in_name = np.logical_xor.accumulate(chunk == _QUOTE) ^ inside
        outside = chunk[~in_name]
        inside = bool(in_name[-1])
        containers = np.count_nonzero(outside == _LIST) + np.count_nonzero(outside == _OBJECT)
        units += int(np.count_nonzero(outside == _COMMA)) + _CONTAINER_UNITS * int(containers)
        if units > most:
            return False
    return True
