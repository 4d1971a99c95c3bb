"""What a process published or delivered, in order, in a file of fixed rows: the demo's own bookkeeping."""

import struct
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

ROW = np.dtype([("event", "<i8"), ("topic", "<i8"), ("g", "<i8"), ("at_ms", "<i8"), ("again", "<i8")])
"""event: see `event_number`; topic: index of the airport in the run's list; g: position in π, 0 where unknown;
at_ms: wall clock; again: 1 where the delivery was flagged `redelivered`."""

_PACK = struct.Struct("<qqqqq")
assert _PACK.size == ROW.itemsize
_OFFSET_BITS = 48


def event_number(partition: int, offset: int) -> int:
    """One number for (index of the partition in `world.partitions()`, offset): the identity of a record."""
    return partition << _OFFSET_BITS | offset


class Journal:
    """Appends rows; what was added is in the file after `flush` or `close`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=1 << 16)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hand over what is left, and close the file."""
        self._file.close()

    def add(self, *, event: int, topic: int, g: int, at_ms: int, again: bool = False) -> None:
        """Append one row."""
        self._file.write(_PACK.pack(event, topic, g, at_ms, again))

    def flush(self) -> None:
        """Hand everything to the operating system: it then outlives this process."""
        self._file.flush()


def read_journal(path: Path) -> npt.NDArray[np.void]:
    """All whole rows of a file, with the fields of `ROW`; none if there is no file."""
    if not path.exists():
        return np.zeros(0, dtype=ROW)
    content = path.read_bytes()
    return np.frombuffer(content, dtype=ROW, count=len(content) // ROW.itemsize)
