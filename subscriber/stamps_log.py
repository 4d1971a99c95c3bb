"""A domain's stamps as a log to look into: where something begins, and what lies from there to the present end."""

from collections.abc import Callable, Iterator, Mapping

from totalorder.errors import Contradiction, EventsLost, WireError
from totalorder.sequencer.wire.codec import StampsAssembler, decode_part
from totalorder.sequencer.wire.limits import MAX_PARTS
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.position import StampsMark
from totalorder.subscriber.delivery.effects import (
    Effect,
    PauseStamps,
    ReadStamps,
    ReadStampsAnew,
    ResumeStamps,
    StopStamps,
)
from totalorder.subscriber.kafka_losses import removed
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.reading.search import Looked, Search
from totalorder.subscriber.reading.stamps import UNKNOWN, Batches, Whole
from totalorder.subscriber.transport import Partition, Record, Transport

Others = Callable[[list[Record], bool], None]
_WAIT_S = 0.2
_ALL = 2**63 - 1
_MOST_WAITING = 50_000
LAST_RECORDS = 16
"""Among so many of each partition the newest batch is looked for, however many were written late behind it."""
_MOST_DIGITS = len(str(MAX_PARTS))
_GONE = "Raise the retention of the stamps topic. Without stamps there is no order: begin at what is there by "
EARLIEST = 'start="earliest" (--start earliest)'


def headers_of(record: Record) -> dict[str, bytes]:
    """Headers with a value, by name."""
    return {name: value for name, value in record.headers if value is not None}


def first_offset(transport: Transport, partition: Partition) -> int:
    """Where a partition begins by now: retention may have moved that since it was last looked at."""
    return transport.beginning_offsets([partition])[partition]


def looked_at(record: Record, domain: str) -> Looked:
    """What a record of stamps says; WireError for one that is none of the domain's, or none."""
    batch, where = decode_part(record.value), f"{record.topic}[{record.partition}]@{record.offset}"
    if (batch.domain, batch.partition) != (domain, record.partition):
        raise WireError(f"{where} belongs elsewhere")
    part = headers_of(record).get("part", b"")
    if not part.isdigit() or len(part) > _MOST_DIGITS:
        raise WireError(f"{where} does not say which part it is")
    return Looked.at(record.offset, int(part), batch)


