"""How an invariant of totalorder's that does not hold is told: as a defect of its own, and nobody else's."""

import linecache
import platform
import traceback

from totalorder.errors import Defect

_PACKAGE = __name__.partition(".")[0]


def defect_in(error: BaseException, *, stopped: str) -> Defect | None:
    """The error to raise in place of an assertion of totalorder's own code that failed; None for any other error.

    What a library or an application asserts is told by its own error, also where totalorder called it, as a store.
    `stopped` is a sentence on what does not go on now, and how one goes on.
    """
    if not isinstance(error, AssertionError) or error.__traceback__ is None:
        return None
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__"))
    if module.partition(".")[0] != _PACKAGE:
        return None
    broken = str(error) or linecache.getline(frame.f_code.co_filename, line).strip()
    from totalorder import __version__

    where = f"{module}, line {line}; version {__version__}, Python {platform.python_version()}"
    return Defect(
        f"an invariant of totalorder does not hold: {broken} ({where})",
        remedy=f"This is a defect of totalorder, and none of your application. {stopped}. Report this message, the "
        "traceback of its cause, and what the log had before",
    )
