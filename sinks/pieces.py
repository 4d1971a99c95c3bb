"""How much is in memory at once: what Spark is given, and what it gives back, is cut by its bytes. Pure.

Rows may be of any size, and Java, which has some of them several times over at once, ends when its memory does.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt

AT_ONCE_BYTES = 64_000_000
"""Most bytes that one collect or one append takes; what is larger than that by itself goes alone."""

T = TypeVar("T")


def runs(sizes: npt.NDArray[np.int64], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Cuts rows of these sizes, in their order, into runs (first, end) of at most so many bytes."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + most_bytes, side="right")))
        yield first, end
        first = end


def chunks(items: Iterable[T], size: Callable[[T], int], most_bytes: int) -> Iterator[list[T]]:
    """Puts items together; a chunk ends with the item that brings it to `most_bytes`."""
    chunk: list[T] = []
    held = 0
    for item in items:
        chunk.append(item)
        held += size(item)
        if held >= most_bytes:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
