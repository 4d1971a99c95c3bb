"""How names are told: a few of many, and the one that was probably meant."""

from collections.abc import Iterable, Sequence


def few(names: Sequence[str], most: int) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def did_you_mean(name: str, there: Iterable[str]) -> str:
    """A question to begin a remedy with, where something that is there is called nearly so; else nothing."""
    from difflib import get_close_matches

    near = get_close_matches(name, there, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""
