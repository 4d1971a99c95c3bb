"""Write docs/api.md: the public names of totalorder, from their signatures and docstrings. `--check` compares only.

Signatures are taken from the source as they stand there, so that the page is the same under every Python.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import totalorder
import totalorder.subscriber

PAGE = Path(__file__).resolve().parents[1] / "docs/api.md"
SECTIONS = {
    "Taking events": ("Subscriber", "AsyncSubscriber", "Reader"),
    "What comes": ("Event", "TypedEvent", "Lost", "EventBatch", "Position"),
    "Handlers and payloads": ("Retry", "payloads"),
    "Positions in a database": ("SqlitePositions", "SqlAlchemyPositions", "PositionStore"),
    "What callbacks and metrics tell": ("Granted", "Changed", "Stalled", "Wait", "Hold", "Metrics"),
    "A broker for tests": ("LocalBroker",),
}
TOP = """# API

*Made from the docstrings by `make api`. The [README](../README.md) has examples, the [cookbook](cookbook/) whole
programs, the [glossary](glossary.md) the terms.*

Names are those of `import totalorder`; `PositionStore` and what callbacks and metrics tell are in
`totalorder.subscriber`. `Handed` is what is handed out: `Event`; `TypedEvent` with a deserializer; with
`on_lost="skip"` also `Lost`. `Start` is a `Position`, a datetime with a time zone, `"earliest"` or `"now"`; `Until` a
`Position`, such a datetime, `"now"` or None; `Client` is `"kafka-python"` or `"confluent"`. `Ints` are numpy's arrays
of int64. Subscriber, AsyncSubscriber and Reader are context managers, and iterators of what they hand out.
"""
_OF_LIBRARY = {
    "EventBatch": {"__init__", "with_deserializer"},
    "Lost": {"of"},
    "PositionStore": {"claim", "begin", "reset", "read", "move", "write"},
    "TypedEvent": {"of"},
}
"""What no application calls, though a module beside does."""
_OF_TESTS = {"transport", "clock", "wall_clock", "nonce"}
_HIDDEN = {"self", "cls", *_OF_TESTS}
_WIDTH = 100
Function = ast.FunctionDef | ast.AsyncFunctionDef


def main() -> None:
    text = page()
    if sys.argv[1:] != ["--check"]:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/api.md is not what the docstrings say: make api, and read the difference")


def page() -> str:
    errors = {name for name in dir(totalorder) if getattr(named(name), "__module__", "") == "totalorder.errors"}
    sections = SECTIONS | {"Errors": ("Error", *sorted(errors - {"Error"}))}
    listed = [name for names in sections.values() for name in names]
    public = {*dir(totalorder), *totalorder.subscriber.__all__} - {"__version__"}
    assert sorted(listed) == sorted(public), f"in one place each: {public ^ set(listed)}"
    parts = [TOP]
    for title, names in sections.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += described(name, named(name))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"


def named(name: str) -> Any:
    return getattr(totalorder if name in dir(totalorder) else totalorder.subscriber, name)


def described(name: str, thing: Any) -> Iterator[str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(thing)))
    node = tree if isinstance(thing, ModuleType) else tree.body[0]
    assert isinstance(node, ast.Module | ast.ClassDef)
    hidden = _OF_LIBRARY.get(name, set())
    functions = [each for each in node.body if isinstance(each, Function) and each.name not in hidden]
    made = made_of(node, functions) if isinstance(node, ast.ClassDef) else None
    public = [each for each in functions if not each.name.startswith("_") and "overload" not in decorators(each)]
    if inspect.isclass(thing) and issubclass(thing, totalorder.Error) and thing is not totalorder.Error:
        yield f"- `{name}`: {' '.join(doc(node).split())}"
        return
    yield f"\n### {name}\n"
    if isinstance(node, ast.ClassDef):
        yield code(f"class {name}", made, "")
    yield doc(node)
    values = [each for each in public if decorators(each) & {"property", "cached_property"}]
    yield from (f"- `{each.name}: {annotation(each.returns)}`: {' '.join(doc(each).split())}" for each in values)
    for each in (each for each in public if each not in values):
        head = "async " * isinstance(each, ast.AsyncFunctionDef) + each.name
        yield f"\n#### {name}.{each.name}\n"
        yield code(head, arguments(each.args), f" -> {annotation(each.returns)}")
        yield doc(each)


def decorators(node: Function) -> set[str]:
    return {ast.unparse(decorator) for decorator in node.decorator_list}


def made_of(node: ast.ClassDef, functions: list[Function]) -> list[str] | None:
    """What makes one, or what its fields are; None where that is inherited."""
    for function in functions:
        if function.name == "__init__":
            return arguments(function.args)
    fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)]
    found = [
        f"{ast.unparse(each.target)}: {annotation(each.annotation)}"
        + (f" = {ast.unparse(each.value)}" if each.value else "")
        for each in fields
        if not ast.unparse(each.target).startswith("_")
    ]
    by_name = any("kw_only=True" in ast.unparse(decorator) for decorator in node.decorator_list)
    return ["*" for _ in found[:1] if by_name] + found or None


def arguments(given: ast.arguments) -> list[str]:
    """Each as it is written, but for those that are for tests."""
    plain = [*given.posonlyargs, *given.args]
    defaults = [*[None] * (len(plain) - len(given.defaults)), *given.defaults]
    found = [argument(*pair) for pair in zip(plain, defaults, strict=True) if pair[0].arg not in _HIDDEN]
    if given.vararg:
        found.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        found.append("*")
    named_only = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    found += [argument(*pair) for pair in named_only if pair[0].arg not in _HIDDEN]
    return [*found, f"**{given.kwarg.arg}"] if given.kwarg else found


def argument(given: ast.arg, default: ast.expr | None) -> str:
    told = f"{given.arg}: {annotation(given.annotation)}" if given.annotation else given.arg
    return told if default is None else f"{told} = {ast.unparse(default)}"


def annotation(node: ast.expr | None) -> str:
    """Without the quotes that keep Python from looking at it."""
    return (
        str(node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        else ast.unparse(node or ast.Constant(None))
    )


def code(head: str, given: list[str] | None, tail: str) -> str:
    line = head + (f"({', '.join(given)})" if given is not None else "") + tail
    if given and len(line) > _WIDTH:
        line = f"{head}(\n" + "".join(f"    {each},\n" for each in given) + f"){tail}"
    return f"```python\n{line}\n```\n"


def doc(node: ast.Module | ast.ClassDef | Function) -> str:
    text = ast.get_docstring(node)
    assert text, f"{getattr(node, 'name', 'a module')} has no docstring"
    return f"{text}\n"


if __name__ == "__main__":
    main()