class StampsLog:
    """Some partitions of a domain's stamps, as they are at the moment that this is made.

    `others` is called with the records of other topics after each look, and whether anything came at all; it may raise.
    Every method raises BrokerUnavailable.
    """

    def __init__(self, transport: Transport, domain: str, partitions: list[int], others: Others) -> None:
        self._transport, self._domain, self._others = transport, domain, others
        self._topic = DomainTopics(domain=domain).stamps
        self._partitions = [Partition(self._topic, number) for number in partitions]
        begins = transport.beginning_offsets(self._partitions)
        ends = transport.end_offsets(self._partitions)
        self.begins = {at.number: begins[at] for at in self._partitions}
        self.ends = {at.number: ends[at] for at in self._partitions}
        self.anew: Mapping[int, int] = {}
        """See Batches, of the last walk."""

    # --- where something begins ---------------------------------------------------------------------------------------

    def search(self, before: Callable[[Looked], bool]) -> dict[int, Search]:
        """In each partition the last record that is before what is wanted."""
        searches = {at: Search(self.begins[at], self.ends[at], before) for at in self.begins}
        asked: dict[int, int] = {}
        while any(search.offset is not None for search in searches.values()):
            for number, search in searches.items():
                if search.offset is not None and number not in asked:
                    asked[number] = search.offset
                    self._transport.read(Partition(self._topic, number), search.offset)
            for number, looked in self._looked(searches, asked):
                self._transport.stop(Partition(self._topic, number))
                del asked[number]
                searches[number].found(looked)
        return searches

    def _looked(self, searches: Mapping[int, Search], asked: Mapping[int, int]) -> Iterator[tuple[int, Looked | None]]:
        """Of those that are asked: the first record that came, or that there is none."""
        came = self._poll()
        for number, offset in list(asked.items()):
            record = next((one for one in came if one.partition == number and one.offset >= offset), None)
            if record is not None:
                yield number, looked_at(record, self._domain)
            elif self._transport.position(Partition(self._topic, number)) >= searches[number].end:
                yield number, None

    def marks(self, searches: Mapping[int, Search], what: str) -> dict[int, StampsMark]:
        """Where to read each partition to have all stamps behind what was before; EventsLost where some are gone.

        `what` is wanted, for the message.
        """
        behind = max((search.last.batch for search in searches.values() if search.last), default=0)
        more = any(search.first for search in searches.values())
        for number, search in searches.items():
            first = search.first
            if search.last is not None or (first is None and not search.end):
                continue
            if first is None and behind and not more:
                continue  # nothing is left there, and nothing else was stamped since
            if first is None or first.batch + (first.part > 0) > behind + 1:
                known = f"to batch {first.batch}, which ends at g {first.g}" if first else f"to offset {search.begin}"
                raise EventsLost(
                    f"{self._topic}[{number}] reaches back {known}, and {what} lies before that, or may",
                    remedy=_GONE + EARLIEST,
                )
        return {number: search.mark(behind) for number, search in searches.items()}

    def first_marks(self, behind: int) -> tuple[dict[int, StampsMark], int]:
        """Where to read each partition from the first batch on that all have, of those behind one, and a g before."""
        if any(end and self.begins[number] >= end for number, end in self.ends.items()):
            return self.last_marks()  # of that one all is gone
        searches = self.search(lambda _: False)
        firsts = [search.first for search in searches.values() if search.first is not None]
        behind = max([behind, *(first.batch + (first.part > 0) - 1 for first in firsts)])
        return {number: search.mark(behind) for number, search in searches.items()}, 0

    def last_marks(self) -> tuple[dict[int, StampsMark], int]:
        """Where to read each partition behind all that is there, and the last position of π that is there.

        The very last record may be one that a replaced process of the job has written late. The newest batch of all
        partitions is the last one: what some of them lack of it, or of those before, comes later and is not wanted.
        """
        newest = self._newest()
        behind = newest.batch if newest else UNKNOWN if any(self.ends.values()) else 0
        marks = {number: StampsMark(offset=end, batch=behind) for number, end in self.ends.items()}
        return marks, newest.g if newest else 0

    def _newest(self) -> Looked | None:
        """Of the last records of each partition the one of the newest batch."""
        reading = {number: search.last.offset for number, search in self.search(lambda _: True).items() if search.last}
        for number, last in reading.items():
            at = Partition(self._topic, number)
            self._transport.read(at, max(self.begins[number], last + 1 - LAST_RECORDS))
        newest: Looked | None = None
        while reading:
            for record in self._poll():
                if record.partition in reading and record.offset < self.ends[record.partition]:
                    looked = looked_at(record, self._domain)
                    newest = looked if newest is None or looked.batch > newest.batch else newest
            for number in [number for number in reading if self._is_through(number)]:
                self._transport.stop(Partition(self._topic, number))
                del reading[number]
        return newest

    def require_there(self, marks: Mapping[int, StampsMark]) -> None:
        """EventsLost where a partition begins by now behind where it would be read."""
        positions = {Partition(self._topic, number): mark.offset for number, mark in marks.items()}
        lost = removed(positions, self._transport.beginning_offsets(list(positions)))
        if lost is not None:
            raise lost

    def has_moved(self, lost: EventsLost) -> bool:
        """Whether stamps alone are gone: then nothing is read any more, and partitions begin where they do by now."""
        if any(source.topic != self._topic for source in lost.gone):
            return False
        for at in self._partitions:
            self._transport.stop(at)
        begins = self._transport.beginning_offsets(self._partitions)
        self.begins = {at.number: begins[at] for at in self._partitions}
        self.ends = {number: max(end, self.begins[number]) for number, end in self.ends.items()}
        return True

    # --- what lies there ----------------------------------------------------------------------------------------------

    def walk(
        self,
        marks: Mapping[int, StampsMark],
        choice: Choice,
        *,
        partitions: int,
        after: int,
        through_batch: int | None = None,
    ) -> Iterator[Whole]:
        """Batch after batch, from the marks to the end: the stamps of chosen topics behind g `after`.

        Or through a batch, which need not be there yet: then it is waited for. Where one partition is ahead of the
        others, some 50,000 stamps of it are held.
        """
        effects: list[Effect] = []
        batches = Batches(
            self._domain,
            partitions,
            choice,
            marks,
            after=after,
            effects=effects,
            contradicts=lambda what: Contradiction(f"the stamps of domain {self._domain!r}: {what}"),
            max_waiting=_MOST_WAITING,
        )
        self.anew = batches.anew
        reading: dict[int, StampsAssembler] = {}
        self._carry_out(effects, reading)
        while reading:
            moved = set[int]()
            for record in self._poll():
                if record.partition in moved:
                    continue  # it comes once more, behind what was missing before it
                if record.partition in reading and (through_batch or record.offset < self.ends[record.partition]):
                    batch = reading[record.partition].add(record.value, headers_of(record), offset=record.offset)
                    if batch is not None:
                        batches.admit(batch)
                        while (whole := batches.take(_ALL)) is not None:
                            yield whole
                            if whole.batch == through_batch:
                                batches.stop()
                        batches.regulate(0)
                        moved |= self._carry_out(effects, reading)
            through = [number for number in reading if not through_batch and self._is_through(number)]
            if not through_batch and batches.paused.issuperset(reading.keys() - through):
                through = list(reading)  # those that are paused wait for others, which have no more
            for number in through:
                self._transport.stop(Partition(self._topic, number))
                del reading[number]

    def _carry_out(self, effects: list[Effect], reading: dict[int, StampsAssembler]) -> set[int]:
        """The partitions that are read from elsewhere on now."""
        moved = set()
        for effect in effects:
            assert isinstance(effect, ReadStamps | ReadStampsAnew | PauseStamps | ResumeStamps | StopStamps)
            at = Partition(self._topic, effect.partition)
            if isinstance(effect, ReadStamps | ReadStampsAnew):
                if isinstance(effect, ReadStampsAnew):
                    self.begins[effect.partition] = first_offset(self._transport, at)
                offset = effect.offset if isinstance(effect, ReadStamps) else self.begins[effect.partition]
                reading[effect.partition] = StampsAssembler(domain=self._domain, partition=effect.partition)
                self._transport.read(at, offset)
                moved.add(effect.partition)
            elif isinstance(effect, StopStamps):
                reading.pop(effect.partition, None)
                self._transport.stop(at)
            elif effect.partition in reading:
                (self._transport.pause if isinstance(effect, PauseStamps) else self._transport.resume)(at)
        effects.clear()
        return moved

    def _is_through(self, number: int) -> bool:
        return self._transport.position(Partition(self._topic, number)) >= self.ends[number]

    def _poll(self) -> list[Record]:
        """Records of stamps that have come."""
        records = self._transport.poll(_WAIT_S)
        self._others([record for record in records if record.topic != self._topic], bool(records))
        return [record for record in records if record.topic == self._topic]
