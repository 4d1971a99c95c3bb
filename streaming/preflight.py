"""May this job run? A decision over facts: every problem at once, or what has to be made and recorded first.

Each rule guards the promise: a compacted, trimmed or recreated topic would change counts in silence, and a lost
checkpoint would start clocks at 1 over existing stamps.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from totalorder.config import Settings
from totalorder.errors import PreflightFailed, StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.checkpoint import CheckpointFacts
from totalorder.streaming.claims import FirstClaim, is_anothers
from totalorder.streaming.record import FIXED, GO_ON_WITHOUT, DomainRecord, EventTopic
from totalorder.streaming.writing import OWN_MAX_BYTES
from totalorder.streaming.written import Written
from totalorder.words import did_you_mean

_RECOVER = "make the checkpoint anew from Kafka, by `totalorder recover` into an empty directory"


@dataclass(frozen=True, kw_only=True)
class TopicFacts:
    """A Kafka topic as the broker describes it; `earliest` and `latest` are offsets by partition."""

    topic_id: str
    earliest: Mapping[int, int]
    latest: Mapping[int, int]
    configs: Mapping[str, str]

    @property
    def has_records(self) -> bool:
        """Whether anything was ever written to it."""
        return any(offset > 0 for offset in self.latest.values())


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the decision needs. `topics`: the topics that the settings select, that the record names, and the
    domain's own, as far as they exist. `written`: what stamps and grants hold. `claim`: the first one on control; not
    looked for where the checkpoint is known to hold the domain. `successor`: the claim of one that took it over.
    `there`: the names of all topics, where one that the settings name is not among them.
    """

    topics: Mapping[str, TopicFacts]
    checkpoint: CheckpointFacts
    written: Written
    claim: FirstClaim | None
    successor: FirstClaim | None = None
    there: Collection[str] = ()


@dataclass(frozen=True, kw_only=True)
class NewTopic:
    """One of the domain's own topics that has to be created."""

    name: str
    partitions: int
    configs: Mapping[str, str]


def own_topics(settings: Settings) -> tuple[NewTopic, ...]:
    """The domain's own topics as they are made."""
    names, given = settings.own_topics, settings.topic_settings
    common = {"min.insync.replicas": str(given.min_insync_replicas)} if given.min_insync_replicas else {}
    retention = given.stamps_retention_ms
    # An answer must not be compacted away before the stamps of its batch have expired.
    lag = str(retention) if retention >= 0 else str(2**63 - 1)
    return (
        NewTopic(
            name=names.control,
            partitions=1,
            # The broker's clock orders requests: a subscriber's own may be years off.
            configs={
                **common,
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "message.timestamp.type": "LogAppendTime",
                "max.message.bytes": str(OWN_MAX_BYTES),
            },
        ),
        NewTopic(
            name=names.state,
            partitions=1,
            # The job itself removes what is of no use any more; segments are small, since whole ones are freed.
            configs={
                **common,
                "cleanup.policy": "delete",
                "retention.ms": "-1",
                "retention.bytes": "-1",
                "segment.bytes": str(64 << 20),
                "max.message.bytes": str(OWN_MAX_BYTES),
            },
        ),
        # Receipts and cuts are judged with stamps: they are kept as long, and stamped by the same clock.
        *(
            NewTopic(
                name=name,
                partitions=partitions,
                configs={
                    **common,
                    "cleanup.policy": "delete",
                    "retention.ms": str(retention),
                    "retention.bytes": "-1",
                    "message.timestamp.type": "LogAppendTime",
                    "max.message.bytes": str(OWN_MAX_BYTES),
                },
            )
            for name, partitions in (
                (names.stamps, settings.stamps_partitions),
                (names.receipts, settings.stamps_partitions),
                (names.cuts, 1),
            )
        ),
        NewTopic(
            name=names.grants,
            partitions=1,
            configs={
                **common,
                "cleanup.policy": "compact",
                "min.compaction.lag.ms": lag,
                "max.message.bytes": str(OWN_MAX_BYTES),
            },
        ),
        NewTopic(
            name=names.positions,
            partitions=settings.stamps_partitions,
            configs={
                **common,
                "cleanup.policy": "compact",
                "segment.ms": "600000",
                "segment.bytes": str(16 << 20),
                "min.cleanable.dirty.ratio": "0.05",
                "delete.retention.ms": "86400000",
                "max.message.bytes": str(OWN_MAX_BYTES),
            },
        ),
    )


def written_partitions(settings: Settings) -> dict[str, int]:
    """The partitions of the topics that the job writes batches to."""
    return {settings.own_topics.stamps: settings.stamps_partitions, settings.own_topics.grants: 1}


