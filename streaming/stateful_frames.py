"""A stateful group's rows as whole frames, where pyspark 4.2 takes Arrow batches apart row by row (docs/adr/0009).

pyspark's own way makes a tuple of every row and a frame of the tuples: two thirds of a large batch's time in Python.
"""

from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.conversion import ArrowBatchTransformer
from pyspark.sql.pandas.serializers import ArrowStreamPandasSerializer, TransformWithStateInPandasSerializer
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode as Mode

Key = tuple[Any, ...]


def install() -> None:
    """Gives this process's workers the whole frames."""
    serializer: Any = TransformWithStateInPandasSerializer
    serializer.load_stream = load_stream


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
        columns = ArrowBatchTransformer.to_pandas(
            batch,
            timezone=serializer._timezone,
            schema=serializer._input_type,
            struct_in_pandas=serializer._struct_in_pandas,
            ndarray_as_list=serializer._ndarray_as_list,
            prefer_int_ext_dtype=serializer._prefer_int_ext_dtype,
            df_for_struct=serializer._df_for_struct,
        )
        # Unlike pd.concat this leaves every column where it is.
        frame = pd.DataFrame(dict(enumerate(columns)), copy=False).set_axis([each.name for each in columns], axis=1)
        keys = frame.iloc[:, serializer.key_offsets].to_numpy()
        changes = 1 + np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1))
        for start, end in pairwise([*([0] if len(frame) else []), *changes.tolist(), len(frame)]):
            yield tuple(keys[start]), frame.iloc[start:end]
