"""What the receipts in a SimKafka say."""

from typing import NamedTuple

from sim_kafka import SimKafka

from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.receipts import decode_receipts
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost
from totalorder.subscriber.transport import Partition


class Receipt(NamedTuple):
    """One delivery."""

    nonce: str
    generation: int
    sequence: int
    topic: str
    source: Source
    offset: int
    n: int
    g: int
    redelivered: bool
    lost: bool
    delivered_ms: int

    def is_of(self, event: Event | Lost) -> bool:
        """Whether it is the event's, or tells of the loss."""
        place = (
            event.topic or event.kafka_topic,
            Source(event.kafka_topic, event.topic_id, event.partition),
            event.first_offset if isinstance(event, Lost) else event.offset,
            event.n or 0,
            event.g,
        )
        told = (event.tag == "redelivered", isinstance(event, Lost))
        return (self.sequence, *self[3:8], self.redelivered, self.lost) == (event.sequence, *place, *told)


def receipts_of(kafka: SimKafka, id: str) -> list[Receipt]:  # noqa: A002
    """All receipts that there ever were of an id, once each, by process (nonce) and order of delivery; a repeated one
    must be equal.
    """
    partition = Partition("d.receipts", stamps_partition(id, kafka.topics["d.receipts"]))
    found: dict[tuple[str, int], Receipt] = {}
    for record in kafka.ever(partition):
        receipts = decode_receipts(record.value, {name: value or b"" for name, value in record.headers})
        assert receipts.domain == "d"
        assert record.key == receipts.id.encode()
        for row in range(len(receipts)) if receipts.id == id else ():
            receipt = Receipt(
                receipts.nonce,
                int(receipts.generation[row]),
                int(receipts.sequence[row]),
                receipts.topics[receipts.topic[row]],
                receipts.sources[receipts.source[row]],
                int(receipts.offset[row]),
                int(receipts.n[row]),
                int(receipts.g[row]),
                bool(receipts.redelivered[row]),
                bool(receipts.lost[row]),
                int(receipts.delivered_ms[row]),
            )
            assert found.setdefault((receipt.nonce, receipt.sequence), receipt) == receipt, "repeated, and not equal"
    return [found[at] for at in sorted(found)]
