"""Small tables of this machine, read without Spark: opening one with it costs several seconds of processor time."""

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.dataset import ParquetReadOptions

from totalorder.sinks import pieces
from totalorder.sinks.decode import SCHEMAS

SMALL_BYTES = 4_000_000
"""Most bytes that the files of a small table have: a few hundred thousand rows, which Spark takes in one piece."""
_BATCH_ROWS = 256
# Files that an older version wrote have times of 96 bits, which are nanoseconds unless one asks.
_PARQUET = ParquetReadOptions(coerce_int96_timestamp_unit="us")


def read_small(root: str, name: str) -> pa.Table | None:
    """All rows of a table; None where it is large, behind a URI, or what only Spark can read or refuse."""
    if "://" in root or "%" in root:  # of "a%20b" the rows would be taken from "a b"
        return None
    try:
        table = DeltaTable(f"{root.rstrip('/')}/{name}")
        sizes = pa.table(table.get_add_actions(flatten=True)).column("size_bytes")
        if (pc.sum(sizes).as_py() or 0) > SMALL_BYTES:
            return None
        rows = _rows(table.to_pyarrow_dataset(parquet_read_options=_PARQUET))
        return rows.cast(SCHEMAS[name]) if rows is not None else None
    except (DeltaError, pa.ArrowException, OSError, ValueError):
        return None


def _rows(dataset: Any) -> pa.Table | None:
    """All rows; None where they have more bytes than may be in memory at once, since values may pack very well."""
    batches, held = [], 0
    for batch in dataset.to_batches(batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1):
        held += batch.nbytes
        if held > pieces.AT_ONCE_BYTES:
            return None
        batches.append(batch)
    return pa.Table.from_batches(batches, schema=dataset.schema)
