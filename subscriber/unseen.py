"""A word in the log on topics from which nothing may ever come: a mistyped one looks like one where nothing happens."""

import logging
import math
from collections.abc import Collection, Sequence
from contextlib import suppress

from totalorder.errors import BrokerUnavailable
from totalorder.sequencer.control import Grant
from totalorder.sequencer.names import stamps_partition
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
    """Topics of a subscription of which nothing was ever stamped: they are not read, since stamps say from where on. So
    whether something is published that no sequencer stamps has to be asked, now and then.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._ask_at = -math.inf
        self._ends: dict[Partition, int] = {}
        """When they were asked for first."""
        self._known: set[str] = set()
        self._published: dict[str, Partition] = {}

    def waits(self, now: float, topics: Collection[str], stamps_partitions: int) -> list[Wait]:
        """What was published since somebody asked first, of Kafka topics that are not read."""
        if topics and now >= self._ask_at:
            self._ask_at = now + _ASK_EACH_S
            with suppress(BrokerUnavailable):  # that is told elsewhere
                self._ask(sorted(topics)[:_MOST])
        return [
            Wait(
                kind="stamps",
                topic=name,
                source=at.source,
                offset=self._ends[at],
                stamps_partition=stamps_partition(name, stamps_partitions),
            )
            for name, at in self._published.items()
            if name in topics
        ]

    def _ask(self, names: Sequence[str]) -> None:
        for name in names:
            partitions = [Partition(name, number) for number in range(self._transport.partitions(name))]
            ends = self._transport.end_offsets(partitions, once=True) if partitions else {}
            for at, end in ends.items():
                if end > self._ends.setdefault(at, 0 if name in self._known else end):
                    self._published.setdefault(name, at)
            self._known.add(name)
