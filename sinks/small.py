"""Small tables of this machine, read without Spark: opening one with it costs several seconds of processor time."""

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow.dataset import ParquetReadOptions

from totalorder.sinks.decode import SCHEMAS

SMALL_BYTES = 4_000_000
"""Most bytes that the files of a small table have: a few hundred thousand rows, which Spark takes in one piece."""
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
        return table.to_pyarrow_dataset(parquet_read_options=_PARQUET).to_table().cast(SCHEMAS[name])
    except (DeltaError, pa.ArrowException, OSError, ValueError):
        return None
