"""Deliveries of the delivery machine, one by one."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.effects import Deliveries, Tag


class Deliver(NamedTuple):
    """One event of Deliveries, as plain values.

    `handle` is what came in with the event; `entries` are the clocks that the stamp writes for other topics of the
    subscription (delta-coded: a topic that is left out has not advanced since the predecessor in this topic).
    `sequence` counts this process's deliveries, those of DeliverLost too: 1, 2, 3 …
    """

    handle: object
    topic: str
    source: Source
    offset: int
    n: int
    g: int
    entries: Mapping[str, int]
    tag: Tag | None
    sequence: int


def each(block: Deliveries) -> Iterator[Deliver]:
    """The events of a block."""
    names, through = block.names, block.delivered_through
    columns = (*block.rows.table[:5].tolist(), block.rows.each_gates(), block.handles)
    for sequence, (topic, n, g, source, offset, gates, handle) in enumerate(zip(*columns, strict=True), block.first):
        yield Deliver(
            handle=handle,
            topic=names[topic],
            source=block.sources[source],
            offset=offset,
            n=n,
            g=g,
            entries={names[topic]: n for topic, n in gates},
            tag="redelivered" if g <= through else None,
            sequence=sequence,
        )
