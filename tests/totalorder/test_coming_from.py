"""docs/coming-from.md: what its examples use of totalorder is there, and takes these arguments."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import totalorder as to

PAGE = (Path(__file__).parents[2] / "docs/coming-from.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
OURS = [block for block in BLOCKS if "totalorder" in block]


def test_each_client_has_its_lines_and_ours() -> None:
    assert len(OURS) == 4
    assert len(BLOCKS) == 8
    for block in BLOCKS:
        ast.parse(block)


@pytest.mark.parametrize("block", OURS)
def test_what_is_called_is_there(block: str) -> None:
    names = {"subscriber": to.AsyncSubscriber if "await" in block else to.Subscriber, "to": to}
    calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    ours = [call for call in calls if isinstance(call.func, ast.Attribute)]
    assert {call.func.attr for call in ours if isinstance(call.func, ast.Attribute)} >= {"ack"}
    for call in ours:
        assert isinstance(call.func, ast.Attribute)
        assert isinstance(call.func.value, ast.Name)
        owner = names[call.func.value.id]
        given = [None] * (len(call.args) + (owner is not to))
        inspect.signature(getattr(owner, call.func.attr)).bind(*given, **{key.arg or "": None for key in call.keywords})
    for mentioned in re.findall(r"\b(Retry|EventsLost|Lost|Reader)\b", PAGE):
        assert getattr(to, mentioned)
