"""Rows that come once more: the same row is dropped, another row under the same key is a contradiction. Pure."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from totalorder.errors import Contradiction
from totalorder.sinks.schema import TABLES


def unseen(table: str, known: pa.Table, incoming: pa.Table) -> pa.Table:
    """Those rows of `incoming` whose key is not in `known`, of each key the first.

    Contradiction when two rows of one key differ in more than how they arrived (`Table.arrival`): `known` need not have
    the columns of that.
    """
    described = TABLES[table]
    compared = incoming.select(described.compared)
    both = pa.concat_tables([known.select(described.compared).cast(compared.schema), compared])
    order = pc.sort_indices(both, sort_keys=[(name, "ascending") for name in described.key])
    rows = both.take(order)
    repeated = np.logical_and.reduce([_same_as_before(rows.column(name)) for name in described.key])
    for name in rows.column_names:
        if (differing := np.flatnonzero(repeated & ~_same_as_before(rows.column(name)))).size:
            raise _contradiction(table, rows, name, int(differing[0]))
    positions = order.to_numpy()[~repeated]
    return incoming.take(pa.array(np.sort(positions[positions >= len(known)]) - len(known)))


def _same_as_before(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Whether each value equals the one in the row before; false for the first."""
    values = _flat(column)
    here, before = values[1:], values[:-1]
    both_null = pc.and_(pc.is_null(here), pc.is_null(before))
    same = pc.or_(pc.fill_null(pc.equal(here, before), False), both_null)
    return np.concatenate([np.zeros(min(1, len(values)), dtype=np.bool_), same.to_numpy(zero_copy_only=False)])


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """Lists and maps as texts, which Arrow can compare; repetitions are few."""
    if pa.types.is_nested(column.type):
        return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())
    return column.combine_chunks()


def _contradiction(table: str, rows: pa.Table, name: str, at: int) -> Contradiction:
    key = {part: rows.column(part)[at].as_py() for part in TABLES[table].key}
    first, second = (_short(rows.column(name)[row].as_py()) for row in (at - 1, at))
    place = ", ".join(f"{part} {value}" for part, value in key.items())
    return Contradiction(
        f"{table}: what Kafka has for {place} differs in {name}: {first} before, {second} now",
        remedy="Two wrote to the domain's topics, or one wrote what it must not; the tables keep what came first",
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
