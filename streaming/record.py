"""What a domain is, as written beside its checkpoint when it began: fixed settings, and every topic that it reads."""

import json
import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, get_args

from totalorder.config import Settings
from totalorder.errors import StateError
from totalorder.sequencer.state import EngineConfig
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.offset import BatchEnd

VERSION = 5
FIRST_INCARNATION = 1
CONTROL = 0
"""The number of the control topic; event topics count from 1."""
_FIELDS = {"version", "identity", "incarnation", "fixed", "own_ids", "topics", "orders", "claim", "recovered", "lost"}
FIXED = ("domain", "stamps_partitions", "shards", "min_subscriptions", "topic_by", "keyframe_every")
"""Settings that the checkpoint fixes."""
TopicState = Literal["read", "gone", "retired"]
GO_ON_WITHOUT = (
    'begin a new domain, or set on_data_loss = "record", which goes on and gives the loss a place in the order'
)
"""What to do about events that are gone before they were stamped."""


@dataclass(frozen=True, kw_only=True)
class EventTopic:
    """A Kafka topic whose events the domain orders: its name, Kafka's id of it, and the offset at which each partition
    begins that does not begin at 0. Only as long as its state is "read" it is read, also for batches that were planned
    before. One that is "gone" Kafka has no longer, and control has yet to be told; of one that is "retired" it knows.
    `lost` has, by partition, the last offsets (first, behind the last) that Kafka had no longer when they were to be
    stamped. No batch reads them, or what lies before.
    """

    name: str
    topic_id: str
    starts: Mapping[int, int] = field(default_factory=dict)
    state: TopicState = "read"
    lost: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def losing(self, lost: Mapping[Source, tuple[int, int]]) -> Self:
        """See `DomainRecord.losing`."""
        found = dict(self.lost)
        for source, (begin, end) in lost.items():
            if source.kafka_topic == (self.name, self.topic_id):
                first, behind = self.lost.get(source.partition, (begin, begin))
                found[source.partition] = (first if behind == begin else begin, end)
        return replace(self, lost=found)


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Where a checkpoint begins that was recovered: behind the domain's batch `batch`, and where `begin` says.

    `seeds` are the digests of the states that lie beside the record, by shard.
    """

    batch: int
    begin: BatchEnd
    seeds: tuple[str, ...]

    def encode(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"batch": self.batch, "begin": self.begin.encode(), "seeds": self.seeds}

    @classmethod
    def decode(cls, content: Mapping[str, Any], where: str) -> Self:
        """Reads `encode`; StateError or ValueError when it is damaged."""
        return cls(
            batch=int(content["batch"]),
            begin=BatchEnd.decode(content["begin"], where),
            seeds=tuple(str(digest) for digest in content["seeds"]),
        )


@dataclass(frozen=True, kw_only=True)
class DomainRecord:
    """`identity` is the checkpoint's random name; `own_ids` holds Kafka's UUID of each of the domain's own topics;
    `topics` are the event topics in the order in which they were admitted, of which none is ever taken out: Spark's log
    names them by their numbers, 1, 2, 3 …. `orders` are the lists of topics that have decided ties, the present one
    last. `claim` is the offset on control of the claim that gave the domain to this checkpoint; None as long as that is
    not known. `recovered` is there where the checkpoint did not begin the domain, but took it over.
    """

    identity: str
    incarnation: int
    fixed: Mapping[str, Any]
    own_ids: Mapping[str, str]
    topics: tuple[EventTopic, ...]
    orders: tuple[tuple[str, ...], ...]
    claim: int | None = None
    recovered: Recovered | None = None

    @classmethod
    def begin(cls, settings: Settings, *, topics: Iterable[EventTopic], own_ids: Mapping[str, str]) -> Self:
        """The record of a domain that begins now."""
        return cls(
            identity=secrets.token_hex(16),
            incarnation=FIRST_INCARNATION,
            fixed={name: getattr(settings, name) for name in FIXED},
            own_ids=dict(own_ids),
            topics=tuple(topics),
            orders=(settings.topic_order,),
        )

    def admitting(self, topic_ids: Mapping[str, str]) -> Self:
        """The same with more event topics, by name; those are read from offset 0."""
        more = (EventTopic(name=name, topic_id=topic_id) for name, topic_id in sorted(topic_ids.items()))
        return replace(self, topics=(*self.topics, *more))

    def leaving(self, topic_ids: Collection[str], state: TopicState) -> Self:
        """The same where the topics with these ids are in this state; one that is retired stays so."""
        topics = (
            replace(topic, state=state) if topic.topic_id in topic_ids and topic.state != "retired" else topic
            for topic in self.topics
        )
        return replace(self, topics=tuple(topics))

    def losing(self, lost: Mapping[Source, tuple[int, int]]) -> Self:
        """The same where these offsets of event partitions are lost too; what goes on from a former loss adds to it."""
        return replace(self, topics=tuple(topic.losing(lost) for topic in self.topics))

    def ordering(self, topic_order: tuple[str, ...]) -> Self:
        """The same where from now on this list of topics decides ties."""
        return self if self.orders[-1] == topic_order else replace(self, orders=(*self.orders, topic_order))

    def engine_config(self) -> EngineConfig:
        """The engine's configuration, for shard 0."""
        return EngineConfig(identity=self.identity, incarnation=self.incarnation, shard=0, **self.fixed)

    @property
    def topic_ids(self) -> dict[str, str]:
        """Kafka's id of every topic that the domain has and reads, its own and the events', by name."""
        return {**self.own_ids, **{topic.name: topic.topic_id for topic in self.read_topics}}

    @property
    def read_topics(self) -> tuple[EventTopic, ...]:
        """The event topics that are read: one of each name."""
        return tuple(topic for topic in self.topics if topic.state == "read")

    @property
    def known_ids(self) -> frozenset[str]:
        """Kafka's ids of all event topics that were ever admitted."""
        return frozenset(topic.topic_id for topic in self.topics)

    @property
    def ids_left(self) -> frozenset[str]:
        """Of those of them that are not read any more."""
        return self.known_ids - {topic.topic_id for topic in self.read_topics}

    @property
    def event_topics(self) -> frozenset[str]:
        """Their names."""
        return frozenset(topic.name for topic in self.read_topics)

    @property
    def starts(self) -> dict[Source, int]:
        """The first offset of the event partitions that do not begin at 0."""
        return {
            Source(topic.name, topic.topic_id, part): offset
            for topic in self.topics
            for part, offset in topic.starts.items()
        }

    @property
    def lost(self) -> dict[Source, tuple[int, int]]:
        """What is lost of the event partitions that are read."""
        return {
            Source(topic.name, topic.topic_id, part): bounds
            for topic in self.read_topics
            for part, bounds in topic.lost.items()
        }

    def numbered(self) -> tuple[EventTopic, ...]:
        """All topics that are read, by number: control first."""
        control = str(self.fixed["domain"]) + ".control"
        return EventTopic(name=control, topic_id=self.own_ids.get(control, "")), *self.topics

    @property
    def beginning(self) -> BatchEnd | None:
        """Where the checkpoint's first batch begins, if not where the domain does."""
        return self.recovered.begin if self.recovered else None

    def encode(self) -> str:
        """JSON."""
        content: dict[str, Any] = {
            "version": VERSION,
            "identity": self.identity,
            "incarnation": self.incarnation,
            "fixed": dict(self.fixed),
            "own_ids": dict(sorted(self.own_ids.items())),
            "topics": [
                [topic.name, topic.topic_id, sorted(topic.starts.items()), topic.state] for topic in self.topics
            ],
            "orders": self.orders,
            "claim": self.claim,
        }
        lost = [
            [number, part, *bounds]
            for number, topic in enumerate(self.topics, 1)
            for part, bounds in sorted(topic.lost.items())
        ]
        if lost:
            content["lost"] = lost
        if self.recovered:
            content["recovered"] = self.recovered.encode()
        return json.dumps(content, indent=1) + "\n"

    @classmethod
    def decode(cls, text: str, where: str) -> Self:
        """Reads `encode`; StateError when it is damaged or of another version."""
        try:
            content = json.loads(text)
            version = content["version"]
            if version == VERSION:
                if unknown := content.keys() - _FIELDS:
                    raise ValueError(f"unknown fields: {', '.join(sorted(unknown))}")
                record = cls(
                    identity=str(content["identity"]),
                    incarnation=int(content["incarnation"]),
                    fixed={name: content["fixed"][name] for name in FIXED},
                    own_ids={str(name): str(topic_id) for name, topic_id in content["own_ids"].items()},
                    topics=_topics(content["topics"], content.get("lost", ())),
                    orders=tuple(tuple(str(name) for name in order) for order in content["orders"]),
                    claim=None if content.get("claim") is None else int(content["claim"]),
                    recovered=Recovered.decode(content["recovered"], where) if "recovered" in content else None,
                )
                record.engine_config()  # refuses what no domain is fixed to
                return record
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise StateError(
                f"{where} is damaged ({type(error).__name__}: {error})",
                remedy="Restore the checkpoint from a copy, or make it anew by `totalorder recover`",
            ) from None
        raise StateError(
            f"{where} has version {version!r}; this program reads version {VERSION}",
            remedy="Run the release that wrote it, or one whose CHANGELOG says that it converts this version",
        )


