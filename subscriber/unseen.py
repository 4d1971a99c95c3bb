"""A word in the log on topics from which nothing may ever come: a mistyped one looks like one where nothing happens."""

import logging
import math
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress

from totalorder.errors import BrokerUnavailable
from totalorder.sequencer.wire.control import Grant
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.waits import Wait
from totalorder.subscriber.transport import Partition, Transport

_LOG = logging.getLogger("totalorder.subscriber")
_MOST = 10
"""No more topics than so many are spoken of, or asked for in vain."""
_ASK_EACH_S = 30.0
_EXACT = "(a name fits itself alone; for a pattern there is pattern=, --pattern)"


def warn_of_unseen(grant: Grant, topics: Collection[str], *, domain: str, transport: Transport) -> None:
    """Logs a warning for each of these topics of the grant of which the domain has seen nothing, if that is doubtful.

    A Kafka topic that is there and empty is not. Raises BrokerUnavailable.
    """
    unseen = [name for name in sorted(topics) if not grant.clock[name]]
    if grant.topic_by != "topic":
        for name in unseen[:_MOST]:
            _LOG.warning(
                'no event of topic "%s" in domain %s so far: nothing comes until there is %s', name, domain, _EXACT
            )
        return
    read = {source.topic for source in grant.next_offsets}
    absent, present = _looked_for([name for name in unseen if name not in read], transport)
    for name in absent:
        _LOG.warning('no Kafka topic "%s" on this broker: nothing comes until there is %s', name, _EXACT)
    held = {at.topic for at, end in transport.end_offsets(present).items() if end} if present else set()
    for name in sorted(held)[:_MOST]:
        _LOG.warning(
            'Kafka topic "%s" holds events, and domain %s none of them: does its sequencer read it?', name, domain
        )


def _looked_for(names: Sequence[str], transport: Transport) -> tuple[list[str], list[Partition]]:
    """Topics that Kafka has not, and the partitions of those that it has; each absent one costs a round trip."""
    absent: list[str] = []
    present: list[Partition] = []
    for name in names:
        count = transport.partitions(name)
        present += [Partition(name, number) for number in range(count)]
        if not count:
            absent.append(name)
        if len(absent) == _MOST:
            break
    return absent, present


class Unread:
    """Event partitions of which nothing was ever stamped, of topics of a subscription: they are not read, since stamps
    say from where on. So whether something is published that no sequencer stamps has to be asked, now and then.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ask_at = -math.inf
        self._turn = 0
        """Among topics of which something is read: those before were asked about already."""
        self._due = deque[str]()
        """Of this turn, those that are still to be asked about."""
        self._counts: dict[str, int] = {}
        """How many partitions each topic had when it was asked about last."""
        self._ends: dict[Partition, int] = {}
        """When they were asked for first; of what came to be since, the beginning."""
        self._published: dict[str, Partition] = {}
        """Of each topic one where something was published and not stamped."""

    def waits(
        self, now: float, topics: Collection[str], read: Collection[Source], stamps_partitions: int
    ) -> list[Wait]:
        """What was published since somebody asked first, in partitions of these Kafka topics that are not `read`.

        Of one topic Kafka is asked at a time, and nothing is borne: this is done while the application polls.
        """
        if topics and not self._due and now >= self._ask_at:
            self._ask_at = now + _ASK_EACH_S
            self._due.extend(self._next(topics, {source.topic for source in read}))
        if topics and self._due and (name := self._due.popleft()) in topics:
            with suppress(BrokerUnavailable):  # that is told elsewhere
                self._ask(name, {(source.topic, source.partition) for source in read})
        return [
            Wait(
                kind="stamps",
                topic=name,
                source=at.source,
                offset=self._ends[at],
                stamps_partition=stamps_partition(name, stamps_partitions),
            )
            for name, at in self._published.items()
            if name in topics and not any((source.topic, source.partition) == at[:2] for source in read)
        ]

    def _ask(self, name: str, read: Collection[tuple[str, int]]) -> None:
        count, known = self._transport.partitions(name, once=True), self._counts.get(name)
        partitions = [Partition(name, number) for number in range(count) if (name, number) not in read]
        ends = self._transport.end_offsets(partitions, once=True) if partitions else {}
        if self._published.get(name) not in ends:
            self._published.pop(name, None)
        for at, end in ends.items():
            is_new = known is not None and at.number >= known
            if end > self._ends.setdefault(at, 0 if is_new else end):
                self._published.setdefault(name, at)
        self._counts[name] = count

    def _next(self, topics: Collection[str], read: Collection[str]) -> list[str]:
        """First those of which nothing at all is read, then the others in turn."""
        names = sorted(topics)
        others = [name for name in names if name in read]
        chosen = others[self._turn : self._turn + _MOST]
        self._turn = self._turn + _MOST if self._turn + _MOST < len(others) else 0
        return [name for name in names if name not in read][:_MOST] + chosen
