"""The engine's state: hot (counters, small, written every batch) and cold (names, subscriptions, groups, on change).

A renewed lease is hot until the cold state is written for another reason, or until so many are that it pays (draft.py).
Values are immutable by convention: a step makes new ones. The bytes carry a version and a checksum.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder.errors import StateError
from totalorder.sequencer.groups import Counts
from totalorder.sequencer.wire.limits import MAX_SHARDS, MAX_STAMPS_PARTITIONS, MAX_STATE_UNITS
from totalorder.sequencer.wire.names import DomainTopics, stamps_partition
from totalorder.sequencer.wire.packing import pack, readable, unpack
from totalorder.sequencer.wire.stamps import KafkaTopic
from totalorder.sequencer.wire.values import number, text

Ints = npt.NDArray[np.int64]
VERSION = 3
NEVER = np.iinfo(np.int64).max
"""The expiry of what does not expire."""
_HOT_MAGIC, _COLD_MAGIC = b"TOhs", b"TOcs"
_HOT_FIELDS = {"batch", "g", "control_g", "digests", "owed", "rekey", "opening"}
_COLD_FIELDS = {"config", "kafka_topics", "retired", "sources", "topics", "subscriptions"}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What is fixed for the life of a checkpoint; another value is refused.

    `identity` is the checkpoint's own random name. `topic_by` says what names an event's pub/sub topic: "topic", "key"
    or "header:NAME". `keyframe_every` is K of the delta coding: each K-th event of a topic carries all its entries.
    """

    domain: str
    identity: str
    incarnation: int = 1
    stamps_partitions: int = 4
    shards: int = 1
    shard: int = 0
    min_subscriptions: int = 1
    topic_by: str = "topic"
    keyframe_every: int = 1024

    def __post_init__(self) -> None:
        DomainTopics(domain=self.domain)
        if not 1 <= self.stamps_partitions <= MAX_STAMPS_PARTITIONS:
            raise ValueError(f"stamps_partitions must be 1 to {MAX_STAMPS_PARTITIONS}")
        if not 1 <= self.shards <= min(MAX_SHARDS, self.stamps_partitions):
            raise ValueError(f"shards must be 1 to {MAX_SHARDS} and at most stamps_partitions")
        if not 0 <= self.shard < self.shards or self.min_subscriptions not in (1, 2) or self.keyframe_every < 1:
            raise ValueError("shard, min_subscriptions or keyframe_every is out of range")

    def own_partitions(self) -> range:
        """The stamps partitions of this shard: shard = stamps partition mod K."""
        return range(self.shard, self.stamps_partitions, self.shards)


Lost = Mapping[int, tuple[int, int]]
"""By partition, the first offset that was not stamped, and the end of what was seen."""


class Subscription(NamedTuple):
    """One id's subscription; an ended one keeps its generation, with no topics."""

    generation: int
    nonce: str
    topics: tuple[int, ...]
    lease_ms: int
    """0 means that it never expires."""
    expires_ms: int
    """In cold state; `Hot.renewed` may hold a later one."""
    g: int
    """Position of the record that set this generation."""
    lapsed: bool
    """Whether it ended by expiry or unsubscription."""


class Renewals(NamedTuple):
    """Expiries that stand in place of the cold state's; `number` is a subscription's place in `Cold.ids`, ascending."""

    number: Ints
    expires_ms: Ints


