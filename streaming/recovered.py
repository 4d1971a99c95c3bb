"""The checkpoint that a recovery makes: the shards' states, where the next batch begins, and the domain's record."""

from collections.abc import Mapping
from dataclasses import replace

from totalorder.config import Settings
from totalorder.errors import StateError
from totalorder.sequencer.recovery import Recovery
from totalorder.sequencer.state import encode_cold, encode_hot
from totalorder.sequencer.wire.stamps import KafkaTopic, Source
from totalorder.streaming.checkpoint import RECORD, seed_digest, write_seed
from totalorder.streaming.completing import AGAIN, Last
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.cut.rows import Seed, encode_seed
from totalorder.streaming.record import DomainRecord, EventTopic, Recovered, TopicState
from totalorder.streaming.store import Store


def beginning(settings: Settings, made: Recovery, last: Last) -> BatchEnd:
    """Where the next batch begins. StateError where something that was stamped lies behind that, or an open request
    before it.
    """
    cut, offsets = last.cut, last.cut.ends if last.is_over else last.cut.begins
    at = dict(zip(cut.sources, offsets.tolist(), strict=True))
    cold, hot = made.state.cold, made.state.hot
    for (rank, partition), offset in zip(cold.sources, hot.next_offsets.tolist(), strict=True):
        source = Source(*cold.kafka_topics[rank], partition)
        if offset > at.get(source, offset):
            raise StateError(
                f"{source.topic}[{partition}] is stamped up to offset {offset}, and cut {cut.cut} ends before",
                remedy=AGAIN,
            )
    control = next(source for source in cut.sources if source.topic == settings.own_topics.control)
    upcoming = made.control.upcoming()
    if made.control.next_offset > at[control] or (upcoming is not None and upcoming < at[control]):
        raise StateError(
            f"the request at offset {upcoming} of {control.topic} has no answer, and cut {cut.cut} lies behind it",
            remedy=AGAIN,
        )
    topics = _event_topics(settings, made, last)
    return BatchEnd(cut=cut.cut - (not last.is_over), order=0, ends=_by_number(topics, at, control))


def write(store: Store, settings: Settings, made: Recovery, last: Last, record: DomainRecord, begin: BatchEnd) -> None:
    """Writes the states, and at last the record that makes the directory a checkpoint."""
    seeds = []
    for shard, state in enumerate(made.states):
        config = replace(state.cold.config, identity=record.identity, incarnation=record.incarnation)
        # Counts follow from the rest, and may be many times larger; whoever plants the seed makes them.
        cold = encode_cold(replace(state.cold, config=config, counts={}))
        data = encode_seed(Seed(shard=shard, hot=encode_hot(state.hot), cold=cold))
        write_seed(store, shard, data)
        seeds.append(seed_digest(data))
    record = replace(
        record,
        topics=_event_topics(settings, made, last),
        orders=(last.cut.topic_order,),
        recovered=Recovered(batch=made.batch, begin=begin, seeds=tuple(seeds)),
    )
    store.write(RECORD, record.encode())


def _by_number(topics: tuple[EventTopic, ...], at: Mapping[Source, int], control: Source) -> dict[int, tuple[int, ...]]:
    """The offsets by the numbers that topics get in the record; control's is 0."""
    numbers = {topic.topic_id: number for number, topic in enumerate(topics, 1) if topic.state == "read"}
    ends: dict[int, dict[int, int]] = {}
    for source, offset in at.items():
        if source == control:
            ends[0] = {0: offset}
        elif source.topic_id in numbers:
            ends.setdefault(numbers[source.topic_id], {})[source.partition] = offset
    return {number: tuple(parts[part] for part in sorted(parts)) for number, parts in sorted(ends.items())}


def _event_topics(settings: Settings, made: Recovery, last: Last) -> tuple[EventTopic, ...]:
    """Every topic that the domain ever read: those of the cut it reads still, the others are gone or retired."""
    cold = made.state.cold
    control = settings.own_topics.control
    read = dict.fromkeys(source.kafka_topic for source in last.cut.sources if source.topic != control)
    retired = {cold.kafka_topics[rank] for rank in cold.retired}
    return tuple(
        EventTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            starts={at.partition: offset for at, offset in made.starts.items() if at.kafka_topic == topic},
            state=_state(topic, read, retired),
        )
        for topic in dict.fromkeys([*read, *cold.kafka_topics])
    )


def _state(topic: KafkaTopic, read: Mapping[KafkaTopic, object], retired: set[KafkaTopic]) -> TopicState:
    if topic in retired:
        return "retired"
    return "read" if topic in read else "gone"
