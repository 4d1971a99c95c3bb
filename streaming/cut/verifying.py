"""Kafka's ids of topics, asked by a worker behind its reading: on a connection that lives as long as its process."""

from collections.abc import Mapping

from totalorder.streaming.cut.questions import Questions
from totalorder.streaming.cut.ranges import ReadPlan

_Key = tuple[str, frozenset[tuple[str, str]]]
_kept: dict[_Key, Questions] = {}


def present_ids(plan: ReadPlan) -> Mapping[str, str | None]:
    """The ids that the plan's topics have now; a topic that is gone is left out. Raises BrokerUnavailable."""
    found = _questions(plan).topics({part.topic for part in plan.ranges})
    return {name: topic.topic_id for name, topic in found.items()}


def _questions(plan: ReadPlan) -> Questions:
    """One domain's connections: a worker that is given another domain's batch ends those of the one before."""
    key = (plan.bootstrap_servers, frozenset(plan.kafka.items()))
    if key not in _kept:
        while _kept:
            _kept.popitem()[1].close()
        _kept[key] = Questions(plan.bootstrap_servers, plan.kafka, timeout_s=plan.silence_s)
    return _kept[key]
