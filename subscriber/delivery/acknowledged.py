"""What is delivered and not acknowledged yet, and the place through which all is acknowledged."""

from collections import deque
from collections.abc import Mapping

from totalorder.errors import LimitExceeded
from totalorder.sequencer.wire.control import Skipped
from totalorder.sequencer.wire.position import Progress
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.events import Events
from totalorder.subscriber.delivery.rows import Rows, counts, groups
from totalorder.subscriber.delivery.sets import Sets
from totalorder.subscriber.delivery.stamps import Stamps
from totalorder.subscriber.delivery.switches import Switch

MAX_UNACKNOWLEDGED = 1_000_000
"""More than this delivered and not acknowledged means that the application forgot to acknowledge."""


class Acknowledged:
    """The set in force, clocks and offsets as far as the application has acknowledged.

    An acknowledgement is a number until somebody asks for what it means (`settle`).
    """

    def __init__(self, sets: Sets, stamps: Stamps, events: Events) -> None:
        self._sets, self._stamps, self._events = sets, stamps, events
        self.generation = self.switched_g = self.g = 0
        self.topics: Mapping[int, str] = {}
        self.clock: dict[int, int] = {}
        self.sources: dict[Source, int] = {}
        self.delivered = 0
        """The number of the last delivery."""
        self.sequence = 0
        """The number of the last one that is acknowledged."""
        self.passed: deque[Switch] = deque()
        """The switches among what is not settled."""
        self._waiting: deque[Rows | Skipped | Switch] = deque()
        self._settled = 0

    def begin(self, position: Progress) -> None:
        """Goes on from a position."""
        self.generation, self.switched_g, self.g = position.generation, position.switched_g, position.g
        self.topics, self.clock, self.sources = position.topics, dict(position.clock), dict(position.sources)

    def count(self, item: Rows | Skipped) -> int:
        """It is delivered now, and waits to be acknowledged; the number of its first. LimitExceeded: too many wait."""
        first, count = self.delivered + 1, _size(item)
        if self.delivered + count - self.sequence > MAX_UNACKNOWLEDGED:
            raise LimitExceeded(
                f"{self.delivered - self.sequence} events were delivered and not acknowledged",
                remedy="Call ack() as events are done",
            )
        assert self._settled <= self.sequence <= self.delivered, "what is acknowledged was delivered"
        self.delivered += count
        self._waiting.append(item)
        return first

    def switch(self, switch: Switch) -> None:
        """Delivery has passed a change."""
        self._waiting.append(switch)
        self.passed.append(switch)
        self.settle()

    def acknowledge(self, sequence: int) -> None:
        """Everything through delivery number `sequence` is done with."""
        if sequence > self.sequence:
            self.sequence = min(sequence, self.delivered)
        if self.passed:
            self.settle()  # which topics a change leaves behind depends on what lies ahead of it now

    def settle(self) -> None:
        """Moves the place to what is acknowledged."""
        while self._waiting:
            item, count = self._waiting[0], self.sequence - self._settled
            if isinstance(item, Switch):
                self._pass(item)
            elif not count:
                break
            elif isinstance(item, Rows) and count < len(item):
                self._settle(item.part(0, count))
                self._waiting[0] = item.part(count, len(item))
                break
            else:
                self._settle(item)
            self._waiting.popleft()
        assert self._settled <= self.sequence, "what is settled was acknowledged"

    def drop(self, generation: int, g: int) -> None:
        """What was owed is given up: all is acknowledged, and no set is in force any more since `g`."""
        self._waiting.clear()
        self.passed.clear()
        self.sequence = self._settled = self.delivered
        self.generation, self.switched_g, self.g = generation, g, g
        self.topics, self.clock, self.sources = {}, {}, {}

    def resume_offsets(self) -> dict[Source, int]:
        """Per event partition: the oldest record that is not acknowledged, or else how far all stamps are known.

        The second keeps the offset of a partition that has no event for us from falling out of retention.
        """
        frontiers = self._stamps.frontiers
        offsets = {}
        for source, acked_to in self.sources.items():
            known = min((frontier.get(source, 0) for frontier in frontiers), default=0)
            owed = self._events.oldest_owed(source)
            if source in self._events.closed and owed is None:
                continue
            offsets[source] = max(acked_to, known if owed is None else min(known, owed))
        return offsets

    @property
    def rows(self) -> Rows:
        """What is delivered and not settled, of what is stamped."""
        return Rows.joined([item for item in self._waiting if isinstance(item, Rows)])

    def check_whole(self, g: int, clock: Mapping[int, int]) -> None:
        """Dear (sequencer/wire/invariants.py): delivery has come to `g`, and of the set in force to this clock."""
        assert self._settled <= self.sequence <= self.delivered, "more is settled or acknowledged than was delivered"
        waiting = sum(_size(item) for item in self._waiting if not isinstance(item, Switch))
        assert waiting == self.delivered - self._settled, f"{waiting} deliveries wait, and other numbers are counted"
        assert self.g <= g, f"g {self.g} is acknowledged, and {g} delivered"
        assert self.clock.keys() == self.topics.keys(), "what is acknowledged has no clock of its own set"
        changes = [item for item in self._waiting if isinstance(item, Switch)]
        assert changes == list(self.passed), "changes that were passed are not those among what waits"
        if not changes:
            reached = dict(self.clock)
            for topic, count in counts(self.rows.topic):
                reached[topic] += count
            assert reached == dict(clock), f"deliveries have come to {dict(clock)}, and as they wait to {reached}"

    def _settle(self, item: Rows | Skipped) -> None:
        self._settled += _size(item)
        if isinstance(item, Skipped):
            self.g = max(self.g, item.g)
            return
        self.g = max(self.g, int(item.g.max()))
        for topic, at in groups(item.topic):
            self.clock[topic] = int(item.n[at][-1])
        for number, at in groups(item.source):
            offsets = item.offset[at]
            self.sources[self._events.sources[number]] = int(offsets[-1]) + 1
            self._events.owed[number].acknowledge(len(offsets))
        self._stamps.acknowledge(item.mark)

    def _pass(self, switch: Switch) -> None:
        self.passed.popleft()
        self.generation, self.switched_g = switch.answer.generation, switch.g
        self.g = max(self.g, switch.g)
        self.topics, self.clock = switch.topics, {topic: switch.clock[topic] for topic in switch.topics}
        for source, offset in switch.next_offsets.items():
            self.sources[source] = max(self.sources.get(source, 0), offset)
        if self._sets.topic_by == "topic":
            pending = [switch.topics for switch in (*self.passed, *self._sets.switches)]
            names = {name for topics in (self.topics, *pending) for name in topics.values()}
            self.sources = {source: offset for source, offset in self.sources.items() if source.topic in names}


def _size(item: Rows | Skipped) -> int:
    """How many deliveries it is: of what is lost without a stamp, one for each range that it tells."""
    return len(item) if isinstance(item, Rows) else len(item.lost)
