"""Whether a running query compiles its rows' code or interprets it, by the size of its batches (docs/adr/0009).

Compiled code reads a record three times faster; to write it down, batch for batch, takes some 20 ms, though what is
compiled is kept. Results are the same.
"""

from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

LARGE_BATCH = 5_000
"""Rows from which on compiled code is surely the faster one. A live load's batches stay below: where they crossed it,
each change brought a batch of twice the time, and that one a larger batch.
"""
_MODE = "spark.sql.codegen.factoryMode"
_COMPILED, _INTERPRETED = "FALLBACK", "NO_CODEGEN"


class Gear:
    """Switches one query, from its next batch on; it begins with compiled code."""

    def __init__(self, query: StreamingQuery) -> None:
        stream: Any = query._jsq
        self._conf = stream.streamingQuery().sparkSessionForStream().conf()
        self._mode = ""
        self._switch(_COMPILED)

    @property
    def compiled(self) -> bool:
        """Whether the next batch's code is compiled."""
        return bool(self._conf.get(_MODE) == _COMPILED)

    def suit(self, rows: int) -> None:
        """Chooses by the rows of the batch that has just been finished."""
        self._switch(_COMPILED if rows >= LARGE_BATCH else _INTERPRETED)

    def _switch(self, mode: str) -> None:
        if mode != self._mode:
            self._conf.set(_MODE, mode)
            self._mode = mode
