"""A domain's state in any number of shards: what all shards have in common, and each one's share of the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from totalorder.sequencer.groups import Counts
from totalorder.sequencer.state import EngineConfig, State, Subscription


def with_counts(state: State) -> State:
    """The state with its shard's counts of groups, which follow from the subscriptions."""
    cold, config = state.cold, state.cold.config
    counts = {
        topic: row
        for topic, row in counts_of(cold.subscriptions.values()).items()
        if cold.partition_of[topic] % config.shards == config.shard
    }
    return replace(state, cold=replace(cold, counts=counts))


def of_shards(states: Sequence[State], config: EngineConfig) -> tuple[State, ...]:
    """The states of all shards of `config`, from those of all shards that there were."""
    first = states[0]
    digests = {part: digest for state in states for part, digest in state.hot.digests.items()}
    owed = {topic: peers for state in states for topic, peers in state.hot.owed.items()}
    rekey = {topic for state in states for topic in state.hot.rekey}
    opening = {topic for state in states for topic in state.hot.opening}
    counts = {topic: row for state in states for topic, row in state.cold.counts.items()}
    shard_of = [partition % config.shards for partition in first.cold.partition_of]

    def share(shard: int) -> State:
        own = replace(config, shard=shard)
        hot = replace(
            first.hot,
            digests={part: digests[part] for part in own.own_partitions()},
            owed={topic: peers for topic, peers in owed.items() if shard_of[topic] == shard},
            rekey=frozenset(topic for topic in rekey if shard_of[topic] == shard),
            opening=frozenset(topic for topic in opening if shard_of[topic] == shard),
        )
        mine = {topic: row for topic, row in counts.items() if shard_of[topic] == shard}
        return State(hot=hot, cold=replace(first.cold, config=own, counts=mine))

    return tuple(map(share, range(config.shards)))


def counts_of(subscriptions: Iterable[Subscription]) -> Counts:
    """How many of the subscriptions hold each two topics together (groups.py); ended ones hold none."""
    rows: dict[int, dict[int, int]] = {}
    for one in subscriptions:
        if len(one.topics) < 2:
            continue
        for topic in one.topics:
            row = rows.setdefault(topic, {})
            for peer in one.topics:
                row[peer] = row.get(peer, 0) + 1
    for topic, row in rows.items():
        del row[topic]
    return rows
