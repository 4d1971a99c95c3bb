"""Invariants that cost a walk through a whole state: looked at in tests and in the simulation, and not in production.

What costs a comparison or two is an `assert` where it must hold, always. A state is walked at the end of a step, or of
an input to a machine, if `due()`; a failure is an AssertionError that names what broke. What holds stands beside what
it is about: `check_step`, and the `check_whole` of classes.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_each = _chances = 0


@contextmanager
def looking(each: int) -> Iterator[None]:
    """Within, states are walked at every `each`-th chance, counted from here on: the same run looks at the same ones.

    0 means never. It holds for the process, which production never asks for.
    """
    global _each, _chances
    former = _each, _chances
    _each, _chances = each, 0
    try:
        yield
    finally:
        _each, _chances = former


def due() -> bool:
    """Whether the state at hand is to be walked now."""
    global _chances
    if not _each:
        return False
    _chances += 1
    return _chances % _each == 0
