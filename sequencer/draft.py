"""A step's working copy of the cold state: copied at the first change, so that a batch without one costs nothing."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from totalorder.errors import LimitExceeded
from totalorder.sequencer import groups
from totalorder.sequencer.groups import Counts, GroupChange
from totalorder.sequencer.state import NO_RENEWALS, Cold, Lost, Renewals, State, Subscription
from totalorder.sequencer.wire.limits import MAX_TOPICS_PER_DOMAIN
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.stamps import KafkaTopic, Source

Ints = npt.NDArray[np.int64]
_NOBODY = np.zeros(0, dtype=np.int64)
RENEWALS_ALWAYS_HOT = 64
"""So many renewed leases stay hot in a domain of any size."""


@dataclass(frozen=True, kw_only=True)
class _Copies:
    """The draft's own tables, which it may change."""

    topics: list[str]
    topic_ids: dict[str, int]
    partition_of: list[int]
    subscriptions: dict[str, Subscription]
    counts: dict[int, Mapping[int, int]]
    rows: dict[int, dict[int, int]]
    """The rows of `counts` that are copies, each made at its first change."""


class Draft:
    """Names, subscriptions and groups while one batch moves them on; `finish()` is what they are after it."""

    def __init__(self, state: State) -> None:
        cold = state.cold
        self.config = cold.config
        self.kafka_topics, self.ranks = cold.kafka_topics, cold.ranks
        self.retired = cold.retired
        self.sources, self.source_ids = cold.sources, cold.source_ids
        self.topics: Sequence[str] = cold.topics
        self.topic_ids: Mapping[str, int] = cold.topic_ids
        self.partition_of: Sequence[int] = cold.partition_of
        self.subscriptions: Mapping[str, Subscription] = cold.subscriptions
        self.counts: Counts = cold.counts
        self._members = cold.members
        self._before = state
        self._renewed: dict[str, int] = {}
        """Expiries renewed in this batch, while the subscriptions are not copied."""
        self._copies: _Copies | None = None
        self.changed = False

    def finish(self) -> tuple[Cold, Renewals]:
        """The cold state after the batch, the very same object when nothing changed, and the expiries that it lacks.

        Renewed expiries go along with subscriptions that are written anyway. Those are written for their sake once half
        of them are renewed: the many renewals since the last time share the cost.
        """
        renewed = self._renewals()
        if len(renewed.number) > max(RENEWALS_ALWAYS_HOT, len(self.subscriptions) // 2):
            self._own()
            renewed = NO_RENEWALS
        if not self.changed:
            return self._before.cold, renewed
        cold = replace(
            self._before.cold,
            kafka_topics=self.kafka_topics,
            retired=self.retired,
            sources=self.sources,
            topics=tuple(self.topics),
            subscriptions=self.subscriptions,
            counts=self.counts,
        )
        # What these follow from is known: to find a million topics' partitions takes seconds.
        vars(cold).update(
            topic_ids=self.topic_ids, partition_of=self.partition_of, ranks=self.ranks, source_ids=self.source_ids
        )
        return cold, renewed

    def number_kafka_topics(self, topics: Iterable[KafkaTopic]) -> None:
        """Ranks for event topics seen first; within a batch in byte order of name and id, since rows have no order."""
        fresh = tuple(sorted({topic for topic in topics if topic not in self.ranks}, key=_in_bytes))
        if fresh:
            self.changed = True
            self.kafka_topics += fresh
            self.ranks = {topic: rank for rank, topic in enumerate(self.kafka_topics)}

    def retire(self, topic: KafkaTopic, lost: Lost) -> Lost:
        """From here on nothing more of the topic, which has a rank, is stamped; what is lost is as the first time."""
        rank = self.ranks[topic]
        if rank not in self.retired:
            self.changed = True
            self.retired = {**self.retired, rank: lost}
        return self.retired[rank]

    def number_sources(self, sources: Iterable[tuple[int, int]]) -> None:
        """Indexes for event partitions (rank, partition) seen for the first time."""
        fresh = tuple(sorted({source for source in sources if source not in self.source_ids}))
        if fresh:
            self.changed = True
            self.sources += fresh
            self.source_ids = {source: index for index, source in enumerate(self.sources)}

    def number_topics(self, names: Iterable[str]) -> None:
        """Ids for pub/sub topics seen for the first time, in byte order of name; LimitExceeded past the limit."""
        fresh = sorted({name for name in names if name not in self.topic_ids}, key=str.encode)
        if len(self.topics) + len(fresh) > MAX_TOPICS_PER_DOMAIN:
            raise LimitExceeded(
                f"the domain would have more than {MAX_TOPICS_PER_DOMAIN} pub/sub topics, its limit",
                remedy="Name topics by something with fewer values: a topic is not meant for each entity",
            )
        if fresh:
            own = self._own()
            for name in fresh:
                own.topic_ids[name] = len(own.topics)
                own.topics.append(name)
                own.partition_of.append(stamps_partition(name, self.config.stamps_partitions))

    def set(self, id_: str, subscription: Subscription) -> None:
        """Replaces one id's subscription."""
        self._own().subscriptions[id_] = subscription

    def due(self, time_ms: int) -> list[str]:
        """Ids, in order, of the leases that have run out by `time_ms`, as the batch found them."""
        ids = self._before.cold.ids
        return [ids[number] for number in np.flatnonzero(self._before.expiries() <= time_ms).tolist()]

    def renew(self, id_: str, expires_ms: int) -> None:
        """Moves the expiry of a lease that runs; copies nothing for it."""
        if self._copies is None:
            self._renewed[id_] = expires_ms
        else:
            self.set(id_, self.subscriptions[id_]._replace(expires_ms=expires_ms))

    def _renewals(self) -> Renewals:
        """The expiries that differ from the cold state's; none once they are in the copies."""
        if self._copies is not None:
            return NO_RENEWALS
        if not self._renewed:
            return self._before.hot.renewed
        cold, expiries = self._before.cold, self._before.expiries().copy()
        for id_, expires_ms in self._renewed.items():
            expiries[bisect_left(cold.ids, id_)] = expires_ms
        number = np.flatnonzero(expiries != cold.expiries)
        return Renewals(number, expiries[number])

    def _renewed_subscriptions(self) -> dict[str, Subscription]:
        """The subscriptions with their renewed expiries."""
        found, ids, renewed = dict(self.subscriptions), self._before.cold.ids, self._renewals()
        for number, expires_ms in zip(renewed.number.tolist(), renewed.expires_ms.tolist(), strict=True):
            id_ = ids[number]
            found[id_] = found[id_]._replace(expires_ms=expires_ms)
        return found

    def regroup(self, former: tuple[int, ...], topics: tuple[int, ...]) -> GroupChange:
        """Moves the sequencing groups of the shard's topics as one subscription's set changes."""
        own = self._own()
        touched = [topic for topic in {*former, *topics} if self.owns(topic)]
        for topic in touched:
            if topic not in own.rows:
                own.rows[topic] = dict(own.counts.get(topic, {}))
        changed = groups.change(
            own.rows,
            own=touched,
            former=frozenset(former),
            topics=frozenset(topics),
            min_subscriptions=self.config.min_subscriptions,
        )
        for topic, row in changed.counts.items():
            self._members.pop(topic, None)
            own.counts[topic] = row
            if not row:
                del own.counts[topic]
        return changed

    def members(self, topic: int) -> Ints:
        """SG_T \\ {T} of one of the shard's topics, in ascending id."""
        found = self._members.get(topic)
        if found is None:
            row = self.counts.get(topic)
            if row is None:
                return _NOBODY
            found = self._members[topic] = groups.members(row, self.config.min_subscriptions)
        return found

    def together(self, topic: int) -> frozenset[int]:
        """Every topic that some live subscription holds together with one of the shard's topics."""
        return frozenset(self.counts.get(topic, ()))

    def owns(self, topic: int) -> bool:
        """Whether this shard stamps a topic."""
        return self.partition_of[topic] % self.config.shards == self.config.shard

    def source(self, index: int) -> Source:
        """The event partition of an index."""
        rank, partition = self.sources[index]
        return Source(*self.kafka_topics[rank], partition)

    def _own(self) -> _Copies:
        """The draft's own copies of the tables, made at the first change."""
        if self._copies is None:
            self._copies = own = _Copies(
                topics=list(self.topics),
                topic_ids=dict(self.topic_ids),
                partition_of=list(self.partition_of),
                subscriptions=self._renewed_subscriptions(),
                counts=dict(self.counts),
                rows={},
            )
            self.topics, self.topic_ids, self.partition_of = own.topics, own.topic_ids, own.partition_of
            self.subscriptions, self.counts, self._members = own.subscriptions, own.counts, dict(self._members)
        self.changed = True
        return self._copies


def _in_bytes(topic: KafkaTopic) -> tuple[bytes, str]:
    return topic.name.encode(), topic.topic_id
