"""Stamps that are owed, as columns: what a batch of stamps holds for one subscription."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.wire.numbering import sorted_order, spans

Ints = npt.NDArray[np.int64]
_FEW = 16


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Row r is column r of `table`; its gates are the columns `starts[r]` to before `starts[r + 1]` of `gates`.

    `table` has one line each for topic id, n, g, number of the event partition, offset, crc32 and number of the batch's
    mark; `gates` one for topic id and one for n: the entries for topics of the set in force at the row. One table, so
    that a part, or many parts together, are few calls.
    """

    table: Ints
    starts: Ints
    gates: Ints

    @classmethod
    def empty(cls) -> "Rows":
        """No rows."""
        return cls(np.zeros((7, 0), np.int64), np.zeros(1, np.int64), np.zeros((2, 0), np.int64))

    @classmethod
    def joined(cls, parts: Sequence["Rows"]) -> "Rows":
        """The rows of all parts, one part after another."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.empty()
        gates = [part.gates[:, part.starts[0] : part.starts[-1]] for part in parts]
        shifts = np.cumsum([0] + [each.shape[1] for each in gates])
        starts = [part.starts[:-1] - part.starts[0] + shift for part, shift in zip(parts, shifts[:-1], strict=True)]
        return cls(
            np.concatenate([part.table for part in parts], axis=1),
            np.concatenate([*starts, shifts[-1:]]),
            np.concatenate(gates, axis=1),
        )

    def __len__(self) -> int:
        return int(self.table.shape[1])

    def _line(self, number: int) -> Ints:
        line: Ints = self.table[number]
        return line

    @property
    def topic(self) -> Ints:
        """Topic ids."""
        return self._line(0)

    @property
    def n(self) -> Ints:
        """Numbers within the topics."""
        return self._line(1)

    @property
    def g(self) -> Ints:
        """Positions of π."""
        return self._line(2)

    @property
    def source(self) -> Ints:
        """Numbers of event partitions, as Events gives them."""
        return self._line(3)

    @property
    def offset(self) -> Ints:
        """Offsets there."""
        return self._line(4)

    @property
    def crc(self) -> Ints:
        """crc32 of the values."""
        return self._line(5)

    @property
    def mark(self) -> Ints:
        """Numbers of the marks of the batches that they come from."""
        return self._line(6)

    def part(self, start: int, end: int) -> "Rows":
        """The rows from `start` to before `end`, or the last one; nothing is copied."""
        return Rows(self.table[:, start:end], self.starts[start : end + 1], self.gates)

    def take(self, at: Ints) -> "Rows":
        """The rows at these places."""
        begins = self.starts[:-1][at]
        lengths = self.starts[1:][at] - begins
        starts = np.zeros(len(at) + 1, np.int64)
        np.cumsum(lengths, out=starts[1:])
        return Rows(self.table[:, at], starts, self.gates[:, spans(begins, lengths)])

    def each_gates(self) -> Iterator[list[tuple[int, int]]]:
        """The gates of each row as (topic id, n)."""
        first = int(self.starts[0])
        topics, ns = self.gates[:, first : self.starts[-1]].tolist()
        gates = list(zip(topics, ns, strict=True))
        for start, end in pairwise((self.starts - first).tolist()):
            yield gates[start:end]


def groups(column: Ints) -> Iterator[tuple[int, Ints | slice]]:
    """Each number of a column that has one, with its places in their order."""
    if len(column) <= _FEW:
        yield from _few_groups(column.tolist())
        return
    if bool((column == column[0]).all()):
        yield int(column[0]), slice(None)
        return
    order = sorted_order(column, size=int(column.max()) + 1)
    ordered = column[order]
    bounds = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for start, end in pairwise([0, *bounds.tolist(), len(column)]):
        yield int(ordered[start]), order[start:end]


def _few_groups(column: list[int]) -> Iterator[tuple[int, Ints | slice]]:
    """Of a few numbers, for which numpy's calls would take longer than a loop."""
    places: dict[int, list[int]] = {}
    for at, number in enumerate(column):
        places.setdefault(number, []).append(at)
    for number, found in places.items():
        yield number, slice(None) if len(places) == 1 else np.array(found)


def among(column: Ints, numbers: Collection[int]) -> npt.NDArray[np.bool_]:
    """Which values of a column are among some numbers."""
    if len(column) <= _FEW:
        return np.array([number in numbers for number in column.tolist()], dtype=np.bool_)
    if bool((column == column[0]).all()):
        return np.full(len(column), int(column[0]) in numbers)
    return np.isin(column, np.fromiter(numbers, dtype=np.int64, count=len(numbers)))


def counts(column: Ints) -> Iterator[tuple[int, int]]:
    """Each number of a column, and how often it is there."""
    for number, at in groups(column):
        yield number, len(column[at])
