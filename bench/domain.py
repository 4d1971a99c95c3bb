"""A domain on the paper's workload, moved on by the engine alone: no Kafka and no Spark."""

import numpy as np
from kafka.partitioner.default import murmur2

from totalorder.bench.workload import Ints, Workload
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.engine import Effects, EngineConfig, State, initial_state, step
from totalorder.sequencer.wire.control import Subscribe, encode_request
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import KafkaTopic

NAME = "bench"
_TOPIC_ID = "2f1c8a57-6b0e-4d93-a1f4-7c5e90b3d826"
"""As long as those that Kafka gives: it is in every record of stamps."""
EVENTS = KafkaTopic("events", _TOPIC_ID)
EVENT_PARTITIONS = 4
EVENTS_PER_S = 5_000
"""Events come at random moments at this rate: several share a millisecond, as they do."""
_BEGAN_MS = 1_700_000_000_000


class Domain:
    """One keyed event topic of four partitions; π, state and stamps are the engine's own.

    A pub/sub topic is its key, and the key's hash chooses the partition, as any Kafka producer does. Control comes
    first of all that one step is given.
    """

    def __init__(self, workload: Workload, *, min_subscriptions: int, events: int) -> None:
        """`events`: how many `next_batch` can give in all."""
        self.config = EngineConfig(domain=NAME, identity=NAME, topic_by="key", min_subscriptions=min_subscriptions)
        self.state: State = initial_state(self.config)
        self.topics = tuple(f"topic-{rank:04}" for rank in range(workload.topics))
        random = np.random.default_rng([workload.seed, 3])
        self._topic = workload.events(events)
        self._crc = random.integers(2**32, size=events)
        self._time_ms = _BEGAN_MS + np.cumsum(random.exponential(1_000 / EVENTS_PER_S, size=events)).astype(np.int64)
        hashed = [(murmur2(name.encode()) & 0x7FFFFFFF) % EVENT_PARTITIONS for name in self.topics]
        self._partition = np.array(hashed, dtype=np.int64)[self._topic]
        self._offset = _occurrence(self._partition)
        self._done = self._subscribed = self._cuts = 0

    def subscribe(self, subscriptions: Ints) -> Effects:
        """Grants a row of topics to one new subscriber each, in one batch."""
        return self.run(self.requests(subscriptions))

    def requests(self, subscriptions: Ints) -> Batch:
        """The batch that asks for them; ids are s0, s1 …"""
        first, size = self._subscribed, len(subscriptions)
        self._subscribed += size
        self._cuts += 1
        none = np.zeros(size, dtype=np.int64)
        return Batch(
            time_ms=_BEGAN_MS,
            cut=self._cuts,
            topic_order=(),
            kafka_topics=(KafkaTopic(DomainTopics(domain=NAME).control, _TOPIC_ID),),
            topics=(),
            kafka_topic=none,
            partition=none,
            offset=np.arange(first, first + size, dtype=np.int64),
            timestamp_ms=none + _BEGAN_MS,
            topic=none - 1,
            crc=none,
            slice=none,
            control={
                row: self._request(f"s{first + row}", topics) for row, topics in enumerate(subscriptions.tolist())
            },
        )

    def _request(self, id_: str, topics: list[int]) -> bytes:
        names = tuple(self.topics[topic] for topic in topics)
        ends = dict.fromkeys(range(self.config.stamps_partitions), 0)
        return encode_request(Subscribe(id=id_, generation=1, nonce="n", topics=names, lease_s=0, stamps_ends=ends))

    def next_batch(self, size: int) -> Batch:
        """The next events."""
        rows = slice(self._done, self._done + size)
        self._done += size
        self._cuts += 1
        none = np.zeros(size, dtype=np.int64)
        return Batch(
            time_ms=int(self._time_ms[rows][-1]) + 1,
            cut=self._cuts,
            topic_order=(),
            kafka_topics=(EVENTS,),
            topics=self.topics,
            kafka_topic=none,
            partition=self._partition[rows],
            offset=self._offset[rows],
            timestamp_ms=self._time_ms[rows],
            topic=self._topic[rows],
            crc=self._crc[rows],
            slice=none,
            control={},
        )

    def run(self, batch: Batch) -> Effects:
        """Moves the state on."""
        self.state, effects = step(self.state, batch, {})
        return effects

    def group_sizes(self) -> Ints:
        """|SG_T| by rank of popularity, T itself counted, as the paper does; 0 where nobody subscribed."""
        sizes = np.zeros(len(self.topics), dtype=np.int64)
        rank = {name: at for at, name in enumerate(self.topics)}
        least = self.config.min_subscriptions
        for topic, row in self.state.cold.counts.items():
            peers = sum(count >= least for count in row.values())
            sizes[rank[self.state.cold.topics[topic]]] = 1 + peers
        return sizes


def _occurrence(values: Ints) -> Ints:
    """How often each value came before."""
    before = np.empty_like(values)
    for value in np.unique(values).tolist():
        rows = values == value
        before[rows] = np.arange(rows.sum())
    return before
