"""Columns of integers as byte planes: all lowest bytes first, then all second ones, and so on, which zstd packs well.

A column takes as many bytes a value as its largest needs, in two's complement; the reader knows count and width.
"""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_WORD = 8


def width_of(column: Ints) -> int:
    """Bytes that each value of the column needs: 1 to 8."""
    if not len(column):
        return 1
    low, high = int(column.min()), int(column.max())
    return max(1, -(-(max(high, ~low).bit_length() + 1) // 8))


def to_planes(column: Ints, width: int) -> bytes:
    """`width` planes of one byte a value."""
    values = np.ascontiguousarray(column, dtype="<i8")
    return values.view(np.uint8).reshape(-1, _WORD)[:, :width].T.tobytes()


def from_planes(data: memoryview, count: int, width: int) -> tuple[Ints, memoryview]:
    """The column that the data begin with, and what follows it; ValueError when they are too short."""
    if not 1 <= width <= _WORD or not 0 <= count * width <= len(data):
        raise ValueError("a column does not fit its data")
    planes = np.frombuffer(data[: count * width], dtype=np.uint8).reshape(width, count)
    column = planes[-1].view(np.int8).astype(np.int64)
    for plane in planes[-2::-1]:
        column <<= 8
        column |= plane
    return column, data[count * width :]
