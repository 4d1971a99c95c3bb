"""A word in the log on topics from which nothing may ever come: a mistyped one looks like one where nothing happens."""

import logging
from collections.abc import Collection, Iterator, Sequence

from totalorder.sequencer.control import Grant
from totalorder.subscriber.transport import Partition, Transport

_LOG = logging.getLogger("totalorder.subscriber")
_MOST = 10
"""No more topics than so many are spoken of, or asked for in vain."""
_EXACT = "(a subscription names its topics exactly, not by patterns)"


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
    read = {topic for topic, _ in grant.next_offsets}
    for doubt in _doubts([name for name in unseen if name not in read], domain, transport):
        _LOG.warning(doubt)


def _doubts(names: Sequence[str], domain: str, transport: Transport) -> Iterator[str]:
    """What is wrong with Kafka topics that the sequencer has not read."""
    absent = 0
    for name in names:
        if absent == _MOST:
            return
        count = transport.partitions(name)
        ends = transport.end_offsets(Partition(name, number) for number in range(count))
        if not count:
            absent += 1
            yield f'no Kafka topic "{name}" on this broker: nothing comes until there is {_EXACT}'
        elif any(ends.values()):
            yield f'Kafka topic "{name}" holds events, and domain {domain} none of them: does its sequencer read it?'
