"""Whether states that came over Kafka can be those of one domain: all that a step takes for granted is looked at first.

A checksum tells what was damaged, and not what was forged; and what a step does with a number that is out of range,
nobody has thought of.
"""

from collections.abc import Collection, Sequence
from dataclasses import fields

import numpy as np
import numpy.typing as npt

from totalorder.errors import StateError
from totalorder.sequencer.state import Cold, EngineConfig, Hot, State, Subscription
from totalorder.sequencer.wire.limits import (
    MAX_COUNT,
    MAX_KAFKA_TOPIC_CHARS,
    MAX_KAFKA_TOPICS,
    MAX_LEASE_S,
    MAX_PARTITION_NUMBER,
    MAX_SUBSCRIPTIONS,
    MAX_TIME_MS,
    MAX_TOPIC_ID_CHARS,
    MAX_TOPICS_PER_DOMAIN,
    MAX_TOPICS_PER_SUBSCRIPTION,
)
from totalorder.sequencer.wire.names import valid_id, valid_nonce, valid_topic
from totalorder.sequencer.wire.stamps import DIGEST_BYTES

Ints = npt.NDArray[np.int64]
_OWN = ("digests", "owed", "rekey", "opening")
"""What of the hot state each shard has for itself."""
_MOST_EXPIRY_MS = MAX_TIME_MS + MAX_LEASE_S * 1000


def require_sound(states: Sequence[State], domain: str, batch: int, name: str) -> None:
    """StateError, which names `name`, where these are not the states of all shards of the domain behind the batch.

    Counts of groups are not looked at.
    """
    first = states[0]
    try:
        _check_cold(first.cold)
        for shard, state in enumerate(states):
            _check_config(state.cold.config, first.cold.config, shard, len(states), domain)
            _check_hot(state.hot, first.cold, state.cold.config, batch)
            _check_common(state, first)
    except ValueError as error:
        raise StateError(
            f"{name} is not what a sequencer tells: {error}",
            remedy="Look for another writer to the domain's topics, and restrict it",
        ) from None


def check_state(state: State, batch: int) -> None:
    """ValueError where this is not the state of one shard behind the batch."""
    config = state.cold.config
    _check_cold(state.cold)
    _check_config(config, config, config.shard, config.shards, config.domain)
    _check_hot(state.hot, state.cold, config, batch)


def _check_config(config: EngineConfig, first: EngineConfig, shard: int, shards: int, domain: str) -> None:
    _require((config.domain, config.shard, config.shards) == (domain, shard, shards), "another domain or shard")
    for field in fields(EngineConfig):
        _require(type(getattr(config, field.name)) is field.type, f"its {field.name} is of another type")
        same = field.name == "shard" or getattr(config, field.name) == getattr(first, field.name)
        _require(same, f"shards have different {field.name}")


def _check_cold(cold: Cold) -> None:
    _require(len(cold.topics) <= MAX_TOPICS_PER_DOMAIN, "too many topics")
    _require(len(cold.subscriptions) <= MAX_SUBSCRIPTIONS, "too many subscriptions")
    _require(all(map(valid_topic, cold.topics)) and _are_distinct(cold.topics), "topics are no names, or come twice")
    _check_kafka_topics(cold)
    for id_, one in cold.subscriptions.items():
        _require(valid_id(id_), "a subscription's id is none")
        _check_subscription(one, len(cold.topics))


def _check_kafka_topics(cold: Cold) -> None:
    ranks = len(cold.kafka_topics)
    _require(ranks <= MAX_KAFKA_TOPICS and _are_distinct(cold.kafka_topics), "too many Kafka topics, or one twice")
    for topic in cold.kafka_topics:
        fits = 0 < len(topic.name) <= MAX_KAFKA_TOPIC_CHARS and len(topic.topic_id) <= MAX_TOPIC_ID_CHARS
        _require(fits, "a Kafka topic has no name of one")
    _require(_are_distinct(cold.sources), "an event partition is there twice")
    for rank, partition in cold.sources:
        _require(rank < ranks and rank not in cold.retired, "an event partition is of no topic that is read")
        _require(partition <= MAX_PARTITION_NUMBER, "a partition's number is out of range")
    _require(all(rank < ranks for rank in cold.retired), "a topic was retired that is not there")
    for lost in cold.retired.values():
        _require(all(first < end for first, end in lost.values()), "what was lost of a topic is no range")


