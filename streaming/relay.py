"""Log lines of the source's process: it has Java's output alone, which the driver reads line by line."""

import json
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

_MARK = "totalorder-log "


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
