"""Numbers in columns: which occur, their order, their differences, and spans of them."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
_SPARSE = 16
"""Where there are so many times more numbers than values, sorting these is less than going through all numbers."""


def present(*columns: Ints, size: int) -> Ints:
    """The numbers from 0 to `size` - 1 that occur in any of the columns, ascending."""
    if sum(map(len, columns)) * _SPARSE < size:
        return np.unique(np.concatenate(columns))
    occurs = np.zeros(size, dtype=np.bool_)
    for column in columns:
        occurs[column] = True
    return np.flatnonzero(occurs)


def numbered(column: Ints, *, size: int) -> tuple[Ints, Ints]:
    """The numbers that occur, ascending, and for each value of the column its place among them."""
    if len(column) * _SPARSE < size:
        return np.unique(column, return_inverse=True)
    distinct = present(column, size=size)
    place = np.zeros(size, dtype=np.int64)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[column]


def sorted_order(column: Ints, *, size: int) -> Ints:
    """The places of the column's values, numbers below `size`, by value; equal ones stay in order."""
    # numpy sorts 16-bit numbers by radix, in a fraction of the time.
    narrow = np.uint16 if size <= 1 << 16 else np.int64
    return np.argsort(column.astype(narrow), kind="stable")


def differences(column: Ints, before: int) -> Ints:
    """The difference of each value to the one before it, and of the first one to `before`."""
    found = np.empty_like(column)  # np.diff with `prepend` takes eight times as long for few values
    found[:1] = column[:1] - before
    np.subtract(column[1:], column[:-1], out=found[1:])
    return found


def spans(starts: Ints, lengths: Ints) -> Ints:
    """The numbers of all spans, one span after another: from its start on, as many as its length."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(lengths.sum(), dtype=np.int64)


def check_within(name: str, column: Ints, least: int, most: int | None = None) -> None:
    """ValueError where a number of the column is less than `least`, or more than `most`."""
    if len(column) and (column.min() < least or (most is not None and column.max() > most)):
        raise ValueError(f"{name} is out of range")
