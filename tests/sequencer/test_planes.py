"""Byte planes against integers as Python has them."""

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from totalorder.sequencer.wire.planes import from_planes, to_planes, width_of

values = st.lists(st.one_of(st.integers(-300, 300), st.integers(-(2**63), 2**63 - 1)), max_size=20)


@given(column=values, behind=st.binary(max_size=3))
@example(column=[-128, 127], behind=b"")
@example(column=[128], behind=b"")
@example(column=[-(2**63)], behind=b"")
def test_what_goes_in_comes_out_in_the_fewest_bytes(column: list[int], behind: bytes) -> None:
    array = np.array(column, dtype=np.int64)
    width = width_of(array)
    planes = to_planes(array, width)
    assert len(planes) == width * len(column)
    out, rest = from_planes(memoryview(planes + behind), len(column), width)
    assert out.tolist() == column
    assert bytes(rest) == behind
    assert width == max([len(value.to_bytes(9, "little", signed=True)) - spare(value) for value in column], default=1)


def spare(value: int) -> int:
    """How many of nine bytes a value can do without."""
    return max(less for less in range(9) if fits(value, 9 - less))


def fits(value: int, width: int) -> bool:
    try:
        value.to_bytes(width, "little", signed=True)
    except OverflowError:
        return False
    return True


def test_lowest_bytes_come_first() -> None:
    assert to_planes(np.array([0x0102, 0x0304], dtype=np.int64), 2) == bytes([2, 4, 1, 3])


@pytest.mark.parametrize(("count", "width"), [(1, 0), (1, 9), (-1, 1), (3, 1), (1, 3)])
def test_a_column_that_does_not_fit_is_refused(count: int, width: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        from_planes(memoryview(b"ab"), count, width)
