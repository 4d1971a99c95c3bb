"""Rows as plain values against the same rows taken one by one."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from totalorder.sequencer.wire import stamps
from totalorder.sequencer.wire.stamps import StampRows


def rows_of(lengths: list[int]) -> StampRows:
    """Rows of so many entries each, in which every number occurs once."""
    size, entries = len(lengths), sum(lengths)
    columns = np.arange(6 * size, dtype=np.int64).reshape(6, size)
    topic, n, g, source, offset, crc = columns
    return StampRows(
        topic=topic,
        n=n,
        g=g,
        source=source,
        offset=offset,
        crc=crc,
        keyframe=np.zeros(size, dtype=np.bool_),
        entry_start=np.append(0, np.cumsum(lengths, dtype=np.int64)),
        entry_topic=np.arange(entries, dtype=np.int64),
        entry_n=-np.arange(entries, dtype=np.int64),
    )


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.lists(st.integers(0, 4), max_size=12), st.integers(1, 9))
def test_plain_values_are_those_of_the_columns(
    monkeypatch: pytest.MonkeyPatch, data: st.DataObject, lengths: list[int], at_once: int
) -> None:
    monkeypatch.setattr(stamps, "_AT_ONCE", at_once)
    rows = rows_of(lengths)
    numbers = sorted(data.draw(st.sets(st.integers(0, len(lengths) - 1)))) if lengths else []
    columns = (rows.topic, rows.n, rows.g, rows.source, rows.offset, rows.crc)
    expected = [(*(int(column[at]) for column in columns), list(rows.entries(at).items())) for at in numbers]
    assert [tuple(stamp) for stamp in rows.plain(np.array(numbers, dtype=np.int64))] == expected
