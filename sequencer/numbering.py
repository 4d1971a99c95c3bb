"""Which small numbers occur in a column, without sorting it."""

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def present(*columns: Ints, size: int) -> Ints:
    """The numbers from 0 to `size` - 1 that occur in any of the columns, ascending."""
    occurs = np.zeros(size, dtype=np.bool_)
    for column in columns:
        occurs[column] = True
    return np.flatnonzero(occurs)


def numbered(column: Ints, *, size: int) -> tuple[Ints, Ints]:
    """The numbers that occur, ascending, and for each value of the column its place among them."""
    distinct = present(column, size=size)
    place = np.zeros(size, dtype=np.int64)
    place[distinct] = np.arange(len(distinct))
    return distinct, place[column]
