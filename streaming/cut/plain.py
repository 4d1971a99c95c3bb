"""Ranges read by a plain loop over messages: the way that needs nothing but confluent-kafka, and the other way's twin.

It assigns what a plan asks for and nothing else, and keeps nothing but its connections from plan to plan.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition

from totalorder.errors import StateError
from totalorder.librdkafka_consumer import headers_of
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES
from totalorder.streaming.cut.failures import Silence, Trouble
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.records import NONE, Names, OnQuiet, Place, Records, by_place

_MOST = 10_000
_PAUSE_S = 0.005
"""librdkafka waits so long for more when there are fewer messages than that."""


@dataclass
class _Rows:
    """What came of one range since it was last handed out."""

    wanted: Range
    next_offset: int
    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    control: dict[int, bytes] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.next_offset >= self.wanted.end

    def taken(self) -> Records:
        offset, timestamp_ms, crc, topic = np.array(self.rows, dtype=np.int64).T
        control, self.rows, self.control = self.control, [], {}
        return Records(offset, timestamp_ms, crc, topic, control)


class PlainReader:
    """A `Reader`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings`: librdkafka's."""
        self._trouble = Trouble()
        self._consumer = Consumer({**settings, "error_cb": self._trouble.note})

    def read(self, plan: ReadPlan, names: Names, on_quiet: OnQuiet) -> Iterator[tuple[int, Records]]:
        """See `Reader`."""
        places = by_place(plan)
        parts = {place: _Rows(plan.ranges[at], plan.ranges[at].begin) for place, at in places.items()}
        missing = {place for place, part in parts.items() if not part.is_done}
        self._consumer.assign([TopicPartition(*place, parts[place].next_offset) for place in missing])
        try:
            while missing:
                for place in self._poll(plan, names, parts, missing, on_quiet):
                    if parts[place].rows:
                        yield places[place], parts[place].taken()
                    if parts[place].is_done:
                        missing.discard(place)
        finally:
            self._consumer.unassign()

    def forget(self, topic: str) -> None:
        """See `Reader`; nothing is read ahead."""

    def close(self) -> None:
        """See `Reader`."""
        self._consumer.close()

    def _poll(
        self, plan: ReadPlan, names: Names, parts: Mapping[Place, _Rows], missing: set[Place], on_quiet: OnQuiet
    ) -> set[Place]:
        """Waits for messages of what is missing; the partitions that came further."""
        silence, came = Silence(plan, on_quiet), set[Place]()
        most = min(_MOST, sum(parts[place].wanted.end - parts[place].next_offset for place in missing))
        while not came:
            for message in self._consumer.consume(most, _PAUSE_S):
                place = (message.topic(), message.partition())
                if place in missing and self._take(message, plan, names, parts[place]):
                    came.add(place)
            self._trouble.raise_refusal(plan.bootstrap_servers)
            if not came and silence.is_over():
                raise self._trouble.silent(plan, [(parts[place].wanted, parts[place].next_offset) for place in missing])
        return came

    def _take(self, message: Any, plan: ReadPlan, names: Names, part: _Rows) -> bool:
        """Whether the partition came further by the message."""
        error, offset = message.error(), message.offset()
        if error is None:
            if part.next_offset <= offset < part.wanted.end:
                self._add(message, plan, names, part)
            part.next_offset = max(part.next_offset, offset + 1)
            return True
        before = part.next_offset
        part.next_offset = self._trouble.of_partition(error.code(), str(error.str()), offset, part.wanted, before)
        return part.next_offset > before

    def _add(self, message: Any, plan: ReadPlan, names: Names, part: _Rows) -> None:
        value, topic = message.value(), NONE
        if message.topic() == plan.control:
            part.control[len(part.rows)] = (value or b"")[: MAX_CONTROL_BYTES + 1]
        elif plan.topic_by != "topic":
            topic = names.code(_named(message, plan.topic_by))
        part.rows.append((message.offset(), message.timestamp()[1], zlib.crc32(value or b""), topic))


def _named(message: Any, topic_by: str) -> bytes | None:
    """What names the event's pub/sub topic: its key, or the last header of the name."""
    if topic_by == "key":
        key: bytes | None = message.key()
        return key
    name = topic_by.removeprefix("header:")
    try:
        headers = headers_of(message) or ()
    except SystemError as error:
        raise StateError(
            f"{message.topic()}[{message.partition()}]@{message.offset()} has a header whose name is not UTF-8, which "
            "confluent-kafka cannot read",
            remedy="With the confluent-kafka that the job is pinned to librdkafka is called directly, and reads it",
        ) from error
    return next((value for key, value in reversed(headers) if key == name), None)
