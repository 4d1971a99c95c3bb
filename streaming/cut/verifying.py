"""Kafka's ids of topics, asked by a worker behind its reading: on a connection that lives as long as its process."""

from collections.abc import Mapping

from totalorder.streaming.cut.questions import Questions
from totalorder.streaming.cut.ranges import ReadPlan

_Key = tuple[str, frozenset[tuple[str, str]]]
_kept: dict[_Key, Questions] = {}


def present_ids(plan: ReadPlan) -> Mapping[str, str | None]:
    """The ids that the plan's topics have now: another than the planned one where any broker that leads some of the
    topic tells another, None where it is gone. Raises BrokerUnavailable.
    """
    wanted = {part.topic: part.topic_id for part in plan.ranges}
    told = _questions(plan).told_ids(wanted)
    return {name: next(iter(told[name] - {topic_id}), topic_id) for name, topic_id in wanted.items()}


def _questions(plan: ReadPlan) -> Questions:
    """One domain's connections: a worker that is given another domain's batch ends those of the one before."""
    key = (plan.bootstrap_servers, frozenset(plan.kafka.items()))
    if key not in _kept:
        while _kept:
            _kept.popitem()[1].close()
        _kept[key] = Questions(plan.bootstrap_servers, plan.kafka, timeout_s=plan.silence_s)
    return _kept[key]
