"""The machine of a Reader: answers, stamps and events in; deliveries in the order of π out."""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from totalorder.errors import Contradiction
from totalorder.sequencer.wire.control import Answer, Grant, Retired, Skipped
from totalorder.sequencer.wire.invariants import due
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import KafkaTopic, Source, StampedBatch
from totalorder.subscriber.delivery.effects import Deliveries, DeliverLost, Effect
from totalorder.subscriber.delivery.events import HERE, LOST, EventBlock, ranges
from totalorder.subscriber.delivery.order import Found, Line
from totalorder.subscriber.delivery.rows import Rows
from totalorder.subscriber.delivery.waits import Wait
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.reading.events import Sources
from totalorder.subscriber.reading.stamps import Batches, Whole

_NEVER = 2**63 - 1
"""Behind all positions of π."""


def losses_in(answers: Sequence[Answer], choice: Choice) -> list[Skipped]:
    """What answers tell of losses before stamping that may have been events of chosen topics.

    Where no grant says that Kafka topics name the topics, what is lost may have been events of any.
    """
    topic_by = {answer.topic_by for answer in answers if isinstance(answer, Grant)}
    losses = [answer for answer in answers if isinstance(answer, Skipped) and answer.lost]
    return [loss for loss in losses if topic_by != {"topic"} or choice.selects(loss.topic)]


