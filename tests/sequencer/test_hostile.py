"""Hostile input: whatever is changed in what comes from outside, it is decoded or refused by an error of ours, soon and
in little memory. `make fuzz` does the same for as long as it is given.
"""

import json
import random

import pytest
from hostile import TARGETS, Target, attack, mutated
from hypothesis import given, settings, strategies as st


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_is_right_is_decoded(target: Target) -> None:
    decoded = [attack(target, sample) for sample in target.samples]
    if target.name == "requests":  # a claim is none, and of the others one is signed
        assert decoded == [False, False, False, False, True, False]
    else:
        assert all(decoded)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1 << 64), junk=st.binary(max_size=64))
def test_what_is_changed_is_decoded_or_refused(target: Target, seed: int, junk: bytes) -> None:
    attack(target, mutated(target, random.Random(seed)))
    attack(target, junk)


BY_NAME = {target.name: target for target in TARGETS}
JSON = [target for target in TARGETS if target.is_json]


@pytest.mark.parametrize("target", JSON, ids=lambda target: target.name)
def test_json_that_is_deep_or_vast_is_refused(target: Target) -> None:
    for text in (b"[" * 200_000, b'{"v":' * 100_000, b"[" + b"[]," * 300_000 + b"[]]", b"9" * 10_000, b"-1e999"):
        assert not attack(target, text)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("positions", {"stamps_partitions": 0}),
        ("positions", {"stamps_partitions": 1 << 40}),
        ("positions", {"generation": -1}),
        ("positions", {"g": 1 << 63}),
        ("positions", {"nonce": "\ud800"}),
        ("answers", {"stamps_partitions": 0}),
        ("answers", {"lease_s": None}),
        ("answers", {"topic_by": 7}),
        ("answers", {"g": 1 << 63}),
        ("answers", {"next_offsets": [["\ud800", "i", 0, 0]]}),
        ("answers", {"next_offsets": [["a", "i", 1 << 40, 0]]}),
        ("hot state: header", {"header": {}}),
        ("hot state: header", {"arrays": {"clocks": -1}}),
        ("hot state: header", {"arrays": {"clocks": 1 << 60}}),
        ("cold state: header", {"header": None}),
        ("stamps: headers", {"part": "9" * 5_000}),
        ("domain.json", {"fixed": {}}),
        ("domain.json", {"incarnation": float("inf")}),
    ],
)
def test_what_was_found_once_is_refused(name: str, changed: dict[str, object]) -> None:
    target = BY_NAME[name]
    assert not attack(target, json.dumps(json.loads(target.samples[0]) | changed).encode())


@pytest.mark.parametrize("name", ["batch", "g", "control_g", "rekey", "owed", "digests"])
def test_state_of_other_types_is_refused_whatever_its_checksum_says(name: str) -> None:
    target = BY_NAME["hot state: header"]
    sample = json.loads(target.samples[0])
    for odd in ("x", -1, [-1], [["x", "y"]], None, 1.5, 1 << 64):
        assert not attack(target, json.dumps(sample | {"header": sample["header"] | {name: odd}}).encode())