def check(settings: Settings, facts: Facts) -> None:
    """Raises PreflightFailed with every problem that the facts show."""
    record = facts.checkpoint.record
    problems = [*_event_topics(settings, facts), *_own_topics(settings, facts.topics)]
    problems += _first_start(settings, facts) if record is None else _later_start(settings, facts, record)
    refuse(problems)


def refuse(problems: list[str]) -> None:
    """Raises PreflightFailed when there are problems."""
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise PreflightFailed(f"the sequencer cannot run, {count}:\n" + "\n".join(f"  - {text}" for text in problems))


def check_own(settings: Settings, topics: Mapping[str, TopicFacts]) -> None:
    """PreflightFailed with every problem of the domain's own topics: all must be there but that of snapshots."""
    needed = [own.name for own in own_topics(settings) if own.name != settings.own_topics.state]
    missing = [f"topic {name} does not exist" for name in needed if name not in topics]
    refuse([*missing, *_own_topics(settings, topics)])


def missing_own(settings: Settings, facts: Facts) -> tuple[NewTopic, ...]:
    """Own topics that the first start creates."""
    return tuple(topic for topic in own_topics(settings) if topic.name not in facts.topics)


def selected(settings: Settings, facts: Facts) -> tuple[str, ...]:
    """The event topics that the settings select and that exist."""
    return tuple(sorted(name for name in facts.topics if settings.selects(name)))


def fit(settings: Settings, facts: Facts) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """The selected topics that are new to the domain: those that may be admitted, and why others may not."""
    record = facts.checkpoint.record
    known = record.known_ids if record is not None else frozenset()
    rules = vet if record is None else vet_new
    problems = {
        name: list(rules(name, facts.topics[name]))
        for name in selected(settings, facts)
        if facts.topics[name].topic_id not in known
    }
    return tuple(name for name, found in problems.items() if not found), {
        name: found for name, found in problems.items() if found
    }


def gone(record: DomainRecord, present: Mapping[str, str]) -> tuple[EventTopic, ...]:
    """The event topics that are read and that Kafka has no longer, or under another id; `present` has ids by name."""
    return tuple(topic for topic in record.read_topics if present.get(topic.name) != topic.topic_id)


def first_topics(settings: Settings, facts: Facts) -> tuple[EventTopic, ...]:
    """The topics of a domain that begins now, and where each begins: `starting_offsets` made concrete."""
    names, _ = fit(settings, facts)
    return tuple(_first(name, facts.topics[name], settings.starting_offsets) for name in names)


def _first(name: str, topic: TopicFacts, starting_offsets: str) -> EventTopic:
    offsets = topic.earliest if starting_offsets == "earliest" else topic.latest
    starts = {partition: offset for partition, offset in offsets.items() if offset}
    return EventTopic(name=name, topic_id=topic.topic_id, starts=starts)


def vet(name: str, topic: TopicFacts) -> Iterator[str]:
    """Problems of a topic that is read: its settings would lose records."""
    policy = topic.configs.get("cleanup.policy", "delete")
    if "compact" in policy:
        yield (
            f"topic {name} has cleanup.policy={policy}: compaction removes records that were counted; "
            "set it to delete, or leave the topic out"
        )


def vet_new(name: str, topic: TopicFacts) -> Iterator[str]:
    """Problems of a topic that is to be admitted to a domain that has begun: it is read from offset 0."""
    yield from vet(name, topic)
    for partition, offset in sorted(topic.earliest.items()):
        if offset > 0:
            yield (
                f"topic {name} is new to the domain, and its partition {partition} begins at offset {offset}: what "
                "came before was removed unseen; leave the topic out, or begin a new domain"
            )


def _event_topics(settings: Settings, facts: Facts) -> Iterator[str]:
    record = facts.checkpoint.record
    recorded = {topic.name for topic in record.topics} if record is not None else set()
    for name in settings.topics:
        if name not in facts.topics and name not in recorded:
            meant = did_you_mean(name, facts.there)
            yield f"topic {name} does not exist. {meant}Create it, or take it out of topics"
    if record is not None:
        for topic in sorted(record.read_topics, key=lambda topic: topic.name):
            if (found := facts.topics.get(topic.name)) is not None and found.topic_id == topic.topic_id:
                yield from vet(topic.name, found)
        return
    names, unfit = fit(settings, facts)
    if not names:  # of several, unfit ones are left out
        yield from (problem for problems in unfit.values() for problem in problems)


