"""Log lines of the source's process: it has Java's output alone, which the driver reads line by line."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import structlog

_MARK = "totalorder-log "
_TRACE = "Traceback (most recent call last):"
_DAEMON = re.compile(r'File ".*pyspark/daemon\.py", line \d+, in manager')
_DISMISSED = re.compile(r"BrokenPipeError: \[Errno 32\]")


def log_through_java() -> None:
    """In the source's process: what it logs comes out as lines that `relayed` knows."""
    structlog.configure(
        processors=[structlog.stdlib.add_log_level, _marked],
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def _marked(_logger: object, _method: str, line: MutableMapping[str, Any]) -> str:
    return _MARK + json.dumps(line, default=str)


def relayed(line: str, log: Any) -> bool:
    """In the driver: logs such a line as it was meant; False for a line of others."""
    _, mark, text = line.partition(_MARK)
    try:
        content = json.loads(text) if mark else None
    except ValueError:
        return False
    if not isinstance(content, dict) or not {"event", "level"} <= content.keys():
        return False
    level = str(content.pop("level"))
    say = getattr(log, level) if level in ("debug", "info", "warning", "error") else log.error
    say(str(content.pop("event")), **content)
    return True


def without_dismissals(lines: Iterable[str]) -> Iterator[str]:
    """The lines without the traces of pyspark's own daemon, which plans for the source: what Java dismisses has its
    last words refused, and says so.
    """
    held: list[str] = []
    for line in lines:
        if held and (line.startswith(" ") or _DISMISSED.match(line)):
            held.append(line)
            if not line.startswith(" "):
                held = []
            elif len(held) == 2 and not _DAEMON.search(line):
                yield from held
                held = []
            continue
        yield from held
        held = []
        if line.startswith(_TRACE):
            held = [line]
        else:
            yield line
    yield from held