NO_RENEWALS = Renewals(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class Hot:
    """Counters: small, the same in all shards but for `digests`, `owed`, `rekey` and `opening`."""

    batch: int
    g: int
    control_g: int
    clocks: Ints
    """LC of each topic, by topic id."""
    last_g: Ints
    """g of each topic's last event, 0 before the first: who advanced since when follows from comparing these."""
    next_offsets: Ints
    """By index into `Cold.sources`."""
    digests: Mapping[int, str]
    owed: Mapping[int, frozenset[int]]
    """Entries that a topic's next event must write though they may not have advanced."""
    rekey: frozenset[int]
    """Topics whose next event is a keyframe whatever its number."""
    opening: frozenset[int]
    """Topics whose next event carries opening entries (groups.py)."""
    renewed: Renewals


@dataclass(frozen=True, kw_only=True)
class Cold:
    """Names and subscriptions (the same in all shards) and the co-subscription counts of the shard's topics."""

    config: EngineConfig
    kafka_topics: tuple[KafkaTopic, ...]
    """Rank → event topic; numbered at first sight, kept for ever."""
    retired: Mapping[int, Lost]
    """By rank, the topics of which nothing more is stamped, and what never was."""
    sources: tuple[tuple[int, int], ...]
    """(rank, partition), numbered at first sight; those of retired topics are taken out."""
    topics: tuple[str, ...]
    """Topic id → name."""
    subscriptions: Mapping[str, Subscription]
    counts: Counts

    @cached_property
    def topic_ids(self) -> dict[str, int]:
        """Name → topic id."""
        return {name: index for index, name in enumerate(self.topics)}

    @cached_property
    def ranks(self) -> dict[KafkaTopic, int]:
        """Event topic → rank."""
        return {topic: rank for rank, topic in enumerate(self.kafka_topics)}

    @cached_property
    def source_ids(self) -> dict[tuple[int, int], int]:
        """(rank, partition) → index."""
        return {source: index for index, source in enumerate(self.sources)}

    @cached_property
    def partition_of(self) -> list[int]:
        """Topic id → stamps partition."""
        return [stamps_partition(name, self.config.stamps_partitions) for name in self.topics]

    @cached_property
    def ids(self) -> list[str]:
        """The subscriptions' ids in order."""
        return sorted(self.subscriptions)

    @cached_property
    def expiries(self) -> Ints:
        """By place in `ids`; `NEVER` where there is no lease, or none any more."""
        held = map(self.subscriptions.__getitem__, self.ids)
        expiries = (one.expires_ms if one.lease_ms and not one.lapsed else NEVER for one in held)
        return np.fromiter(expiries, dtype=np.int64, count=len(self.ids))

    @cached_property
    def members(self) -> dict[int, Ints]:
        """SG_T \\ {T} of the shard's topics, filled in as they are asked for."""
        return {}


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that a step needs from the steps before it."""

    hot: Hot
    cold: Cold

    def expiries(self) -> Ints:
        """When each lease runs out, by place in `Cold.ids`."""
        renewed = self.hot.renewed
        if not len(renewed.number):
            return self.cold.expiries
        expiries = self.cold.expiries.copy()
        expiries[renewed.number] = renewed.expires_ms
        return expiries

    def require(self, config: EngineConfig) -> None:
        """Refuses to go on under other fixed settings than the state was made with."""
        mine = self.cold.config
        for name in EngineConfig.__dataclass_fields__:
            old, new = getattr(mine, name), getattr(config, name)
            if old != new:
                raise StateError(
                    f"the checkpoint was made with {name} = {old!r}, and this run has {new!r}",
                    remedy=f"Set {name} back to {old!r}, or begin a new domain with a new checkpoint",
                )


def encode_hot(hot: Hot) -> bytes:
    """State bytes of the hot part."""
    header = {
        "batch": hot.batch,
        "g": hot.g,
        "control_g": hot.control_g,
        "digests": sorted(hot.digests.items()),
        "owed": sorted((topic, sorted(peers)) for topic, peers in hot.owed.items()),
        "rekey": sorted(hot.rekey),
        "opening": sorted(hot.opening),
    }
    arrays = {
        "clocks": hot.clocks,
        "last_g": hot.last_g,
        "next_offsets": hot.next_offsets,
        "renewed": hot.renewed.number,
        "renewed_ms": hot.renewed.expires_ms,
    }
    return pack(_HOT_MAGIC, VERSION, header, arrays)


def decode_hot(data: bytes, most_units: int = MAX_STATE_UNITS) -> Hot:
    """Reads `encode_hot`; StateError when the bytes are damaged or of another version, or cost too much (budget.py)."""
    header, arrays = unpack(_HOT_MAGIC, VERSION, data, "hot state", _HOT_FIELDS, most_units)
    with readable("hot state"):
        hot = Hot(
            batch=number(header["batch"]),
            g=number(header["g"]),
            control_g=number(header["control_g"]),
            digests={number(partition): text(digest) for partition, digest in header["digests"]},
            owed={number(topic): frozenset(map(number, peers)) for topic, peers in header["owed"]},
            rekey=frozenset(map(number, header["rekey"])),
            opening=frozenset(map(number, header["opening"])),
            renewed=Renewals(arrays.pop("renewed"), arrays.pop("renewed_ms")),
            **arrays,
        )
        if len(hot.clocks) != len(hot.last_g) or len(hot.renewed.number) != len(hot.renewed.expires_ms):
            raise ValueError("its columns differ in length")
    return hot


def encode_cold(cold: Cold) -> bytes:
    """State bytes of the cold part."""
    header = {
        "config": {name: getattr(cold.config, name) for name in EngineConfig.__dataclass_fields__},
        "kafka_topics": cold.kafka_topics,
        "retired": [
            [rank, [[part, *offsets] for part, offsets in sorted(lost.items())]]
            for rank, lost in sorted(cold.retired.items())
        ],
        "sources": cold.sources,
        "topics": cold.topics,
        "subscriptions": [[id_, *cold.subscriptions[id_]] for id_ in cold.ids],
    }
    return pack(_COLD_MAGIC, VERSION, header, {"counts": _flat(cold.counts).reshape(-1)})


def _flat(counts: Counts) -> Ints:
    """A row (topic, peer, count) for each pair of topics, ascending."""
    flat = np.empty((sum(map(len, counts.values())), 3), dtype=np.int64)
    done = 0
    for topic, row in sorted(counts.items()):
        part = flat[done : done + len(row)]
        peers = np.fromiter(row, dtype=np.int64, count=len(row))
        order = np.argsort(peers)
        part[:, 0], part[:, 1] = topic, peers[order]
        part[:, 2] = np.fromiter(row.values(), dtype=np.int64, count=len(row))[order]
        done += len(row)
    return flat


def _rows(flat: Ints) -> dict[int, dict[int, int]]:
    """Undoes `_flat`."""
    starts = np.flatnonzero(np.diff(flat[:, 0], prepend=-1)).tolist()
    return {
        int(flat[start, 0]): dict(zip(flat[start:end, 1].tolist(), flat[start:end, 2].tolist(), strict=True))
        for start, end in pairwise([*starts, len(flat)])
    }


def decode_cold(data: bytes, most_units: int = MAX_STATE_UNITS) -> Cold:
    """Reads `encode_cold`; StateError as `decode_hot`."""
    header, arrays = unpack(_COLD_MAGIC, VERSION, data, "cold state", _COLD_FIELDS, most_units)
    with readable("cold state"):
        return Cold(
            config=EngineConfig(**header["config"]),
            kafka_topics=tuple(KafkaTopic(text(name), text(topic_id)) for name, topic_id in header["kafka_topics"]),
            retired={
                number(rank): {number(part): (number(first), number(end)) for part, first, end in lost}
                for rank, lost in header["retired"]
            },
            sources=tuple((number(rank), number(partition)) for rank, partition in header["sources"]),
            topics=tuple(map(text, header["topics"])),
            subscriptions=dict(map(_subscription, header["subscriptions"])),
            counts=_rows(arrays["counts"].reshape(-1, 3)),
        )


def _subscription(row: Sequence[Any]) -> tuple[str, Subscription]:
    id_, generation, nonce, topics, lease_ms, expires_ms, g, lapsed = row
    if type(lapsed) is not bool:
        raise ValueError(f"{lapsed!r:.60} does not tell whether it lapsed")
    return text(id_), Subscription(
        generation=number(generation),
        nonce=text(nonce),
        topics=tuple(map(number, topics)),
        lease_ms=number(lease_ms),
        expires_ms=number(expires_ms),
        g=number(g),
        lapsed=lapsed,
    )