def _own_topics(settings: Settings, topics: Mapping[str, TopicFacts]) -> Iterator[str]:
    for wanted in own_topics(settings):
        found = topics.get(wanted.name)
        if found is None:
            continue
        if len(found.latest) != wanted.partitions:
            yield f"topic {wanted.name} has {len(found.latest)} partitions and must have {wanted.partitions}"
        policy, right = found.configs.get("cleanup.policy", "delete"), wanted.configs["cleanup.policy"]
        if policy != right:
            yield f"topic {wanted.name} has cleanup.policy={policy} and must have {right}"
    for name in (settings.own_topics.control, settings.own_topics.state):
        if (topic := topics.get(name)) is not None:
            yield from _keeps_for_ever(name, topic)


def _keeps_for_ever(name: str, topic: TopicFacts) -> Iterator[str]:
    for key in ("retention.ms", "retention.bytes"):
        value = topic.configs.get(key, "-1")
        if value != "-1":
            yield f"topic {name} has {key}={value} and must keep everything: set it to -1"


def _first_start(settings: Settings, facts: Facts) -> Iterator[str]:
    if facts.checkpoint.planned >= 0:
        yield (
            f"{settings.checkpoint_dir} holds a Spark checkpoint and no domain.json: it is no checkpoint of a "
            "sequencer, or a damaged one; restore it from a copy, or name an empty directory, into which `totalorder "
            "recover` can make it anew from Kafka"
        )
    own = {name: facts.topics.get(name) for name in (settings.own_topics.stamps, settings.own_topics.grants)}
    begun = [name for name, topic in own.items() if topic is not None and topic.has_records]
    for name in begun:
        yield (
            f"topic {name} has records and the checkpoint {settings.checkpoint_dir} is new: clocks would start "
            "at 1 over existing stamps; give the domain's own checkpoint, or another domain; where it is lost, "
            "`totalorder recover` makes it anew from Kafka"
        )
    if facts.claim is not None and not begun:
        yield is_anothers(settings, facts.claim)


def _later_start(settings: Settings, facts: Facts, record: DomainRecord) -> Iterator[str]:
    for name in FIXED:
        old, new = record.fixed[name], getattr(settings, name)
        if old != new:
            yield (
                f"{name} is {new!r} and the checkpoint was made with {old!r}; set it back, or begin a new domain "
                "with a new checkpoint"
            )
    if record.fixed["domain"] != settings.domain:
        return  # the other topics are another domain's: comparing them would only confuse
    if facts.claim is not None and facts.claim.owner != record.identity:
        yield is_anothers(settings, facts.claim)
        return  # what the other checkpoint did is no fault of this one's
    if facts.successor is not None:
        yield (
            f"domain {settings.domain} was taken over by the checkpoint with the identity {facts.successor.owner}, by "
            f"the claim at offset {facts.successor.offset} of {settings.own_topics.control}; run the job on that one; "
            f"where that is lost too, {_RECOVER}"
        )
        return
    yield from _recorded_topics(settings, facts, record)
    yield from _offsets(settings, facts, record)
    yield from _behind(settings, facts, record)


def _recorded_topics(settings: Settings, facts: Facts, record: DomainRecord) -> Iterator[str]:
    own = settings.own_topics.own()
    for name, topic_id in sorted(record.topic_ids.items()):
        found = facts.topics.get(name)
        if name not in own and settings.on_topic_deleted == "retire" and (found is None or found.topic_id != topic_id):
            continue
        remedy = "begin a new domain" if name in own else 'or set on_topic_deleted = "retire", which goes on without it'
        if found is None:
            yield f"topic {name} of the checkpoint does not exist any more; restore it, {remedy}"
        elif found.topic_id != topic_id:
            yield (
                f"topic {name} was deleted and created again (id {found.topic_id}, recorded {topic_id}): offsets mean "
                f"other records now; {remedy}"
            )
        elif name not in own and not settings.selects(name):
            yield (
                f"topic {name} was taken out of the settings: put it back, and take it out of the domain first, by "
                f"`totalorder topics retire {name}` while the job runs"
            )


def _offsets(settings: Settings, facts: Facts, record: DomainRecord) -> Iterator[str]:
    """Records that are still to be read must be there, and those that were read must have been."""
    read = record.event_topics | {settings.own_topics.control}
    for name in sorted(read & facts.topics.keys()):
        topic = facts.topics[name]
        if topic.topic_id != record.topic_ids.get(name):
            continue
        for partition, earliest in sorted(topic.earliest.items()):
            source = Source(name, topic.topic_id, partition)
            needed = _needed(record, facts.checkpoint.next_offsets, source)
            if earliest > needed and (name == settings.own_topics.control or settings.on_data_loss == "fail"):
                yield (
                    f"topic {name}, partition {partition}: offsets {needed} to {earliest - 1} were removed before they "
                    f"were stamped; raise the retention, and {_remedy(settings, name)}"
                )
            if topic.latest[partition] < needed:
                yield (
                    f"topic {name}, partition {partition} ends at offset {topic.latest[partition]}, and {needed} were "
                    "already read: it was cut short; restore it, or begin a new domain"
                )


