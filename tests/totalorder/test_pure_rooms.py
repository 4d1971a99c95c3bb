"""The pure rooms decide, and touch nothing: what a file of theirs may import, and call."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CALCULATING = {
    "bisect", "collections", "contextlib", "dataclasses", "functools", "hashlib", "heapq", "hmac", "itertools", "json",
    "math", "numba", "numpy", "pyarrow", "re", "struct", "typing", "zlib",
}  # fmt: skip
"""What has no clock, does no I/O, and starts nothing by itself."""
ROOMS = {
    "sequencer": {"totalorder.errors", "totalorder.sequencer"},
    "sequencer/wire": {"totalorder.errors", "totalorder.sequencer.wire"},
    "subscriber/delivery": {"totalorder.errors", "totalorder.sequencer.wire", "totalorder.subscriber.delivery"},
    "subscriber/reading": {
        *("totalorder.errors", "totalorder.sequencer.wire"),
        *("totalorder.subscriber.delivery", "totalorder.subscriber.reading"),
    },
}
FORBIDDEN_CALLS = {"open", "input", "print", "exec", "eval", "__import__"}


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


def strange(source: str, rooms: set[str]) -> list[str]:
    """What a file imports or calls that a pure room may not."""
    tree = ast.parse(source)
    found = [
        name
        for name in imported(tree)
        if name.partition(".")[0] not in CALCULATING
        and not any(name == room or name.startswith(f"{room}.") for room in rooms)
    ]
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    found += [call.id for call in calls if isinstance(call, ast.Name) and call.id in FORBIDDEN_CALLS]
    # numpy has chance, and pyarrow files.
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return found + sorted(attributes & {"random", "memory_map", "OSFile", "fs", "datetime64"})


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_pure_room_has_no_clock_no_chance_and_no_io(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert len(files) > 4
    wrong = {path.name: strange(path.read_text(encoding="utf-8"), ROOMS[room]) for path in files}
    assert not {name: found for name, found in wrong.items() if found}


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from random import Random",
        "from totalorder.subscriber.session import Session",
        "from totalorder.sequencerish import step",
        "import numpy as np\nnp.random.default_rng()",
        "def f():\n    import socket",
        "open('file')",
    ],
)
def test_the_rule_would_see_it(source: str) -> None:
    assert strange(source, ROOMS["sequencer"])


def test_a_subscriber_has_of_the_sequencer_what_goes_over_the_wire() -> None:
    files = sorted((ROOT / "subscriber").rglob("*.py"))
    found = {name for path in files for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
    of_it = {name for name in found if name.startswith("totalorder.sequencer")}
    assert of_it, "it reads stamps"
    assert not {name for name in of_it if not name.startswith("totalorder.sequencer.wire")}