def _check_subscription(one: Subscription, topics: int) -> None:
    _require(1 <= one.generation <= MAX_COUNT and valid_nonce(one.nonce), "a subscription has no generation or nonce")
    _require(one.lapsed == (not one.topics), "a subscription holds topics and has ended, or neither")
    _require(len(one.topics) <= MAX_TOPICS_PER_SUBSCRIPTION, "a subscription has too many topics")
    _require(_are_distinct(one.topics) and all(topic < topics for topic in one.topics), "it holds what is no topic")
    _require(one.lease_ms <= MAX_LEASE_S * 1000 and one.expires_ms <= _MOST_EXPIRY_MS, "a lease is out of range")
    _require(1 <= one.g <= MAX_COUNT, "a subscription has no position")


def _check_hot(hot: Hot, cold: Cold, config: EngineConfig, batch: int) -> None:
    _require(hot.batch == batch, f"it is of batch {hot.batch}, and not of {batch}")
    _require(hot.control_g <= hot.g <= MAX_COUNT, "positions are out of range")
    _require(len(hot.clocks) == len(cold.topics), "there is not one clock for each topic")
    _require(len(hot.next_offsets) == len(cold.sources), "there is not one offset for each event partition")
    _require(_are_within(hot.clocks, hot.g) and _are_within(hot.last_g, hot.g), "a clock is out of range")
    _require(_are_within(hot.next_offsets, MAX_COUNT), "an offset is out of range")
    _require(bool(((hot.clocks > 0) == (hot.last_g > 0)).all()), "a topic has events and no last one")
    _check_renewed(hot, cold)
    _require(hot.digests.keys() == set(config.own_partitions()), "there is not one digest for each stamps partition")
    _require(all(len(digest) == 2 * DIGEST_BYTES for digest in hot.digests.values()), "a digest is cut short")
    _check_debts(hot, cold, config)


def _check_renewed(hot: Hot, cold: Cold) -> None:
    number, expires_ms = hot.renewed
    _require(_are_within(number, len(cold.subscriptions) - 1), "a lease was renewed of no subscription")
    _require(bool((np.diff(number) > 0).all()) and _are_within(expires_ms, _MOST_EXPIRY_MS), "renewals are no such")


def _check_debts(hot: Hot, cold: Cold, config: EngineConfig) -> None:
    """What topics owe to their next events, each in the shard that stamps it."""
    own = {*hot.owed, *hot.rekey, *hot.opening}
    topics = len(cold.topics)
    _require(all(topic < topics for topic in own), "what is no topic owes something")
    _require(all(peer < topics for peers in hot.owed.values() for peer in peers), "what is no topic is owed")
    mine = (cold.partition_of[topic] % config.shards == config.shard for topic in own)
    _require(all(mine), "a topic owes something in another shard than its own")


def _check_common(state: State, first: State) -> None:
    """All shards count the same."""
    for field in fields(Hot):
        if field.name not in _OWN:
            _require(_are_equal(getattr(state.hot, field.name), getattr(first.hot, field.name)), "shards disagree")
    for field in fields(Cold):
        if field.name not in ("config", "counts"):
            _require(getattr(state.cold, field.name) == getattr(first.cold, field.name), "shards disagree")


def _are_equal(one: object, other: object) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_are_equal, one, other))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return one == other


def _are_within(column: Ints, most: int) -> bool:
    return not len(column) or bool(column.min() >= 0 and column.max() <= most)


def _are_distinct(values: Collection[object]) -> bool:
    return len(set(values)) == len(values)


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise ValueError(why)
