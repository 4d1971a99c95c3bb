"""Many events at once, as columns."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
import numpy.typing as npt

from totalorder.errors import Error
from totalorder.subscriber.delivery.effects import Deliveries
from totalorder.subscriber.delivery.rows import Rows
from totalorder.subscriber.event import Event, Handed, Lost, TypedEvent, events_of, position_of
from totalorder.subscriber.position import Position
from totalorder.subscriber.transport import Record

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]
_KEY, _VALUE, _TIMESTAMP_MS = (itemgetter(Record._fields.index(name)) for name in ("key", "value", "timestamp_ms"))


class EventBatch(Generic[Handed]):
    """Events in their order, and before them what is lost (`lost`, with `on_lost="skip"` alone).

    Iterating gives a Lost for each loss, then an Event for each event (with a deserializer a TypedEvent); `len` counts
    the events. A batch is false when there is nothing in it. The columns have one value for each event: `topic`, `key`,
    `value` are lists, `partition`, `offset`, `n`, `g`, `timestamp_ms` arrays of int64. `ack` takes the whole batch, or
    any of its events.
    """

    def __init__(
        self,
        lost: tuple[Lost, ...],
        parts: Sequence[Deliveries],
        origin: Position | None = None,
        deserializer: Callable[[Event], object] | None = None,
    ) -> None:
        self.lost, self.origin = lost, origin
        self._parts, self._deserializer = parts, deserializer

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __bool__(self) -> bool:
        return bool(self._parts or self.lost)

    def __iter__(self) -> Iterator[Handed]:
        yield from cast("Iterable[Handed]", self.lost)
        for part in self._parts:
            yield from cast("Iterable[Handed]", self._typed(events_of(part, self.origin)))

    def _typed(self, events: Iterator[Event]) -> Iterator[Event]:
        if self._deserializer is None:
            return events
        return map(TypedEvent.of, events, repeat(self._deserializer))

    def __repr__(self) -> str:
        return f"EventBatch(events={len(self)}, lost={len(self.lost)}, sequence={self.sequence})"

    def split(self, most: int) -> "tuple[EventBatch[Handed], EventBatch[Handed]]":
        """The first `most` of what is in it, and the rest."""
        lost, most = self.lost[:most], max(0, most - len(self.lost))
        head: list[Deliveries] = []
        tail: list[Deliveries] = []
        for part in self._parts:
            taken = min(most, len(part))
            most -= taken
            if taken == len(part):
                head.append(part)
            else:
                head += [part.part(0, taken)] if taken else []
                tail.append(part.part(taken, len(part)))
        rest = self.lost[len(lost) :]
        return self._with(lost, head), self._with(rest, tail)

    def _with(self, lost: tuple[Lost, ...], parts: Sequence[Deliveries]) -> "EventBatch[Handed]":
        return EventBatch(lost, parts, self.origin, self._deserializer)

    def with_deserializer(self, deserializer: Callable[[Event], object]) -> "EventBatch[Handed]":
        """The same, whose events have payloads."""
        return EventBatch(self.lost, self._parts, self.origin, deserializer)

    @property
    def sequence(self) -> int:
        """The number of its last delivery; 0 when there is nothing in it."""
        if self._parts:
            return self._parts[-1].first + len(self._parts[-1]) - 1
        return self.lost[-1].sequence if self.lost else 0

    @property
    def position(self) -> Position:
        """Behind its last event: what to store beside what was made of the batch. Error with min_subscriptions = 2, and
        for an empty batch.
        """
        if not self:
            raise Error("an empty batch has no position", remedy="Keep the one that you have")
        return position_of(self.origin, int(self.g[-1]) if self._parts else self.lost[-1].g)

    @cached_property
    def _rows(self) -> Rows:
        rows = Rows.joined([part.rows for part in self._parts])
        table = rows.table.view()
        table.flags.writeable = False  # it is the machine's own: positions are saved by it
        return replace(rows, table=table)

    @property
    def _records(self) -> Iterator[Record]:
        return cast("Iterator[Record]", chain.from_iterable(part.handles for part in self._parts))

    @cached_property
    def topic(self) -> list[str]:
        """Pub/sub topics."""
        return [part.names[topic] for part in self._parts for topic in part.rows.topic.tolist()]

    @cached_property
    def partition(self) -> Ints:
        """Kafka partitions."""
        numbers, place = np.unique(self._rows.source, return_inverse=True)
        sources = self._parts[0].sources if self._parts else []
        return np.array([sources[number].partition for number in numbers.tolist()], dtype=np.int64)[place]

    @property
    def offset(self) -> Ints:
        """Offsets in their Kafka partitions."""
        return self._rows.offset

    @cached_property
    def key(self) -> list[bytes | None]:
        """Keys."""
        return list(map(_KEY, self._records))

    @cached_property
    def value(self) -> list[bytes | None]:
        """Values."""
        return list(map(_VALUE, self._records))

    @property
    def n(self) -> Ints:
        """Numbers within their topics."""
        return self._rows.n

    @property
    def g(self) -> Ints:
        """Positions in the order."""
        return self._rows.g

    @cached_property
    def timestamp_ms(self) -> Ints:
        """Kafka's timestamps, ms since 1970."""
        return np.fromiter(map(_TIMESTAMP_MS, self._records), dtype=np.int64, count=len(self))

    def to_arrow(self) -> "pa.Table":
        """The columns as an Arrow table: `timestamp` in ms UTC, `topic` by dictionary, `key` and `value` binary."""
        import pyarrow as pa

        columns: dict[str, Any] = {
            "topic": pa.array(self.topic, pa.string()).dictionary_encode(),
            "partition": pa.array(self.partition),
            "offset": pa.array(self.offset),
            "key": pa.array(self.key, pa.binary()),
            "value": pa.array(self.value, pa.binary()),
            "g": pa.array(self.g),
            "n": pa.array(self.n),
            "timestamp": pa.array(self.timestamp_ms).cast(pa.timestamp("ms", tz="UTC")),
        }
        return pa.table(columns)
