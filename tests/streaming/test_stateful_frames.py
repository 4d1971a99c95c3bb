"""Whole frames against what pyspark's own serializer makes row by row."""

import io
from typing import Any

import pandas as pd
import pyarrow as pa
from hypothesis import given, settings, strategies as st
from pyspark.sql.pandas.serializers import TransformWithStateInPandasSerializer
from pyspark.sql.streaming.stateful_processor_util import TransformWithStateInPandasFuncMode as Mode

from totalorder.streaming.processor import OUTPUT
from totalorder.streaming.stateful_frames import dump_stream, load_stream

Loaded = list[tuple[Mode, tuple[Any, ...] | None, pd.DataFrame | None]]
OWN = TransformWithStateInPandasSerializer.load_stream
DUMPED = TransformWithStateInPandasSerializer.dump_stream
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=3)
ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-5, 5), st.binary(max_size=3), NAMES), max_size=12)


def serializer_of() -> Any:
    made: Any = TransformWithStateInPandasSerializer
    serializer = made(
        timezone="UTC",
        safecheck=True,
        assign_cols_by_name=True,
        prefer_int_ext_dtype=False,
        arrow_max_records_per_batch=3,
        arrow_max_bytes_per_batch=2**31 - 1,
        int_to_decimal_coercion_enabled=False,
    )
    serializer.key_offsets = [0]
    return serializer


def loaded(way: Any, batches: list[pa.RecordBatch]) -> Loaded:
    """Everything that a serializer yields from a stream of Arrow batches, the frames of a key put together."""
    serializer = serializer_of()
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    stream.seek(0)
    found: Loaded = []
    for mode, key, frames in way(serializer, stream):
        if frames is None:
            found.append((mode, key, None))
            continue
        parts = list(frames)
        assert {part[0] for part in parts} == {key}
        found.append((mode, key, pd.concat([part[1] for part in parts], ignore_index=True)))
    return found


def batch_of(rows: list[tuple[int, int, bytes, str]]) -> pa.RecordBatch:
    keys, numbers, values, names = zip(*rows, strict=True) if rows else ((), (), (), ())
    return pa.record_batch(
        {
            "shard_key": pa.array(keys, pa.int32()),
            "n": pa.array(numbers, pa.int64()),
            "v": pa.array(values, pa.binary()),
            "name": pa.array(names, pa.string()),
        }
    )


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=4))
def test_the_same_rows_in_the_same_order(parts: list[list[tuple[int, int, bytes, str]]]) -> None:
    """Keys are sorted, as Spark sorts them, and may go on from one Arrow batch into the next."""
    ordered = sorted((row for part in parts for row in part), key=lambda row: row[0])
    sizes = iter([len(part) for part in parts])
    batches, done = [], 0
    for size in sizes:
        batches.append(batch_of(ordered[done : done + size]))
        done += size
    expected, found = loaded(OWN, batches), loaded(load_stream, batches)
    assert [(mode, key) for mode, key, _ in found] == [(mode, key) for mode, key, _ in expected]
    for (_, _, mine), (_, _, theirs) in zip(found, expected, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            pd.testing.assert_frame_equal(mine, theirs, check_dtype=False)
            assert mine.to_dict("list") == theirs.to_dict("list")


def test_a_frame_for_each_arrow_batch_not_for_each_few_rows() -> None:
    batch = batch_of([(0, number, b"", "") for number in range(10)])
    stream = io.BytesIO()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    assert [len(part) for part in frames_of(load_stream, stream)] == [10]
    assert [len(part) for part in frames_of(OWN, stream)] == [3, 3, 3, 1]


def frames_of(way: Any, stream: io.BytesIO) -> list[pd.DataFrame]:
    stream.seek(0)
    serializer = serializer_of()
    return [frame for _, _, frames in way(serializer, stream) if frames is not None for _, frame in frames]


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(["d.stamps", "d.grants"]),
        st.integers(0, 2**31 - 1),
        st.one_of(st.none(), st.binary(max_size=3)),
        st.binary(max_size=9),
        st.lists(st.fixed_dictionaries({"key": NAMES, "value": st.binary(max_size=3)}), max_size=3),
        NAMES,
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(RECORDS, max_size=3), max_size=3))
def test_the_same_bytes_are_written(groups: list[list[list[Any]]]) -> None:
    """Groups of frames, some of them empty, as the processor makes them."""
    frames = [[pd.DataFrame(rows, columns=OUTPUT.names) for rows in group] for group in groups]
    assert written(dump_stream, frames) == written(DUMPED, frames)


def written(way: Any, groups: list[list[pd.DataFrame]]) -> bytes:
    stream = io.BytesIO()
    way(serializer_of(), iter([[(iter(frames), OUTPUT)] for frames in groups]), stream)
    return stream.getvalue()