def _needed(record: DomainRecord, next_offsets: Mapping[Source, int], source: Source) -> int:
    """The first offset that is to be stamped yet, and is not lost."""
    _, told = record.lost.get(source, (0, 0))
    return max(next_offsets.get(source, record.starts.get(source, 0)), told)


def _remedy(settings: Settings, name: str) -> str:
    return "begin a new domain" if name == settings.own_topics.control else GO_ON_WITHOUT


def losses(
    record: DomainRecord, topics: Mapping[str, TopicFacts], next_offsets: Mapping[Source, int]
) -> dict[Source, tuple[int, int]]:
    """What Kafka has no longer of event partitions, and the record does not call lost yet: from where on, to before
    which offset. `next_offsets` is where the next batch begins, or the one that is planned and not over.
    """
    found = {}
    for topic in record.read_topics:
        facts = topics.get(topic.name)
        for partition, earliest in facts.earliest.items() if facts and facts.topic_id == topic.topic_id else ():
            source = Source(topic.name, topic.topic_id, partition)
            needed = _needed(record, next_offsets, source)
            if earliest > needed:
                found[source] = (needed, earliest)
    return found


def must_plan_anew(
    settings: Settings,
    record: DomainRecord,
    lost: Mapping[Source, tuple[int, int]],
    checkpoint: CheckpointFacts,
    written: Written,
) -> bool:
    """Whether the batch that is planned and not over takes some of what is lost: what it takes behind that would come
    before the loss is told.

    StateError where something of that batch is written already: what it was cannot come out again.
    """
    taken = [at for at, (begin, _) in lost.items() if checkpoint.planned_offsets.get(at, 0) > begin]
    if checkpoint.planned <= checkpoint.committed or not taken:
        return False
    written = written.without(record.ids_left)
    if not written.is_past(checkpoint.next_offsets, record.starts, control_of(settings, record)):
        return True
    (begin, end), at = lost[taken[0]], taken[0]
    raise StateError(
        f"{at.topic}[{at.partition}]: offsets {begin} to {end - 1} were removed from Kafka while a batch that has some "
        "of them was half written",
        remedy=f"Where stamps have all of that batch, {_RECOVER}; else the domain is over: begin a new one",
    )


def control_of(settings: Settings, record: DomainRecord) -> Source:
    """The source that control is."""
    name = settings.own_topics.control
    return Source(name, record.own_ids.get(name, ""), 0)


def _behind(settings: Settings, facts: Facts, record: DomainRecord) -> Iterator[str]:
    """What is on stamps and grants must come from batches that the checkpoint has planned.

    Else Spark would plan anew a batch that subscribers have, so this must be seen before it plans anything.
    """
    newest, planned, control = facts.written.newest, facts.checkpoint.planned, control_of(settings, record)
    begun = record.recovered.batch if record.recovered else 0
    written = facts.written.without(record.ids_left)
    if newest > begun and planned < 0:
        yield (
            f"Spark's part of the checkpoint {settings.checkpoint_dir} is missing, and the domain has batch {newest}; "
            f"restore it from a copy, or {_RECOVER}"
        )
    elif newest > begun + planned + 1 or written.is_past(facts.checkpoint.planned_offsets, record.starts, control):
        yield (
            f"the domain has batch {newest} on {settings.own_topics.stamps} or {settings.own_topics.grants}, and the "
            f"checkpoint {settings.checkpoint_dir} ends before it: it is an old copy, or has lost its newest part; "
            f"restore the newest, or {_RECOVER}"
        )
    else:
        yield from _planned_otherwise(settings, facts, record)


def _planned_otherwise(settings: Settings, facts: Facts, record: DomainRecord) -> Iterator[str]:
    """A batch on stamps that is not committed runs again: it must be the one that is planned, by its time."""
    stamped, checkpoint, control = facts.written.stamped, facts.checkpoint, control_of(settings, record)
    runs_again = facts.written.without(record.ids_left).stamps_are_past(checkpoint.next_offsets, record.starts, control)
    if stamped is not None and runs_again and stamped.time_ms != checkpoint.planned_ms:
        yield (
            f"batch {stamped.batch} is on {settings.own_topics.stamps} with the time {stamped.time_ms}, and the "
            f"checkpoint {settings.checkpoint_dir} would run it again with {checkpoint.planned_ms}: it comes from an "
            "old copy, or another sequencer writes to this domain; restore the newest, or "
            f"{_RECOVER}"
        )
