"""What `repr` says of a Subscriber and a Reader."""

from collections.abc import Mapping

from totalorder.errors import Error


def shown(who: str, chosen: str, g: int, failure: Error | None, states: Mapping[str, bool], *, closed: bool) -> str:
    """On one line: `who` reads what is `chosen`, how far it is, and which of these states it is in; `failure` is what
    ended it.
    """
    words = [f"at g {g}", *(word for word, holds in states.items() if holds)]
    words += [f"ended by {type(failure).__name__.lstrip('_')}"] if failure is not None else []
    words += ["closed"] if closed else []
    return f"<{who}, {chosen}: {', '.join(words)}>"
