"""π computed anew from what Kafka has: a batch's cut, the records that it took, and its time from stamps.

It needs neither the sequencer's state nor Spark's write-ahead log (protocol.md, "Cuts in public"), so that whoever does
not trust the job can compare: `misplaced` says where stamps tell another order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from totalorder.errors import Contradiction
from totalorder.sequencer.order import pi_order
from totalorder.sequencer.wire.cuts import Cut
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, StampedBatch

Ints = npt.NDArray[np.int64]
Place = tuple[Source, int]
"""Where an event is: its partition and offset."""
_OTHERS = "Two sequencers write to this domain, or stamps are not the sequencer's: look for another writer"


@dataclass(frozen=True, kw_only=True)
class Records:
    """Every record of event partitions that a batch took, as columns, in any order; `source` counts in the cut's
    sources. τ is a running maximum: where records are missing, the order may come out otherwise.
    """

    source: Ints
    offset: Ints
    timestamp_ms: Ints


def ranked(ranks: Mapping[KafkaTopic, int], stamped: StampedBatch) -> dict[KafkaTopic, int]:
    """The ranks of Kafka topics once a batch is stamped, from those before it; the domain's first batch begins with
    none. New ones are numbered in byte order of name and id.
    """
    new = {source.kafka_topic for source in stamped.sources} - ranks.keys()
    return {**ranks, **{topic: len(ranks) + at for at, topic in enumerate(sorted(new))}}


def order_of(cut: Cut, records: Records, *, time_ms: int, ranks: Mapping[KafkaTopic, int]) -> Ints:
    """Row numbers of the records of one batch in π. `time_ms` is the batch's, `ranks` are those after the batch.

    Contradiction for a record that the cut does not have, or a topic that has no rank: records of topics that were
    retired before (`Retired` on grants) are to be left out.
    """
    slices = cut.slices_at(records.source, records.offset)
    outside = np.flatnonzero(slices < 0)
    if len(outside):
        raise _outside(cut, _place(cut, records, int(outside[0])))
    used = {cut.sources[at].kafka_topic for at in np.unique(records.source).tolist()}
    if unknown := sorted(used - ranks.keys()):
        raise Contradiction(
            f"stamps know nothing of {unknown[0].name}, and cut {cut.cut} has records of it", remedy=_OTHERS
        )
    places = {topic: at for at, topic in enumerate(cut.topic_order)}
    return pi_order(
        slice_=slices,
        rank=np.array([ranks.get(source.kafka_topic, -1) for source in cut.sources])[records.source],
        precedence=np.array([places.get(source.topic, len(places)) for source in cut.sources])[records.source],
        partition=np.array([source.partition for source in cut.sources])[records.source],
        offset=records.offset,
        timestamp_ms=records.timestamp_ms,
        time_ms=time_ms,
    )


def misplaced(
    cut: Cut, records: Records, batch: Sequence[StampedBatch], ranks: Mapping[KafkaTopic, int]
) -> tuple[Place, Place] | None:
    """Two events of which stamps put the second first; None where g ascends along π in the whole batch.

    `batch` has what all stamps partitions say of it. Contradiction for a stamp outside the cut, of a record that is not
    there, or of another cut.
    """
    stamped = dict(_stamps(batch))
    if {one.cut for one in batch} != {cut.cut} or len({one.batch for one in batch}) != 1:
        raise Contradiction(f"stamps are not those of cut {cut.cut}", remedy=_OTHERS)
    order = order_of(cut, records, time_ms=batch[0].time_ms, ranks=ranks)
    places = [_place(cut, records, row) for row in order.tolist()]
    if strange := sorted(stamped.keys() - set(places)):
        raise _outside(cut, strange[0])
    in_pi = [place for place in places if place in stamped]
    for first, second in pairwise(in_pi):
        if stamped[first] > stamped[second]:
            return first, second
    return None


def _place(cut: Cut, records: Records, row: int) -> Place:
    return cut.sources[int(records.source[row])], int(records.offset[row])


def _stamps(batch: Iterable[StampedBatch]) -> Iterable[tuple[Place, int]]:
    for one in batch:
        rows = zip(one.rows.source.tolist(), one.rows.offset.tolist(), one.rows.g.tolist(), strict=True)
        for source, offset, g in rows:
            yield (one.sources[source], offset), g


def _outside(cut: Cut, place: Place) -> Contradiction:
    (topic, _, partition), offset = place
    return Contradiction(f"{topic}[{partition}]@{offset} is no record of cut {cut.cut}", remedy=_OTHERS)
