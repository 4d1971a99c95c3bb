"""Judges what subscribers printed, by what Kafka holds: an own client, own rules, and nothing of the product."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

Place = tuple[str, int, int]
"""Kafka topic, partition, offset."""
_POLL_S = 1.0
_SILENT_POLLS = 60


@dataclass(frozen=True)
class Delivered:
    """One event as a subscriber printed it. `marked`: it says that it may be a repetition."""

    place: Place
    number: int
    g: int
    marked: bool

    @classmethod
    def of(cls, printed: Mapping[str, Any]) -> "Delivered":
        """From a line of `totalorder subscribe --json`."""
        place = printed["kafka_topic"], printed["partition"], printed["offset"]
        return cls(place, int(printed["value"]), printed["g"], printed["tag"] == "redelivered")


def logs_of(servers: str, topics: Iterable[str]) -> dict[Place, int]:
    """Every event of the topics that is there now, and the number that it holds."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "judge", "enable.auto.commit": False})
    try:
        sources = [
            TopicPartition(topic, partition, OFFSET_BEGINNING)
            for topic in topics
            for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions
        ]
        left = sum(consumer.get_watermark_offsets(source, timeout=30)[1] for source in sources)
        consumer.assign(sources)
        found: dict[Place, int] = {}
        silent = 0
        while len(found) < left:
            message = consumer.poll(_POLL_S)
            if message is None or message.error():
                silent += 1
                assert silent < _SILENT_POLLS, f"Kafka gives {len(found)} of {left} events"
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            value = message.value()
            if topic is not None and partition is not None and offset is not None and value is not None:
                found[topic, partition, offset] = int(value)
        return found
    finally:
        consumer.close()


def violations(
    logs: Mapping[Place, int], told: Mapping[str, Sequence[Delivered]], topics: Mapping[str, set[str]]
) -> list[str]:
    """What is wrong, in words; nothing where the promise held. `topics` are each subscriber's."""
    first = {name: _first_deliveries(events) for name, events in told.items()}
    found = []
    for name, events in told.items():
        found += [f"{name}: {text}" for text in _wrong_of_one(logs, events, first[name], topics[name])]
    for (one, ours), (other, theirs) in combinations(first.items(), 2):
        found += [f"{one} and {other}: {text}" for text in _wrong_of_two(ours, theirs)]
    if circle := _circle(first.values()):
        found.append(f"a circle of {len(circle)} events: {circle[:10]}")
    return found


def pairs(told: Mapping[str, Sequence[Delivered]]) -> int:
    """How many pairs of events two subscribers both got, and were compared."""
    sets = [{event.place for event in events} for events in told.values()]
    return sum(len(common) * (len(common) - 1) // 2 for one, other in combinations(sets, 2) if (common := one & other))


def _first_deliveries(events: Sequence[Delivered]) -> list[Place]:
    return list(dict.fromkeys(event.place for event in events))


def _wrong_of_one(
    logs: Mapping[Place, int], events: Sequence[Delivered], first: Sequence[Place], topics: set[str]
) -> list[str]:
    owed, found = {place for place in logs if place[0] in topics}, []
    if missing := owed - set(first):
        found.append(f"never got {sorted(missing)[:5]} ({len(missing)} of {len(owed)})")
    if strange := set(first) - owed:
        found.append(f"got {sorted(strange)[:5]}, which it has no right to")
    if untrue := [event for event in events if logs.get(event.place, event.number) != event.number]:
        found.append(f"got other content than Kafka holds: {untrue[:5]}")
    return found + _unmarked(events) + _against_the_log(first) + _wrong_g(events)


def _unmarked(events: Sequence[Delivered]) -> list[str]:
    seen: set[Place] = set()
    found = []
    for event in events:
        if event.place in seen and not event.marked:
            found.append(f"got {event.place} twice, without a mark")
        seen.add(event.place)
    return found


def _against_the_log(first: Sequence[Place]) -> list[str]:
    last: dict[tuple[str, int], int] = {}
    found = []
    for topic, partition, offset in first:
        if offset < last.get((topic, partition), -1):
            found.append(f"got {topic}[{partition}]@{offset} behind {last[topic, partition]}")
        last[topic, partition] = offset
    return found


def _wrong_g(events: Sequence[Delivered]) -> list[str]:
    """Each event has one g, which is its alone; new ones come by rising g."""
    places: dict[int, Place] = {}
    found, reached = [], 0
    for event in events:
        if event.g not in places and event.g < reached:
            found.append(f"got {event.place} with g {event.g} behind g {reached}")
        if places.setdefault(event.g, event.place) != event.place:
            found.append(f"got {event.place} and {places[event.g]} at the same g {event.g}")
        reached = max(reached, event.g)
    if len(set(places.values())) != len(places):
        found.append("got an event with several g")
    return found


def _wrong_of_two(ours: Sequence[Place], theirs: Sequence[Place]) -> list[str]:
    common = set(ours) & set(theirs)
    one, other = [place for place in ours if place in common], [place for place in theirs if place in common]
    return [f"{a} where the other has {b}" for a, b in zip(one, other, strict=True) if a != b][:1]


def _circle(orders: Iterable[Sequence[Place]]) -> list[Place]:
    """Events of which each comes before another for somebody, in a circle; none where all is well."""
    after: dict[Place, set[Place]] = {}
    waits: dict[Place, int] = {}
    for order in orders:
        for place in order:
            waits.setdefault(place, 0)
        for one, other in pairwise(order):
            if other not in after.setdefault(one, set()):
                after[one].add(other)
                waits[other] += 1
    free = [place for place, count in waits.items() if not count]
    while free:
        place = free.pop()
        for other in after.get(place, ()):
            waits[other] -= 1
            if not waits[other]:
                free.append(other)
    return [place for place, count in waits.items() if count]