class Reading:
    """Delivers the events of `choice` behind g `after` and through g `through`, as they stand in π.

    `marks` say behind which batch each stamps partition that is needed is read; all of their batches end at or before
    `after`. What was stamped in a batch of `until_ms` or later is left out too.
    What Kafka has no longer is told in its place (DeliverLost). After an error it must not be used any more.
    """

    def __init__(
        self,
        *,
        domain: str,
        partitions: int,
        choice: Choice,
        marks: Mapping[int, StampsMark],
        after: int = 0,
        through: int = _NEVER,
        until_ms: int = _NEVER,
        max_buffered: int = 1_000,
        max_waiting: int = 50_000,
    ) -> None:
        self._domain, self._choice = domain, choice
        self.partitions = partitions
        """Of stamps."""
        self._after, self._through, self._until_ms = after, through, until_ms
        self._effects: list[Effect] = []
        self._batches = Batches(
            domain,
            partitions,
            choice,
            marks,
            after=after,
            effects=self._effects,
            contradicts=self._contradicts,
            max_waiting=max_waiting,
        )
        self._events = Sources(self._effects, self._contradicts, max_buffered=max_buffered)
        self._line = Line({})
        self._answers_g = 0
        self._topic_by = ""
        """As grants say; empty while there was none."""
        self._retiring: dict[KafkaTopic, int] = {}
        self._skipped: dict[tuple[int, str], Skipped] = {}
        """What was lost before it was stamped, behind the batches that were taken."""
        self._notices: deque[Skipped] = deque()
        """The same, among what waits in line."""
        self.delivered = 0
        """The number of the last delivery."""
        self.g = after
        """The last position of π that was passed."""
        self._all_known = self._stopped = False

    # --- inputs -------------------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """What must be read."""
        return self._flush()

    def answer(self, answer: Answer) -> list[Effect]:
        """The next record of grants, from the oldest on."""
        self._answers_g = max(self._answers_g, answer.g)
        if isinstance(answer, Grant):
            self._topic_by = answer.topic_by
        elif isinstance(answer, Retired):
            self._retiring[KafkaTopic(answer.topic, answer.topic_id)] = answer.g
        elif isinstance(answer, Skipped) and answer.lost and answer.g > max(self._after, self._batches.g):
            self._skipped[answer.g, str(ranges(answer))] = answer
        self._advance()
        return self._flush()

    def stamped(self, batch: StampedBatch) -> list[Effect]:
        """The next complete batch of its stamps partition."""
        if not self._all_known:
            self._batches.admit(batch)
            self._advance()
        return self._flush()

    def events(self, source: Source, block: EventBlock) -> list[Effect]:
        """The next records of an event partition; of `block` offsets, crcs and handles count."""
        if self._events.take(source, block):
            self._deliver_what_may_go()
        return self._flush()

    def gone(self, source: Source, offset: int) -> list[Effect]:
        """Kafka has nothing below `offset` of an event partition any longer, with `GONE` not even its topic."""
        if self._events.gone(source, offset):
            self._deliver_what_may_go()
        return self._flush()

    def end_here(self) -> list[Effect]:
        """What lies behind the batches that are whole by now is not wanted."""
        self._through = min(self._through, max(self._batches.g, self._after))
        self._advance()
        return self._flush()

    # --- what can be asked --------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        """Whether all that is wanted is delivered, and nothing more will come."""
        return self._stopped

    @property
    def seen(self) -> set[str]:
        """The chosen topics of which there was an event."""
        return set(self._batches.names.values())

    @property
    def awaited(self) -> frozenset[str]:
        """The Kafka topics that were chosen by name, while more may come of them."""
        return self._choice.topics if self._by_topic and not self._all_known else frozenset()

    def waits(self) -> list[Wait]:
        """What delivery waits for: the event that is next, or else stamps of events that have come.

        Where keys or headers name the topics, an event that has come may be of none, and is never stamped.
        """
        first = self._line.first
        if first is not None:
            topic, _, g, number, offset = first.table[:5, 0].tolist()
            source = self._events.sources[number]
            return [Wait(kind="event", topic=self._batches.names[topic], source=source, offset=offset, g=g)]
        if self._all_known:
            return []
        return [
            Wait(
                kind="stamps",
                topic=source.topic,
                source=source,
                offset=offset,
                stamps_partition=stamps_partition(source.topic, self.partitions),
            )
            for source, offset in self._events.unstamped()
            if self._by_topic and self._choice.selects(source.topic)
        ]

    @property
    def _by_topic(self) -> bool:
        """Whether Kafka topics name the topics, as far as grants say."""
        return self._topic_by in ("", "topic")

    @property
    def held(self) -> tuple[int, int]:
        """How many events wait, and how many stamps."""
        return self._events.held, len(self._line) + self._batches.held

    # --- work ---------------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        while not self._all_known and self._batches.g < self._through:
            whole = self._batches.take(self._answers_g)
            if whole is None:
                break
            self._take(whole)
        if self._batches.g >= self._through or self._after >= self._through:
            self._know_all()
        self._deliver_what_may_go()

    def _take(self, whole: Whole) -> None:
        if whole.time_ms >= self._until_ms:
            self._know_all()
            return
        rows = self._events.owe(whole)
        beyond = int(np.searchsorted(rows.g, self._through, side="right"))
        if beyond < len(rows):
            rows = rows.part(0, beyond)
        if len(rows):
            self._line.add(0, rows)
            self._line.settle(_NEVER, _NEVER, by_entries=False)
        for key in sorted(key for key in self._skipped if key[0] <= min(whole.g, self._through)):
            notice = self._skipped.pop(key)
            if self._concerns(notice):
                self._notices.append(notice)
        over = {topic for topic, g in self._retiring.items() if g <= whole.g}
        self._retiring = {topic: g for topic, g in self._retiring.items() if topic not in over}
        self._events.close(over)

    def _know_all(self) -> None:
        if not self._all_known:
            self._all_known = True
            self._batches.stop()

    def _concerns(self, notice: Skipped) -> bool:
        """Where nothing says that Kafka topics name the topics, what is lost may have been events of any."""
        return self._topic_by != "topic" or self._choice.selects(notice.topic)

    def _deliver_what_may_go(self) -> None:
        while True:
            through = self._notices[0].g if self._notices else _NEVER
            while taken := self._line.take(through, self._events):
                self._deliver(*taken)
            first = self._line.first_g
            if not self._notices or (first is not None and first < through):
                break
            self._tell(self._notices.popleft())
        self._batches.regulate(len(self._line))
        if self._all_known and not self._stopped and not self._notices and not len(self._line):
            self._stopped = True
            self._events.stop()

    # --- what comes out -----------------------------------------------------------------------------------------------

    def _deliver(self, rows: Rows, found: Found) -> None:
        lost = np.flatnonzero(found == LOST)
        if int(rows.g[0]) <= self.g:
            raise self._contradicts(f"g {rows.g[0]} comes after {self.g}")
        behind = [self._events.found_behind(int(rows.source[at]), int(rows.offset[at])) for at in lost.tolist()]
        handles = self._events.release(rows, found == HERE)
        start = 0
        for end, found_at in zip([*lost.tolist(), len(rows)], [*behind, 0], strict=True):
            if end > start:
                self._effects.append(self._deliveries(rows.part(start, end), handles[start:end]))
            if end < len(rows):
                self._lose_event(rows.part(end, end + 1), found_at)
            start = end + 1
        self.g = int(rows.g[-1])

    def _deliveries(self, rows: Rows, handles: list[object]) -> Deliveries:
        first, self.delivered = self.delivered + 1, self.delivered + len(rows)
        return Deliveries(
            rows=rows,
            handles=handles,
            first=first,
            sources=self._events.sources,
            names=self._batches.names,
            delivered_through=0,
        )

    def _lose_event(self, row: Rows, found: int) -> None:
        topic, n, g, number, offset, _, _ = row.table[:, 0].tolist()
        source = self._events.sources[number]
        self._lose(self._batches.names[topic], source, (offset, offset + 1), n, g, found)

    def _lose(self, topic: str | None, source: Source, offsets: tuple[int, int], n: int, g: int, found: int) -> None:
        self.delivered += 1
        begin, end = offsets
        self._effects.append(
            DeliverLost(
                topic=topic,
                source=source,
                begin=begin,
                end=end,
                n=n,
                g=g,
                tag=None,
                sequence=self.delivered,
                found=found,
            )
        )

    def _tell(self, notice: Skipped) -> None:
        for source, begin, end in ranges(notice):
            topic = source.topic if self._topic_by == "topic" else None
            self._lose(topic, source, (begin, end), 0, notice.g, end)
        self.g = max(self.g, notice.g)

    def _contradicts(self, what: str) -> Contradiction:
        return Contradiction(
            f"a reader of domain {self._domain!r}: {what}",
            remedy="Nothing contradictory was delivered. Find out who else writes to the domain or recreated a topic",
        )

    def _check_whole(self) -> None:
        """Dear (sequencer/wire/invariants.py): what the parts know of each other agrees."""
        rows = self._line.rows
        self._batches.check_whole(len(rows))
        self._events.check_whole(rows)
        losses = [notice.g for notice in self._notices]
        assert losses == sorted(losses), "losses that wait are not in the order of π"
        first = min([*losses[:1], *rows.g[:1].tolist()], default=self.g + 1)
        assert self.g <= first, f"g {self.g} has passed, and {first} waits"

    def _flush(self) -> list[Effect]:
        if due():
            self._check_whole()
        done = list(self._effects)
        self._effects.clear()  # the parts of the machine write to this very list
        return done
