"""What a machine of `delivery/` or `reading/` wants read, done at a Transport; and what comes, given in its terms."""

from collections import Counter
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from totalorder.errors import EventsLost
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.control import Answer, decode_answer
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.subscriber.delivery.effects import (
    PauseEvents,
    PauseStamps,
    ReadEvents,
    Reads,
    ReadStamps,
    ReadStampsAnew,
    ResumeEvents,
    StopEvents,
    StopStamps,
)
from totalorder.subscriber.delivery.events import GONE
from totalorder.subscriber.stamps_log import first_offset, headers_of
from totalorder.subscriber.transport import Partition, Record, Transport

_PLACE = itemgetter(*map(Record._fields.index, ("topic", "partition", "topic_id")))
"""Where a record comes from."""


class Fed(Protocol):
    """Who has the machine. What it wants read upon one of these is given to `Feed.apply` before the call returns."""

    def take_answer(self, answer: Answer, /) -> None:
        """The next answer on grants."""
        ...

    def take_stamps(self, batch: StampedBatch, offsets: range, /) -> None:
        """The next batch of a stamps partition, whose parts lie in the log at these offsets."""
        ...

    def take_events(self, source: Source, records: list[Record], /) -> None:
        """The next records of an event partition."""
        ...

    def take_gone(self, source: Source, offset: int, /) -> None:
        """Kafka has nothing of an event partition below `offset` any longer; with `GONE` not even its topic."""
        ...

    def take_others(self, records: list[Record], /) -> None:
        """The next records of a partition of the domain's own that is neither of stamps nor of grants."""
        ...


class Feed:
    """Reads stamps and events of a domain as a machine wishes, beside what else is read of the Transport."""

    def __init__(self, transport: Transport, domain: str, fed: Fed) -> None:
        self.event_partitions: dict[Source, bool] = {}
        """Those that are read, and whether the machine has paused them."""
        self.given: Counter[Partition] = Counter()
        """How many records of the domain's own partitions came, but for stamps."""
        self._transport, self._domain, self._fed = transport, domain, fed
        self._names = DomainTopics(domain=domain)
        self._own, self._cuts = self._names.own(), Partition(self._names.cuts, 0)
        self._assemblers: dict[int, StampsAssembler] = {}
        self._moved: set[Partition] = set()
        """What is read from elsewhere on since records came that are not given yet."""
        self._holding = False

    @property
    def stamps(self) -> list[Partition]:
        """The partitions of stamps that are read."""
        return [Partition(self._names.stamps, number) for number in self._assemblers]

    # --- what comes ---------------------------------------------------------------------------------------------------

    def pump(self, timeout_s: float) -> None:
        """Reads what has come, for at most `timeout_s` when nothing has."""
        self._moved.clear()
        records = self.poll(timeout_s)
        gone = [at for at in self._transport.vanished() if self.event_partitions.pop(at.source, None) is not None]
        self.give(records)
        # A time-out within kafka-python leaves a cycle of all frames that call it, this one too, to the collector.
        records.clear()
        for partition in gone:
            self._fed.take_gone(partition.source, GONE)

    def poll(self, timeout_s: float) -> list[Record]:
        """What has come, to be given. Where Kafka has removed something of events or cuts, reading goes on behind it.

        The machine knows whether an event was lost that is owed: what is gone may be of others, or no event at all.
        What was to be known of cuts, later ones say too.
        """
        try:
            return self._transport.poll(timeout_s)
        except EventsLost as error:
            if not error.gone or error.gone.keys() - self.event_partitions.keys() - {self._cuts.source}:
                raise
            for place, offset in error.gone.items():
                source = Source(*place)
                if source == self._cuts.source:
                    self._transport.read(self._cuts, offset)
                elif source in self.event_partitions:  # the one before may have completed a change that drops it
                    self._transport.read(Partition.of(source), offset)
                    self._let_flow(source)
                    self._fed.take_gone(source, offset)
            return []

    def give(self, records: list[Record]) -> None:
        """Gives what has come, also where something else than `pump` has read it."""
        for _, run in groupby(records, _PLACE):
            self._give(list(run))

    def _give(self, records: list[Record]) -> None:
        """Gives records of one partition, unless that is read from elsewhere on meanwhile."""
        topic, at = records[0].topic, records[0].at
        if topic in self._own and topic != self._names.stamps:
            self.given[at] += len(records)
        if topic == self._names.grants:
            for record in records:
                if record.value is not None:
                    self._fed.take_answer(decode_answer(record.value))
        elif topic == self._names.stamps:
            for record in records:
                if at in self._moved:
                    break
                self._give_stamps(record)
        elif topic in self._own:
            self._fed.take_others(records)
        elif at not in self._moved:
            self._fed.take_events(at.source, records)

    def _give_stamps(self, record: Record) -> None:
        assembler = self._assemblers.get(record.partition)
        if assembler is None:
            return
        batch = assembler.add(record.value, headers_of(record), offset=record.offset)
        if batch is not None:
            self._fed.take_stamps(batch, range(assembler.began_at, record.offset + 1))

    # --- what is read -------------------------------------------------------------------------------------------------

    def apply(self, effect: Reads) -> None:
        """Reads as the machine wishes."""
        if isinstance(effect, ReadEvents | StopEvents | PauseEvents | ResumeEvents):
            self._apply_to_events(effect)
            return
        partition = Partition(self._names.stamps, effect.partition)
        if isinstance(effect, ReadStamps | ReadStampsAnew):
            offset = effect.offset if isinstance(effect, ReadStamps) else first_offset(self._transport, partition)
            self._assemblers[effect.partition] = StampsAssembler(domain=self._domain, partition=effect.partition)
            self._transport.read(partition, offset)
            self._moved.add(partition)
        elif isinstance(effect, StopStamps):
            del self._assemblers[effect.partition]
            self._transport.stop(partition)
        elif isinstance(effect, PauseStamps):
            self._transport.pause(partition)
        else:
            self._transport.resume(partition)

    def _apply_to_events(self, effect: ReadEvents | StopEvents | PauseEvents | ResumeEvents) -> None:
        source, partition = effect.source, Partition.of(effect.source)
        if isinstance(effect, StopEvents):
            if self.event_partitions.pop(source, None) is not None:
                self._transport.stop(partition)
            return
        if isinstance(effect, ReadEvents):
            self._transport.read(partition, effect.offset)
            self._moved.add(partition)
        elif source not in self.event_partitions:
            return  # it has vanished
        self.event_partitions[source] = isinstance(effect, PauseEvents)
        self._let_flow(source)

    def hold(self, *, holding: bool) -> None:
        """Reads no events while that is true, whatever the machine has paused."""
        if holding != self._holding:
            self._holding = holding
            for source in self.event_partitions:
                self._let_flow(source)

    def _let_flow(self, source: Source) -> None:
        if self._holding or self.event_partitions[source]:
            self._transport.pause(Partition.of(source))
        else:
            self._transport.resume(Partition.of(source))