def changed(name: str, *, is_there: bool, is_own: bool = False) -> StateError:
    """What ends the job: a topic that it needs was deleted; `is_there`: another one has its name now."""
    done = "deleted and created again" if is_there else "deleted"
    own = "The domain cannot do without it: begin a new one with a new checkpoint"
    return StateError(
        f"topic {name} was {done} while the job ran",
        remedy=own if is_own else 'on_topic_deleted = "retire" goes on without what it held',
    )


def _topics(listed: Iterable[Any], lost: Iterable[tuple[int, int, int, int]]) -> tuple[EventTopic, ...]:
    """The event topics; of each that has lost something it says (number, partition, first offset, the one behind)."""
    topics = [_topic(*topic) for topic in listed]
    for number, part, begin, end in lost:
        if not 0 < number <= len(topics) or not 0 <= begin < end:
            raise ValueError(f"topic number {number} has lost {begin} to {end}")
        topic = topics[number - 1]
        topics[number - 1] = replace(topic, lost={**topic.lost, int(part): (int(begin), int(end))})
    return tuple(topics)


def _topic(name: str, topic_id: str, starts: Iterable[tuple[int, int]], state: TopicState) -> EventTopic:
    if state not in get_args(TopicState):
        raise ValueError(f"topic {name} is {state!r}")
    return EventTopic(
        name=str(name),
        topic_id=str(topic_id),
        starts={int(part): int(offset) for part, offset in starts},
        state=state,
    )
