"""What was handed to the application, kept until Kafka has the receipts."""

from array import array
from collections.abc import Callable

import numpy as np

from totalorder.sequencer.receipts import Receipts, encode_receipts
from totalorder.sequencer.stamps import Source
from totalorder.subscriber.event import Event
from totalorder.subscriber.transport import Partition, Transport

_SEND_AFTER_S = 1.0
_MOST = 10_000


_COLUMNS = ("generation", "sequence", "topic", "source", "offset", "n", "g", "redelivered", "delivered_ms")
"""Of Receipts."""


class Journal:
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
        self._waiting = array("q")
        """Row after row. As objects that live for a second they would be most of what collections of garbage walk."""
        self._topics: dict[str, int] = {}
        self._sources: dict[Source, int] = {}
        self._send_at = 0.0

    def open(self, partition: Partition) -> None:
        """From now on deliveries are kept, and their receipts sent to `partition`."""
        self._partition = partition

    def note(self, event: Event, generation: int) -> None:
        """The event is handed out now, under the process's `generation`."""
        if self._partition is None:
            return
        source = Source(event.kafka_topic, event.topic_id, event.partition)
        if not self._waiting:
            self._send_at = self._clock() + _SEND_AFTER_S
        self._waiting.extend(
            (
                generation,
                event.sequence,
                self._topics.setdefault(event.topic, len(self._topics)),
                self._sources.setdefault(source, len(self._sources)),
                event.offset,
                event.n,
                event.g,
                event.tag is not None,
                int(self._wall_clock() * 1000),
            )
        )

    @property
    def due(self) -> bool:
        """Whether it is time to send: the first that waits has waited long enough."""
        return bool(self._waiting) and self._clock() >= self._send_at

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._waiting) >= _MOST * len(_COLUMNS)

    def send(self, timeout_s: float | None = None) -> None:
        """Sends all that waits; after BrokerUnavailable all is kept, and due again a little later."""
        if self._partition is None or not self._waiting:
            return
        try:
            for record in encode_receipts(self._receipts()):
                self._transport.send(
                    self._partition, self._id.encode(), record.value, headers=record.headers, timeout_s=timeout_s
                )
            del self._waiting[:]
            self._topics.clear()
            self._sources.clear()
        finally:
            self._send_at = self._clock() + _SEND_AFTER_S

    def _receipts(self) -> Receipts:
        rows = np.array(self._waiting, dtype=np.int64).reshape(-1, len(_COLUMNS))
        columns = dict(zip(_COLUMNS, rows.T, strict=True))
        return Receipts(
            domain=self._domain,
            id=self._id,
            nonce=self._nonce,
            topics=tuple(self._topics),
            sources=tuple(self._sources),
            redelivered=columns.pop("redelivered").astype(np.bool_),
            **columns,
        )
