"""What reading brings of one partition, before it is packed, and what both ways of reading share."""

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from totalorder.errors import Error, StateError
from totalorder.sequencer.wire.limits import MAX_TOPIC_CHARS
from totalorder.streaming.cut.ranges import Range, ReadPlan

Ints = npt.NDArray[np.int64]
NONE = -1
Place = tuple[str, int]
"""Kafka topic and partition."""
OnQuiet = Callable[[], None]
"""Called again and again while nothing comes of what is missing; it may take long, and may raise."""


class Records(NamedTuple):
    """Columns of records of one partition, in order of offset; `topic` counts in `Names`, NONE where it has no name.

    `control` has the value of each record of the control topic, by its place.
    """

    offset: Ints
    timestamp_ms: Ints
    crc: Ints
    topic: Ints
    control: Mapping[int, bytes]

    def part(self, begin: int, end: int) -> "Records":
        """Those from one place to before another."""
        if end - begin == len(self.offset):
            return self
        control = {place - begin: value for place, value in self.control.items() if begin <= place < end}
        offset, timestamp_ms, crc, topic = (column[begin:end] for column in self[:4])
        return Records(offset, timestamp_ms, crc, topic, control)


class Names:
    """The names of pub/sub topics that keys or headers give, each with a number from 0."""

    def __init__(self) -> None:
        self._codes: dict[bytes, int] = {}
        self._names: list[str] = []

    def code(self, raw: bytes | None) -> int:
        """The number of a name; NONE for what is absent, not UTF-8, empty or too long to name a topic."""
        if not raw:
            return NONE
        code = self._codes.get(raw)
        return self._new(raw) if code is None else code

    def _new(self, raw: bytes) -> int:
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return NONE
        if len(name) > MAX_TOPIC_CHARS:
            return NONE
        self._codes[raw] = len(self._names)
        self._names.append(name)
        return self._codes[raw]

    def recoded(self, codes: Ints, counted: "Names") -> Ints:
        """The numbers here of names that were counted elsewhere."""
        used, places = np.unique(codes, return_inverse=True)
        here = [NONE if code == NONE else self.code(counted[code].encode()) for code in used.tolist()]
        return np.array(here, dtype=np.int64)[places]

    def __getitem__(self, code: int) -> str:
        return self._names[code]


class Reader(Protocol):
    """A Kafka consumer of one set of connection settings."""

    def read(self, plan: ReadPlan, names: Names, on_quiet: OnQuiet) -> Iterator[tuple[int, Records]]:
        """All committed records of the plan's ranges: the range's place in the plan, and records, never none.

        Those of one range come in order of offset; ranges come in any order. Raises StateError for offsets that Kafka
        no longer has, BrokerUnavailable when nothing comes for `silence_s`, and what `on_quiet` raises.
        """

    def forget(self, topic: str) -> None:
        """Drops what was read ahead of a topic."""

    def close(self) -> None:
        """Ends the connections."""


def by_place(plan: ReadPlan) -> dict[Place, int]:
    """The place in the plan of each partition's range; Error where a partition has two."""
    places = {(wanted.topic, wanted.partition): at for at, wanted in enumerate(plan.ranges)}
    if len(places) < len(plan.ranges):
        raise Error("a task of the source is to read two ranges of one partition", remedy="Report this as a defect")
    return places


def removed(wanted: Range, reason: str) -> StateError:
    """The error for a range of which Kafka has lost the begin."""
    return StateError(
        f"{wanted.topic}[{wanted.partition}]: offsets {wanted.begin} to {wanted.end} were removed from Kafka "
        f"before they were stamped ({reason})",
        remedy="Keep records longer than the job may stand still (retention.ms, retention.bytes); "
        'on_data_loss = "record" goes on, and gives the loss a place in the order',
    )
