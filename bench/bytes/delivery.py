"""What a subscriber pays for vector and for scalar timestamps: processor time, and what it must wait for.

Both run in the production machine (subscriber/delivery/). With scalar timestamps it puts events in order by frontiers,
as it does behind a lapsed lease: a grant that does not continue the one before holds it in that mode.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from totalorder.bench.bytes.scalar import without_entries
from totalorder.bench.domain import EVENTS, Domain
from totalorder.bench.timing import timed
from totalorder.bench.workload import Workload
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.wire.codec import StampsAssembler, WireRecord, encode_stamps
from totalorder.sequencer.wire.control import Grant
from totalorder.sequencer.wire.position import partitions_of
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery.effects import Deliveries, Effect
from totalorder.subscriber.delivery.events import EventBlock
from totalorder.subscriber.delivery.machine import Delivery

Step = tuple[Batch, Sequence[StampedBatch]]
"""A batch of events and its stamps, one for each stamps partition."""
_END_OF_TIME = 2**62


@dataclass(frozen=True, kw_only=True)
class ModeCost:
    """Microseconds an event of the domain; `early` is the share of deliveries before the last of the batch's stamps."""

    decode_us: float
    gate_us: float
    early: float
    delivered: float
    """Deliveries an event of the domain, of one subscriber."""


@dataclass(frozen=True, kw_only=True)
class DeliveryCost:
    """Both modes, of the same subscribers and events."""

    vector: ModeCost
    scalar: ModeCost


def delivery_cost(workload: Workload, *, subscribers: int, size: int, batches: int, readers: int) -> DeliveryCost:
    """The mean of `readers` subscribers over so many batches of `size` events, with m = 1."""
    domain = Domain(workload, min_subscriptions=1, events=size * (1 + batches))
    domain.run(domain.next_batch(size))  # a grant names the event partitions that were seen
    answers = domain.subscribe(workload.subscriptions(subscribers, 10)).answers
    grants = [answer for answer in answers if isinstance(answer, Grant)]
    steps = []
    for _ in range(batches):
        batch = domain.next_batch(size)
        steps.append((batch, domain.run(batch).stamps))
    machines = {
        scalar: [_subscriber(grant, grants[-1], scalar=scalar) for grant in grants[:readers]]
        for scalar in (False, True)
    }
    return DeliveryCost(vector=_cost(machines[False], steps), scalar=_cost(machines[True], _scalar(steps)))


def _scalar(steps: Iterable[Step]) -> list[Step]:
    digests: dict[int, str] = {}
    bare: list[Step] = []
    for batch, stamps in steps:
        chained = [
            without_entries(stamped, digests.get(stamped.partition, stamped.previous_digest)) for stamped in stamps
        ]
        digests = {stamped.partition: stamped.digest for stamped in chained}
        bare.append((batch, chained))
    return bare


def _cost(machines: Sequence[Delivery], steps: Sequence[Step]) -> ModeCost:
    events = sum(len(batch.offset) for batch, _ in steps)
    early = late = 0
    seconds = 0.0
    for machine in machines:
        read = partitions_of(machine.topics, steps[0][1][0].partitions)
        for number, (batch, stamps) in enumerate(steps):
            mine = [each for each in stamps if each.partition in read]
            done, took = timed(partial(_deliveries, machine, batch, mine, number))
            seconds += took
            early, late = early + sum(done[:-1]), late + done[-1]
    return ModeCost(
        decode_us=_decode_seconds(steps) / events * 1e6,
        gate_us=seconds / events / len(machines) * 1e6,
        early=early / (early + late),
        delivered=(early + late) / events / len(machines),
    )


def _subscriber(grant: Grant, last: Grant, *, scalar: bool) -> Delivery:
    """A machine that has read its own grant and, as it must before it delivers, all answers up to the last one."""
    machine = Delivery(id=grant.id, nonce=grant.nonce, domain="bench", max_buffered=10**9, max_waiting=10**9)
    # The batches of the grants hold no event, and their stamps are not fed.
    machine.answer(replace(grant, batch=last.batch + 1))
    machine.answer(last)
    if scalar:
        machine.answer(replace(grant, generation=grant.generation + 2, g=_END_OF_TIME, continuous=False))
    return machine


def _publish(machine: Delivery, batch: Batch) -> None:
    """All events of the batch, before any stamp: a subscriber of keyed topics reads whole Kafka partitions."""
    for partition in np.unique(batch.partition).tolist():
        at = np.flatnonzero(batch.partition == partition)
        topics = [batch.topics[topic] for topic in batch.topic[at].tolist()]
        offsets, crcs = batch.offset[at].tolist(), batch.crc[at].tolist()
        machine.events(Source(*EVENTS, partition), EventBlock(offsets, topics, crcs, [None] * len(at)))


def _deliveries(machine: Delivery, batch: Batch, stamps: Iterable[StampedBatch], number: int) -> list[int]:
    """How many come with each part of a batch's stamps, after its events."""
    _publish(machine, batch)
    return [_delivered(machine.stamped(each, offset=number, next_offset=number + 1)) for each in stamps]


def _delivered(effects: Iterable[Effect]) -> int:
    return sum(len(effect) for effect in effects if isinstance(effect, Deliveries))


def _decode_seconds(steps: Sequence[Step]) -> float:
    """Processor time to read all stamps partitions, as most subscribers of ten topics do; digests are checked."""
    log: list[tuple[int, WireRecord]] = [
        (stamped.partition, record) for _, stamps in steps for stamped in stamps for record in encode_stamps(stamped)
    ]
    readers = {number: StampsAssembler(domain="bench", partition=number) for number, _ in log}

    def read() -> None:
        for number, record in log:
            readers[number].add(record.value, dict(record.headers))

    return timed(read)[1]
