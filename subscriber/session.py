"""The work behind a Subscriber: requests, the feeding of the delivery machine, receipts, saved positions.

It carries bytes between a Transport and the machine and keeps times; what may be delivered is the machine's decision
alone. Nothing here runs by itself: `pump` is called by whoever waits for events.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from totalorder.errors import (
    BrokerUnavailable,
    Rejected,
    SequencerUnavailable,
    SettingsError,
    SubscriptionEnded,
)
from totalorder.sequencer.codec import StampsAssembler
from totalorder.sequencer.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renew,
    Request,
    Subscribe,
    Unsubscribe,
    decode_answer,
    encode_request,
)
from totalorder.sequencer.delivery import Delivery
from totalorder.sequencer.delivery_effects import (
    Deliver,
    Effect,
    Finished,
    Granted,
    PauseEvents,
    PauseStamps,
    ReadEvents,
    ReadStamps,
    ResumeEvents,
    ResumeStamps,
    StopEvents,
    StopStamps,
    Switched,
)
from totalorder.sequencer.limits import MAX_LEASE_S, MAX_TOPICS_PER_SUBSCRIPTION
from totalorder.sequencer.names import DomainTopics, stamps_partition, valid_id, valid_topic
from totalorder.sequencer.position import Position, SavedPosition, decode_saved, encode_saved
from totalorder.sequencer.stamps import Source
from totalorder.subscriber.event import Event
from totalorder.subscriber.naming import crc_of, topic_of
from totalorder.subscriber.receipts import Journal
from totalorder.subscriber.transport import Partition, Record, Transport

_ATTEMPTS = 5
"""How often a request is asked again because another process changed the id's generation in between."""
_WAIT_S = 0.2
_TIMED_SEND_S = 2.0
"""What is sent because it is time waits no longer for the broker than this, and is sent again at the next time."""
_REFRESH_S = 60.0
"""Even where each acknowledgement is saved: without events the offsets to resume from would age out of retention."""
_RECEIPTS_REMEDY = (
    "Check that `totalorder sequence` runs; one of an older release keeps no receipts: update it, or go without by "
    "receipts=False (--no-receipts)"
)
_NEWS_S = 1.0
"""However much is ready, grants are read and receipts sent this often."""


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings of one process of a subscriber id; seconds and counts."""

    id: str
    domain: str
    lease_s: int = 86_400
    start_timeout_s: float = 60.0
    save_interval_s: float = 0.0
    max_buffered: int = 1_000
    max_waiting: int = 50_000
    begin_anew: bool = False
    receipts: bool = True

    def __post_init__(self) -> None:
        DomainTopics(domain=self.domain)
        if not valid_id(self.id):
            raise SettingsError(
                f"subscriber id {self.id!r} is not usable", remedy="Use 1 to 128 of A-Z a-z 0-9 . _ : @ -"
            )
        if not 0 <= self.lease_s <= MAX_LEASE_S:
            raise SettingsError(f"lease_s = {self.lease_s} is not 0 (never ends) to {MAX_LEASE_S}")
        if self.start_timeout_s <= 0 or self.save_interval_s < 0 or self.max_buffered < 1 or self.max_waiting < 1:
            raise SettingsError(
                "start_timeout_s, max_buffered and max_waiting must be more than 0, save_interval_s not less than 0"
            )


def checked_topics(topics: Iterable[str]) -> tuple[str, ...]:
    """The topics sorted and once each; SettingsError when the sequencer would refuse them."""
    if isinstance(topics, str):
        raise SettingsError(f"topics is the text {topics!r}", remedy="Give a list of names")
    names = tuple(sorted(set(topics)))
    if not 0 < len(names) <= MAX_TOPICS_PER_SUBSCRIPTION:
        raise SettingsError(f"{len(names)} topics; a subscription holds 1 to {MAX_TOPICS_PER_SUBSCRIPTION}")
    for name in names:
        if not valid_topic(name):
            raise SettingsError(f"{name!r} cannot name a topic", remedy="Use 1 to 255 characters")
    return names


class Session:
    """One process's life as a subscriber. After an error only `close` makes sense."""

    def __init__(
        self,
        transport: Transport,
        settings: SessionSettings,
        *,
        nonce: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self.ready: deque[Deliver] = deque()
        self.finished: Finished | None = None
        self.generation = 0
        """Of this process, 0 before its first grant."""
        self.grant: Grant | None = None
        """The last one of this process."""
        self.held = False
        """While true no event partition is read, and what waits stays here."""
        self._transport, self._settings, self._nonce, self._clock = transport, settings, nonce, clock
        self._names = DomainTopics(domain=settings.domain)
        self._grants = Partition(self._names.grants, 0)
        self._positions = Partition(self._names.positions, 0)
        """Where positions of this id are saved; the true number is known once the topic is there."""
        self._machine = Delivery(id=settings.id, nonce=nonce, domain=settings.domain)
        self._journal = Journal(
            transport, domain=settings.domain, id=settings.id, nonce=nonce, clock=clock, wall_clock=wall_clock
        )
        self._stamps_count = 0
        self._assemblers: dict[int, StampsAssembler] = {}
        self._first_parts: dict[int, int] = {}
        self._moved: set[Partition] = set()
        self._event_partitions: dict[Source, bool] = {}
        self._holding = False
        self._latest = 0
        """The newest generation of the id that any process holds or held."""
        self._own_answer = 0
        """Generation of the last grant or end that answered this process."""
        self._lapsed = False
        self._rejections: dict[int, Rejection] = {}
        self._renew_at: float | None = None
        self._save_at = self._pump_at = 0.0
        self._saved: Position | None = None
        self._stale_keys: set[bytes] = set()

    # --- start --------------------------------------------------------------------------------------------------------

    def start(self, topics: tuple[str, ...]) -> None:
        """Takes the id over and subscribes; returns once the sequencer has granted it.

        Raises SequencerUnavailable when that takes longer than `start_timeout_s`, Rejected when it is refused.
        """
        deadline = self._clock() + self._settings.start_timeout_s
        self._stamps_count = self._count(self._names.stamps, deadline)
        ends = self._stamps_ends()
        history = self._read_through(self._grants, deadline)
        self._positions = self._partition_of_id(self._names.positions, deadline)
        if self._settings.receipts:
            self._journal.open(self._partition_of_id(self._names.receipts, deadline, _RECEIPTS_REMEDY))
        saves: list[Record] = []
        if not self._settings.begin_anew:
            read = self._read_through(self._positions, deadline)
            self._transport.stop(self._positions)
            saves = [record for record in read if record.topic == self._positions.topic]
            history += [record for record in read if record.topic == self._grants.topic]
        self._make_machine(self._newest(saves), [decode_answer(r.value) for r in history if r.value is not None])
        for record in history:
            self._dispatch(record)
        self._subscribe(topics, ends, deadline)

    def _make_machine(self, saved: SavedPosition | None, history: Sequence[Answer]) -> None:
        """A machine that goes on after what was saved, or else from an older grant, or else begins at the next."""
        position = saved.position if saved is not None else None
        if position is None and not self._settings.begin_anew:
            granted = self._never_saved(history)
            position = Position.at(granted) if granted is not None else None
        self._machine = Delivery(
            id=self._settings.id,
            nonce=self._nonce,
            domain=self._settings.domain,
            position=position,
            delivered_through=saved.delivered_through if saved is not None else 0,
            adopts=not self._settings.begin_anew,
            max_buffered=self._settings.max_buffered,
            max_waiting=self._settings.max_waiting,
        )
        self._apply(self._machine.start())

    def _never_saved(self, history: Iterable[Answer]) -> Grant | None:
        """The first grant of the id since it was unsubscribed last.

        Former processes were granted this and what followed, and died before they could save anything: all is owed.
        """
        first: Grant | None = None
        for answer in history:
            if answer.id != self._settings.id:
                continue
            if isinstance(answer, Ended) and answer.reason == "unsubscribed":
                first = None
            elif isinstance(answer, Grant):
                first = first or answer
        return first

    def _newest(self, records: Iterable[Record]) -> SavedPosition | None:
        prefix = f"{self._settings.id}/".encode()
        saves: dict[bytes, bytes] = {}
        for record in records:
            if record.key is not None and record.key.startswith(prefix):
                saves.pop(record.key, None)
                if record.value is not None:
                    saves[record.key] = record.value
        self._stale_keys = set(saves)
        return max((decode_saved(value) for value in saves.values()), key=lambda saved: saved.age, default=None)

    def _partition_of_id(self, topic: str, deadline: float, remedy: str = "") -> Partition:
        """Where a topic of the domain's holds what this id writes."""
        return Partition(topic, stamps_partition(self._settings.id, self._count(topic, deadline, remedy)))

    def _count(self, topic: str, deadline: float, remedy: str = "") -> int:
        """Partitions of one of the domain's topics, which the sequencer makes when it first runs."""
        while not (count := self._transport.partitions(topic)):
            if self._clock() >= deadline:
                raise self._no_sequencer(f"there is no topic {topic}", remedy)
            self._transport.poll(_WAIT_S)
        return count

    def _read_through(self, partition: Partition, deadline: float) -> list[Record]:
        """All records of a partition up to its present end; it stays read, and others that are read go on."""
        end = self._transport.end_offsets([partition])[partition]
        self._transport.read(partition, self._transport.beginning_offsets([partition])[partition])
        records: list[Record] = []
        while self._transport.position(partition) < end:
            if self._clock() >= deadline:
                raise self._no_sequencer(f"{partition.topic} could not be read to its end")
            records.extend(self._transport.poll(_WAIT_S))
        return records

    def _stamps_ends(self) -> dict[int, int]:
        partitions = [Partition(self._names.stamps, number) for number in range(self._stamps_count)]
        return {partition.number: end for partition, end in self._transport.end_offsets(partitions).items()}

    # --- requests -----------------------------------------------------------------------------------------------------

    def change(self, topics: tuple[str, ...]) -> None:
        """Re-subscribes with another set; returns once it is granted. What the old set is owed comes first."""
        deadline = self._clock() + self._settings.start_timeout_s
        self._subscribe(topics, self._stamps_ends(), deadline)

    def end(self, *, drain: bool) -> None:
        """Unsubscribes; with `drain` everything before the end is still delivered, else nothing more."""
        deadline = self._clock() + self._settings.start_timeout_s
        if not drain:
            self.ready.clear()
        self._request(
            lambda generation: Unsubscribe(id=self._settings.id, generation=generation, nonce=self._nonce), deadline
        )
        self._renew_at = None
        if not drain:
            self._machine.drop()
            self.ready.clear()
            self.finished = Finished(g=self._machine.g, reason="unsubscribed")
        self.save()

    def _subscribe(self, topics: tuple[str, ...], ends: dict[int, int], deadline: float) -> None:
        def request(generation: int) -> Request:
            return Subscribe(
                id=self._settings.id,
                generation=generation,
                nonce=self._nonce,
                topics=topics,
                lease_s=self._settings.lease_s,
                stamps_ends=ends,
            )

        self._request(request, deadline)

    def _request(self, make: Callable[[int], Request], deadline: float) -> None:
        """Sends a request with the generation that follows the present one, until it is answered."""
        reason = ""
        for _ in range(_ATTEMPTS):
            generation = self._latest + 1
            rejection = self._ask(make(generation), generation, deadline)
            if rejection is None:
                return
            reason = rejection.reason
            if self._lapsed:
                raise SubscriptionEnded(
                    f"the lease of subscriber id {self._settings.id!r} ran out", remedy="Make a new Subscriber to go on"
                )
            if rejection.generation + 1 == generation:
                raise Rejected(f"the sequencer refused the request of subscriber id {self._settings.id!r}: {reason}")
        raise Rejected(
            f"subscriber id {self._settings.id!r} changes hands all the time: {reason}",
            remedy="Run one process per id",
        )

    def _ask(self, request: Request, generation: int, deadline: float) -> Rejection | None:
        sent = self._send_control(request)
        while self._own_answer < generation and sent not in self._rejections:
            if self._clock() >= deadline:
                raise self._no_sequencer("it did not answer the request")
            self.pump(_WAIT_S)
        return self._rejections.pop(sent, None)

    def _send_control(self, request: Request, *, timeout_s: float | None = None) -> int:
        at = Partition(self._names.control, 0)
        return self._transport.send(at, self._settings.id.encode(), encode_request(request), timeout_s=timeout_s)

    def _no_sequencer(self, why: str, remedy: str = "") -> SequencerUnavailable:
        return SequencerUnavailable(
            f"no answer from the sequencer of domain {self._settings.domain!r} within "
            f"{self._settings.start_timeout_s:g} s: {why}",
            remedy=remedy or "Check that `totalorder sequence` runs for this domain, on this broker",
        )

    # --- work ---------------------------------------------------------------------------------------------------------

    def pump(self, timeout_s: float) -> None:
        """Reads what has come, for at most `timeout_s` when nothing has; does what is due by time."""
        self._keep()
        self._pump_at = self._clock() + _NEWS_S
        self._throttle()
        self._moved.clear()
        records = self._transport.poll(timeout_s)
        for record in records:
            if not self._moved or Partition(record.topic, record.partition) not in self._moved:
                self._dispatch(record)
        # A time-out within kafka-python leaves a cycle of all frames that call it, this one too, to the collector.
        records.clear()

    def tick(self) -> None:
        """Before an event is taken, or when none will come: looks for news now and then, and does what is due.

        The id may be another's by now. With nothing ready, `pump` is about to be called anyway.
        """
        if not self.ready and self.finished is None:
            return
        now = self._clock()
        due_at = self._save_at if self._renew_at is None else min(self._save_at, self._renew_at)
        if self.ready and now >= self._pump_at:
            self.pump(0.0)
        elif self.finished is not None or now >= due_at or self._journal.full:
            self._keep()

    def _keep(self) -> None:
        """Renews the lease, sends receipts and saves the position when it is time."""
        if self._journal.full:
            self._journal.send()
        now = self._clock()
        try:
            if self._renew_at is not None and now >= self._renew_at and self.finished is None:
                self._renew_at = now + min(self._settings.lease_s / 3, _TIMED_SEND_S)
                renewal = Renew(id=self._settings.id, generation=self.generation, nonce=self._nonce)
                self._send_control(renewal, timeout_s=_TIMED_SEND_S)
                self._renew_at = now + self._settings.lease_s / 3
            if self._journal.due:
                self._journal.send(_TIMED_SEND_S)
            if self.generation and now >= self._save_at:
                self.save(timeout_s=_TIMED_SEND_S)
        except BrokerUnavailable:
            # Nothing is lost by being late. How long an outage is borne, poll decides.
            pass

    def hand_out(self) -> Event:
        """The next event that is ready, for the application."""
        event = Event.of(self.ready.popleft())
        self._journal.note(event, self.generation)
        return event

    def acknowledge(self, sequence: int) -> None:
        """Everything through delivery number `sequence` is done with."""
        self._machine.acknowledge(sequence)
        if self._settings.save_interval_s == 0:
            self.save()

    def _dispatch(self, record: Record) -> None:
        if record.topic == self._names.grants:
            if record.value is not None:
                answer = decode_answer(record.value)
                self._note(answer)
                self._apply(self._machine.answer(answer))
        elif record.topic == self._names.stamps:
            self._stamps_record(record)
        else:
            topic = topic_of(record, self._machine.topic_by)
            source = (record.topic, record.partition)
            self._apply(
                self._machine.event(
                    source=source, offset=record.offset, topic=topic, crc=crc_of(record.value), handle=record
                )
            )

    def _stamps_record(self, record: Record) -> None:
        assembler = self._assemblers.get(record.partition)
        if assembler is None:
            return
        headers = {name: value for name, value in record.headers if value is not None}
        if headers.get("part") == b"0":
            self._first_parts[record.partition] = record.offset
        batch = assembler.add(record.value, headers)
        if batch is not None:
            first = self._first_parts[record.partition]
            self._apply(self._machine.stamped(batch, offset=first, next_offset=record.offset + 1))

    def _note(self, answer: Answer) -> None:
        """Remembers what answers say about the id's generation and this process's requests."""
        if answer.id != self._settings.id:
            return
        if isinstance(answer, Grant | Ended | Rejection):
            self._latest = max(self._latest, answer.generation)
        if answer.nonce == self._nonce:
            if isinstance(answer, Rejection):
                self._rejections[answer.offset] = answer
            elif isinstance(answer, Grant | Ended):
                self._own_answer = max(self._own_answer, answer.generation)
                self._lapsed = isinstance(answer, Ended) and answer.reason == "expired"
                self.grant = answer if isinstance(answer, Grant) else self.grant

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Deliver):
                self.ready.append(effect)
            elif isinstance(effect, Granted):
                self._granted(effect)
            elif isinstance(effect, Finished):
                self.finished, self._renew_at = effect, None
            elif isinstance(effect, Switched):
                self._save_at = self._clock()
            elif isinstance(effect, ReadStamps | StopStamps | PauseStamps | ResumeStamps):
                self._apply_to_stamps(effect)
            else:
                self._apply_to_events(effect)

    def _apply_to_stamps(self, effect: ReadStamps | StopStamps | PauseStamps | ResumeStamps) -> None:
        partition = Partition(self._names.stamps, effect.partition)
        if isinstance(effect, ReadStamps):
            self._assemblers[effect.partition] = StampsAssembler(
                domain=self._settings.domain, partition=effect.partition
            )
            self._transport.read(partition, effect.offset)
            self._moved.add(partition)
        elif isinstance(effect, StopStamps):
            del self._assemblers[effect.partition]
            self._transport.stop(partition)
        elif isinstance(effect, PauseStamps):
            self._transport.pause(partition)
        else:
            self._transport.resume(partition)

    def _apply_to_events(self, effect: ReadEvents | StopEvents | PauseEvents | ResumeEvents) -> None:
        source, partition = effect.source, Partition(*effect.source)
        if isinstance(effect, StopEvents):
            self._event_partitions.pop(source, None)
            self._transport.stop(partition)
            return
        if isinstance(effect, ReadEvents):
            self._transport.read(partition, effect.offset)
            self._moved.add(partition)
        self._event_partitions[source] = isinstance(effect, PauseEvents)
        self._let_flow(source)

    def _throttle(self) -> None:
        """Stops reading events while more is ready than the application takes, or while it is paused."""
        holding = self.held or len(self.ready) >= self._settings.max_buffered
        if holding != self._holding:
            self._holding = holding
            for source in self._event_partitions:
                self._let_flow(source)

    def _let_flow(self, source: Source) -> None:
        if self._holding or self._event_partitions[source]:
            self._transport.pause(Partition(*source))
        else:
            self._transport.resume(Partition(*source))

    # --- positions ----------------------------------------------------------------------------------------------------

    def _granted(self, granted: Granted) -> None:
        self.generation = granted.generation
        if granted.lease_s:
            self._renew_at = self._clock() + granted.lease_s / 3
        # Before anything is delivered under it: a process that dies now leaves a position that knows of its grant.
        self._saved = None
        self.save()

    def save(self, *, last: bool = False, timeout_s: float | None = None) -> None:
        """Writes the acknowledged position to Kafka, if it has moved; `last`: everything handed out is acknowledged."""
        interval = self._settings.save_interval_s or _REFRESH_S
        self._save_at = self._clock() + interval
        if not self.generation:
            return
        position = self._machine.position()
        if last or position != self._saved:
            # A position is a promise not to deliver again: without its receipt the delivery would be lost to audits.
            self._journal.send(timeout_s)
            saved = SavedPosition(
                id=self._settings.id,
                generation=self.generation,
                nonce=self._nonce,
                delivered_through=self._machine.delivered_through if last else None,
                position=position,
            )
            self._send_position(saved.key, encode_saved(saved), timeout_s)
            self._saved = position
            for key in sorted(self._stale_keys - {saved.key}):
                self._send_position(key, None, timeout_s)
            self._stale_keys = {saved.key}

    def _send_position(self, key: bytes, value: bytes | None, timeout_s: float | None) -> None:
        self._transport.send(self._positions, key, value, timeout_s=timeout_s)

    @property
    def machine(self) -> Delivery:
        """The delivery machine, for questions only."""
        return self._machine

    def close(self, *, save: bool, handed: int) -> None:
        """Sends receipts, saves what was acknowledged, and lets go of the transport.

        `handed` is the last event the application got.
        """
        try:
            self._journal.send()
            if save and self.generation:
                self.save(last=self._machine.acknowledged_sequence == handed)
        except BrokerUnavailable:
            # The position saved last still holds: a later process begins there.
            pass
        finally:
            self._transport.close()
