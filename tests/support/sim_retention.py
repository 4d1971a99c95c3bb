"""What Kafka forgets in a simulated world: what nobody needs any longer, or ever will."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from totalorder.sequencer.wire.control import Grant, decode_answer
from totalorder.sequencer.wire.position import decode_saved
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.transport import Partition

if TYPE_CHECKING:
    from sim_process import Process
    from sim_world import World

Need = tuple[Mapping[int, int], Mapping[Source, int]]
"""From where on someone may need stamps, by partition, and events."""


class Retention:
    """Of a world whose retention is long enough: who begins, or sleeps for minutes, finds all that it needs, but for
    what `lose` takes."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def compact(self) -> None:
        """Of positions, and of grants, the last record of each key stays."""
        world = self._world
        for number in range(world.domain.stamps_partitions):
            world.kafka.compact(Partition(world.names.positions, number))
        grants = Partition(world.names.grants, 0)
        before = self._unheard_of(grants) if world.compacts_grants else self._old_grants(grants)
        world.kafka.compact(grants, before)

    def _unheard_of(self, grants: Partition) -> int | None:
        """Where the first of those reads grants that were granted something, and replaced, and have not heard of it:
        none of them sleeps for longer than grants are kept whole. What one would do that does, docs/protocol.md says.
        """
        world = self._world
        granted = [answer for answer in world.sequencer.answers if isinstance(answer, Grant)]
        newest = {answer.id: answer.nonce for answer in granted}
        nonces = {answer.nonce for answer in granted} - set(newest.values())
        replaced = [process for process in world.turns.alive if process.nonce in nonces]
        return min(self._read_to(grants, replaced), default=None)

    def _old_grants(self, grants: Partition) -> int:
        """Where grants begin that are too young: the stamps of their batch are still there (`min.compaction.lag.ms` is
        the stamps' retention), or a process has not read them.
        """
        world = self._world
        last = min(self._last_gone(number) for number in range(world.domain.stamps_partitions))
        answers = ((record.offset, decode_answer(record.value or b"")) for record in world.kafka.logs.get(grants, []))
        young = next((offset for offset, answer in answers if answer.batch > last), world.kafka.end(grants))
        return min([young, *self._read_to(grants)])

    def _last_gone(self, number: int) -> int:
        """The last batch of which a stamps partition has nothing any more, at least."""
        at = Partition(self._world.names.stamps, number)
        log = self._world.kafka.logs.get(at, [])
        batches = [int(value) for record in log for name, value in record.headers if name == "batch" and value]
        return min(batches, default=1) - 1

    def trim(self) -> None:
        """Stamps, events, receipts and cuts of the past."""
        world, kafka, names = self._world, self._world.kafka, self._world.names
        control = Partition(names.control, 0, kafka.ids[names.control])
        unanswered = kafka.end(control) > world.sequencer.offsets.get(control, 0)
        if world.sequencer.planned is not None or unanswered or world.late:
            return  # what is granted yet may need what lies behind the ends that the request names
        kept = [need for slot in world.slots for need in self.needs(slot.id)]
        # One that begins may be about to read from a position that is no longer the newest.
        kept += [need for process in world.turns.alive if not process.started_at for need in process.kept]
        for number in range(world.domain.stamps_partitions):
            at = Partition(names.stamps, number)
            self._trim_one(at, [kafka.end(at), *(stamps.get(number, kafka.end(at)) for stamps, _ in kept)])
            self._trim_some(Partition(names.receipts, number))
        self._trim_some(Partition(names.cuts, 0))
        for topic in kafka.topics.keys() & set(world.kafka_topics):
            for number in range(kafka.topics[topic]):
                source = Partition(topic, number, kafka.ids[topic])
                needed = [events.get(source.source, 0) for _, events in kept]
                self._trim_one(Partition(topic, number), [world.sequencer.offsets.get(source, 0), *needed])

    def lose(self) -> None:
        """Events are gone, whoever still needs them."""
        world, kafka = self._world, self._world.kafka
        if not world.sequencer.event_topics:
            return  # none was admitted yet, or all have retired
        topic = world.rng.choice(world.sequencer.event_topics)
        if topic in kafka.topics:
            self._trim_some(Partition(topic, world.rng.randrange(kafka.topics[topic])))

    def _trim_one(self, at: Partition, needed: list[int]) -> None:
        self._world.kafka.trim(at, min([*needed, *self._read_to(at)]))

    def _trim_some(self, at: Partition) -> None:
        kafka = self._world.kafka
        kafka.trim(at, self._world.rng.randint(kafka.begin(at), kafka.end(at)))

    def _read_to(self, at: Partition, processes: "Iterable[Process] | None" = None) -> list[int]:
        """Where these processes (all, and Readers) read a partition, or may want to."""
        found = self._world.turns.alive if processes is None else processes
        read = [places for process in found for places in (process.transport.positions, process.transport.noted)]
        if processes is None:
            read += [reader.transport.positions for reader in self._world.followers.reading]
        return [position for places in read for place, position in places.items() if place[:2] == at[:2]]

    def needs(self, subscriber: str) -> Iterator[Need]:
        """What an id may need: by its saved positions, and the grants that came later."""
        newest: dict[bytes | None, bytes | None] = {}
        for record in self._world.kafka.logs.get(self._world.positions_of(subscriber), []):
            if record.key is not None and record.key.startswith(f"{subscriber}/".encode()):
                newest[record.key] = record.value
        saves = [decode_saved(value) for value in newest.values() if value is not None]
        for saved in saves:
            yield {number: mark.offset for number, mark in saved.position.stamps.items()}, saved.position.sources
        known = min((saved.position.generation for saved in saves), default=0)
        for answer in self._world.sequencer.answers:
            if isinstance(answer, Grant) and answer.id == subscriber and answer.generation > known:
                yield answer.stamps_ends, answer.next_offsets
