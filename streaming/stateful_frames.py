"""A stateful group's rows as whole frames, where pyspark 4.2 takes Arrow batches apart row by row (docs/adr/0009).

pyspark's own way makes a tuple of every row and a frame of the tuples: two thirds of a large batch's time in Python.
Values here are texts, bytes, whole numbers without nulls, and lists of structs: so pyarrow's own conversions do, which
take a fraction of the time for a few rows.
"""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.pandas.serializers import (
    ArrowStreamPandasSerializer,
    ArrowStreamSerializer,
    TransformWithStateInPandasSerializer,
)
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode as Mode
from pyspark.sql.types import StructType

Key = tuple[Any, ...]


def install() -> None:
    """Gives this process's workers the whole frames."""
    serializer: Any = TransformWithStateInPandasSerializer
    serializer.load_stream, serializer.dump_stream = load_stream, dump_stream


def load_stream(self: Any, stream: Any) -> Iterator[tuple[Mode, Key | None, Iterator[tuple[Key, pd.DataFrame]] | None]]:
    """What the serializer's own `load_stream` yields, with the same rows in the same order."""
    batches = super(ArrowStreamPandasSerializer, self).load_stream(stream)
    for key, frames in groupby(_frames(self, batches), key=lambda part: part[0]):
        yield Mode.PROCESS_DATA, key, frames
    yield Mode.PROCESS_TIMER, None, None
    yield Mode.COMPLETE, None, None


def _frames(serializer: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[Key, pd.DataFrame]]:
    """Each Arrow batch, cut where the grouping key changes; rows of one key follow each other."""
    for batch in batches:
        columns = [batch.column(place).to_numpy(zero_copy_only=False) for place in serializer.key_offsets]
        changes = 1 + np.flatnonzero(np.logical_or.reduce([keys[1:] != keys[:-1] for keys in columns]))
        frame = batch.to_pandas(use_threads=False)
        for start, end in pairwise([*([0] if len(frame) else []), *changes.tolist(), len(frame)]):
            part = frame if end - start == len(frame) else frame.iloc[start:end]
            yield tuple(keys[start] for keys in columns), part


def dump_stream(self: Any, iterator: Iterator[Any], stream: Any) -> None:
    """Writes what the serializer's own `dump_stream` writes."""
    batches = (_batch_of(frame, kind) for ((frames, kind), *_) in iterator for frame in frames)
    ArrowStreamSerializer.dump_stream(self, self._write_stream_start(batches, stream), stream)


def _batch_of(frame: pd.DataFrame, kind: StructType) -> pa.RecordBatch:
    """A frame's rows as the one column that Spark expects of them."""
    fields = list(to_arrow_type(kind))
    columns = [pa.array(frame[field.name].tolist(), field.type) for field in fields]
    return pa.record_batch([pa.StructArray.from_arrays(columns, fields=fields)], names=["_0"])
