"""What JSON may cost: counted before it is parsed, as a dumb twin counts it behind that."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from totalorder.sequencer.wire import budget
from totalorder.sequencer.wire.budget import affordable, parse_json

texts = st.text(st.sampled_from(['"', "\\", ",", "[", "{", "]", "a", "é", "\n", "😀"]), max_size=8)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=20,
)


def units(value: Any) -> int:
    """Commas and containers of the JSON of a value."""
    if not isinstance(value, list | dict):
        return 0
    inner = list(value.values()) if isinstance(value, dict) else value
    return 4 + max(0, len(inner) - 1) + sum(map(units, inner))


@given(value=values, ascii_only=st.booleans(), chunk=st.integers(1, 40))
def test_values_are_counted_as_a_dumb_twin_counts_them(value: Any, ascii_only: bool, chunk: int) -> None:
    """Names may hold anything that means something outside of them, and lie across the border of two chunks."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "_CHUNK_BYTES", chunk)
        patch.setattr(budget, "MAX_JSON_UNITS", units(value))
        assert affordable(text)
        assert parse_json(text, len(text)) == value
        patch.setattr(budget, "MAX_JSON_UNITS", units(value) - 1)
        assert not affordable(text)
        if len(text) > 2:
            with pytest.raises(ValueError, match="more values"):
                parse_json(text, len(text))


def test_names_may_be_full_of_commas() -> None:
    names = [",[{" * 85] * 10_000
    assert parse_json(json.dumps(names).encode(), 10_000_000) == names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"[1,2]", "5 bytes of JSON, and may have 4"),
        (b"[" * 100_000, "nested too deep"),
        (b"{", "Expecting"),
        (b"\xff", "utf-8"),
        (b"9" * 4_000 + b"9" * 4_000, "bytes of JSON|integer string"),
    ],
)
def test_what_is_no_json_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_json(text, 4 if text == b"[1,2]" else 1_000_000)
