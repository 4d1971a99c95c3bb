"""What was handed to the application, kept until Kafka has the receipts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.wire.receipts import Receipts, encode_receipts
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost
from totalorder.subscriber.delivery.rows import groups
from totalorder.subscriber.transport import Partition, Transport

T = TypeVar("T")
Ints = npt.NDArray[np.int64]
_SEND_AFTER_S = 1.0
_MOST = 10_000


class _Span(NamedTuple):
    """Deliveries that follow each other and were handed out in the same ms.

    `columns` has a line each for topic, n, g, source, offset; the first and the fourth are numbers in `names` and
    `sources`. Payloads are not kept.
    """

    columns: Ints
    names: Mapping[int, str]
    sources: Sequence[Source]
    generation: int
    first: int
    delivered_through: int
    lost: bool
    delivered_ms: int

    @classmethod
    def of(cls, item: Deliveries | DeliverLost, start: int, end: int, generation: int, delivered_ms: int) -> "_Span":
        """Events `start` to before `end` of a block; or a loss, whatever they are."""
        if isinstance(item, Deliveries):
            columns, first = item.rows.table[:5, start:end], item.first + start
            through, lost = item.delivered_through, False
            return cls(columns, item.names, item.sources, generation, first, through, lost, delivered_ms)
        columns = np.array([[0], [item.n], [item.g], [0], [item.begin]], dtype=np.int64)
        names, through = {0: item.topic or item.source.topic}, item.g if item.tag else 0
        return cls(columns, names, [item.source], generation, item.sequence, through, True, delivered_ms)


class ReceiptLog:
    """Deliveries in their order. What cannot be sent stays: a receipt may be sent twice, and none is lost.

    Nothing is kept or sent before `open`. `clock` and `wall_clock` give seconds: one for waits, the other since 1970.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        domain: str,
        id: str,  # noqa: A002
        nonce: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._transport, self._domain, self._id, self._nonce = transport, domain, id, nonce
        self._clock, self._wall_clock = clock, wall_clock
        self._partition: Partition | None = None
        self.behind_g = 0
        """What lies at or before this was of nobody's subscription, and has no receipts."""
        self._waiting: list[_Span] = []
        self._count = 0
        self._last: Deliveries | DeliverLost | None = None
        """The block of the span that may still grow, not yet in `_waiting`: below its start and end in it, the
        generation and the ms.
        """
        self._start = self._end = self._generation = self._ms = 0
        self._send_at = 0.0

    def open(self, partition: Partition) -> None:
        """From now on deliveries are kept, and their receipts sent to `partition`."""
        self._partition = partition

    def note(self, item: Deliveries | DeliverLost, start: int, end: int, generation: int) -> None:
        """Events `start` to before `end` of a block, or a loss, are handed out now under the process's `generation`."""
        if self._partition is None or (self.behind_g and _g(item, start) <= self.behind_g):
            return
        if not self._count:
            self._send_at = self._clock() + _SEND_AFTER_S
        self._count += end - start
        now_ms = int(self._wall_clock() * 1000)
        if self._last is item and self._end == start and self._generation == generation and self._ms == now_ms:
            self._end = end
            return
        self._close_span()
        self._last, self._start, self._end, self._generation, self._ms = item, start, end, generation, now_ms

    def note_next(self, item: Deliveries | DeliverLost, at: int, generation: int) -> None:
        """As `note` of one event; at the time of the one before, where that is the one before it in its block."""
        if self._last is item and self._end == at and self._generation == generation and not self.behind_g:
            self._end += 1
            self._count += 1
        else:
            self.note(item, at, at + 1, generation)

    def _close_span(self) -> None:
        if self._last is not None:
            self._waiting.append(_Span.of(self._last, self._start, self._end, self._generation, self._ms))
            self._last = None

    @property
    def due(self) -> bool:
        """Whether it is time to send: the first that waits has waited long enough."""
        return bool(self._count) and self._clock() >= self._send_at

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return self._count >= _MOST

    def send(self, timeout_s: float | None = None) -> None:
        """Sends all that waits; after BrokerUnavailable all is kept, and due again a little later."""
        if self._partition is None or not self._count:
            return
        self._close_span()
        try:
            for record in encode_receipts(self._receipts()):
                self._transport.send(
                    self._partition, self._id.encode(), record.value, headers=record.headers, timeout_s=timeout_s
                )
            self._waiting.clear()
            self._count = 0
        finally:
            self._send_at = self._clock() + _SEND_AFTER_S

    def _receipts(self) -> Receipts:
        spans, topics, sources = self._waiting, _Directory[str](), _Directory[Source]()
        sizes = [span.columns.shape[1] for span in spans]
        columns = np.concatenate([span.columns for span in spans], axis=1)
        firsts = np.repeat([span.first for span in spans], sizes)
        within = np.arange(len(firsts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return Receipts(
            domain=self._domain,
            id=self._id,
            nonce=self._nonce,
            topic=topics.places([(span.columns[0], span.names) for span in spans]),
            source=sources.places([(span.columns[3], span.sources) for span in spans]),
            topics=topics.values,
            sources=sources.values,
            generation=np.repeat([span.generation for span in spans], sizes),
            sequence=firsts + within,
            n=columns[1],
            g=columns[2],
            offset=columns[4],
            redelivered=columns[2] <= np.repeat([span.delivered_through for span in spans], sizes),
            lost=np.repeat([span.lost for span in spans], sizes),
            delivered_ms=np.repeat([span.delivered_ms for span in spans], sizes),
        )


def _g(item: Deliveries | DeliverLost, start: int) -> int:
    return item.g if isinstance(item, DeliverLost) else int(item.rows.g[start])


class _Directory(Generic[T]):
    """Values that a column has places of."""

    def __init__(self) -> None:
        self._places: dict[T, int] = {}

    @property
    def values(self) -> tuple[T, ...]:
        """In the order of their places."""
        return tuple(self._places)

    def places(self, columns: Iterable[tuple[Ints, Mapping[int, T] | Sequence[T]]]) -> Ints:
        """The places of what columns of numbers stand for, one column after another."""
        found = []
        # Columns that follow each other have their values of one block, or of one machine.
        for _, alike in groupby(columns, lambda column: id(column[1])):
            parts = list(alike)
            numbers, values = np.concatenate([part for part, _ in parts]), parts[0][1]
            column = np.empty(len(numbers), dtype=np.int64)
            for number, at in groups(numbers):
                column[at] = self._places.setdefault(values[number], len(self._places))
            found.append(column)
        return np.concatenate(found)
