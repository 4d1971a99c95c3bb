"""What the records of the batches alone make of a world, by docs/protocol.md and with no code of the engine.

π, who is subscribed to what at each of its positions, what each request is answered, and which entries each event's
timestamp must have. Everything is counted by dictionaries, one record after the other.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from sim_cuts import Cut
from sim_keys import is_signed
from sim_sequencer import Domain

from totalorder.sequencer.wire.stamps import KafkaTopic, Source
from totalorder.subscriber.naming import topic_of
from totalorder.subscriber.transport import Partition, Record

_FIELDS = {
    "subscribe": {"v", "kind", "id", "generation", "nonce", "topics", "lease_s", "stamps_ends"},
    "unsubscribe": {"v", "kind", "id", "generation", "nonce"},
    "renew": {"v", "kind", "id", "generation", "nonce"},
    "retire": {"v", "kind", "id", "nonce", "topic", "topic_id", "seen"},
    "skip": {"v", "kind", "id", "nonce", "topic", "topic_id", "partition", "begin", "end"},
}


@dataclass(kw_only=True)
class Item:
    """One position of π that a record takes; or that of a loss, whose place is the first offset that is lost."""

    g: int
    batch: int
    topic: str
    """The pub/sub topic; empty for a control record."""
    partition: Partition
    offset: int
    value: bytes | None
    n: int = 0
    must: dict[str, int] = field(default_factory=dict)
    """The entries that the timestamp must have."""
    may: dict[str, int] = field(default_factory=dict)
    """All that it may have: those of the whole group, and the closing and opening ones."""
    clock: dict[str, int] = field(default_factory=dict)
    """LC of every topic before it."""
    lost_to: int = 0
    """Of a loss, behind its last offset."""

    @property
    def place(self) -> tuple[Source, int]:
        """Where the record is, whichever topic has its name now."""
        return self.partition.source, self.offset


class Told(NamedTuple):
    """What a request, or the end of a lease, is answered."""

    kind: str
    id: str
    generation: int
    nonce: str
    g: int
    offset: int
    batch: int
    topics: tuple[str, ...] = ()
    former: tuple[str, ...] = ()
    clock: tuple[tuple[str, int], ...] = ()
    said: object = None
    """Of a grant: is it continuous, its lease, and the ends of stamps that were asked with; of an end its reason, of a
    renewal its expiry, of a repetition its answer's; of a topic that was retired its name and id, and what is lost of
    it; of a loss the Kafka topic, and by partition the offsets.
    """


@dataclass(kw_only=True)
class Numbered:
    """A batch that has a number."""

    number: int
    cut: int
    time_ms: int
    g: int
    """The last position."""
    control_g: int
    """That of the last answer."""
    ends: dict[Source, int]
    """Behind the last record of each partition that it has something of."""
    stamped_ends: dict[Source, int]
    """Behind the last event that takes a position."""


@dataclass
class _Held:
    generation: int = 0
    nonce: str = ""
    topics: tuple[str, ...] = ()
    lease_ms: int = 0
    expires_ms: int = 0
    g: int = 0
    live: bool = False


class Truth:
    """Made of all committed batches, in order."""

    def __init__(
        self, cuts: Iterable[Cut], domain: Domain, control: str, starts: Mapping[Source, int] = MappingProxyType({})
    ) -> None:
        self.domain, self.control = domain, control
        self.items: list[Item] = []
        self.told: list[Told] = []
        self.batches: list[Numbered] = []
        self.losses: list[Item] = []
        self.by_place: dict[tuple[Source, int], Item] = {}
        self.retired: dict[KafkaTopic, int] = {}
        """By topic the batch in which it was retired."""
        self.members: dict[tuple[str, str, int], int | None] = {}
        """(topic, member of its group, from which position on) → until which, None while it is one."""
        self._since: dict[tuple[str, str], int] = {}
        """Of (topic, member) from which position on it is one."""
        self._g = self._control_g = 0
        self._clock: dict[str, int] = {}
        self._held: dict[str, _Held] = {}
        self._ranks: dict[KafkaTopic, int] = {}
        self._reached = dict(starts)
        """The next offset of each event partition, as far as it is known at a position."""
        self._lost: dict[KafkaTopic, dict[int, tuple[int, int]]] = {}
        self._together: dict[str, dict[str, int]] = {}
        self._joined: dict[str, set[str]] = {}
        self._closing: dict[str, set[str]] = {}
        self._opening: set[str] = set()
        self._before: dict[str, dict[str, int]] = {}
        for cut in cuts:
            self._batch(cut)

    # --- batches ------------------------------------------------------------------------------------------------------

    def _batch(self, cut: Cut) -> None:
        records = [(slice_, record) for slice_, found in enumerate(cut.slices) for record in found]
        records = [
            (slice_, record)
            for slice_, record in records
            if not (record.topic == self.control and _is_claim(record.value))
            and self._kafka(record) not in self.retired
        ]
        if not records:
            return
        self._rank(record for _, record in records)
        self._number, self._time_ms = len(self.batches) + 1, cut.time_ms
        self._ends = ends = dict[Source, int]()
        self._stamped = stamped = dict[Source, int]()
        for _, record in records:
            if record.topic != self.control:
                ends[record.at.source] = max(record.offset + 1, ends.get(record.at.source, 0))
        for id_, held in sorted(self._held.items()):
            if held.live and held.lease_ms and held.expires_ms <= cut.time_ms:
                self._end(id_, held, held.generation, held.nonce, -1, "expired")
        for record in self._in_order(records, cut):
            if record.topic == self.control:
                self._request(record)
            elif self._kafka(record) not in self.retired and self._event(record):
                stamped[record.at.source] = self._reached[record.at.source] = record.offset + 1
        self._reached |= {source: end for source, end in ends.items() if source.kafka_topic not in self.retired}
        self.batches.append(
            Numbered(
                number=self._number,
                cut=cut.number,
                time_ms=cut.time_ms,
                g=self._g,
                control_g=self._control_g,
                ends=ends,
                stamped_ends=stamped,
            )
        )

    def _kafka(self, record: Record) -> KafkaTopic:
        return KafkaTopic(record.topic, record.topic_id)

    def _rank(self, records: Iterable[Record]) -> None:
        topics = set()
        for record in records:
            request = read_request(record.value) if record.topic == self.control else {}
            if record.topic != self.control:
                topics.add(self._kafka(record))
            elif self._is_good(request) and request["kind"] == "skip":
                topics |= {KafkaTopic(request["topic"], request["topic_id"])} - self.retired.keys()
        for topic in sorted(topics - self._ranks.keys()):
            self._ranks[topic] = len(self._ranks)

    def _in_order(self, records: Sequence[tuple[int, Record]], cut: Cut) -> list[Record]:
        latest: dict[Partition, int] = {}
        keyed = []
        for slice_, record in sorted(records, key=lambda each: each[1].offset):
            tau = latest[record.at] = max(record.timestamp_ms, latest.get(record.at, record.timestamp_ms))
            if record.topic == self.control:
                topic = (-1, -1)
            else:
                order = [*cut.topic_order, record.topic].index(record.topic)
                topic = (order, self._ranks[self._kafka(record)])
            keyed.append(((slice_, min(tau, cut.time_ms), *topic, record.partition, record.offset), record))
        return [record for _, record in sorted(keyed, key=lambda each: each[0])]

    # --- events -------------------------------------------------------------------------------------------------------

    def _event(self, record: Record) -> bool:
        topic = topic_of(record, self.domain.topic_by)
        if topic is None:
            return False
        self._g += 1
        clock = dict(self._clock)
        group = self.group(topic)
        before = self._before.get(topic, {})
        closing = self._closing.pop(topic, set())
        opened = set(self._together.get(topic, {})) if topic in self._opening else set()
        self._opening.discard(topic)
        moved = {x for x in group if clock.get(x, 0) > before.get(x, 0)}
        must = closing | opened | moved | (self._joined.pop(topic, set()) & group)
        item = Item(
            g=self._g,
            batch=self._number,
            topic=topic,
            partition=record.at,
            offset=record.offset,
            value=record.value,
            n=clock.get(topic, 0) + 1,
            must={x: clock.get(x, 0) for x in must},
            may={x: clock.get(x, 0) for x in group | closing | opened},
            clock=clock,
        )
        self._before[topic] = clock
        self._clock[topic] = item.n
        self.items.append(item)
        self.by_place[item.place] = item
        return True

    def group(self, topic: str) -> set[str]:
        """SG_T without T."""
        least = self.domain.min_subscriptions
        return {x for x, count in self._together.get(topic, {}).items() if count >= least}

    # --- requests -----------------------------------------------------------------------------------------------------

    def _request(self, record: Record) -> None:
        self._g += 1
        self._control_g = self._g
        self.items.append(
            Item(g=self._g, batch=self._number, topic="", partition=record.at, offset=record.offset, value=record.value)
        )
        request = read_request(record.value)
        id_, nonce = _text(request, "id"), _text(request, "nonce")
        held = self._held.get(id_, _Held())
        kind = request.get("kind")
        whole = self._is_good(request)
        if whole and kind == "skip" and KafkaTopic(request["topic"], request["topic_id"]) not in self.retired:
            self._skip(id_, nonce, request, record.offset)
            return
        if whole and kind == "retire":
            topic = KafkaTopic(request["topic"], request["topic_id"])
            if topic not in self._ranks:
                self._ranks[topic] = len(self._ranks)
            self.retired.setdefault(topic, self._number)
            lost = self._lost.setdefault(topic, self._lost_of(topic, request["seen"]))
            self._tell("Retired", id_, 0, nonce, record.offset, said=(topic, tuple(lost.items())))
            return
        generation = request.get("generation", 0)
        present = whole and (generation, nonce) == (held.generation, held.nonce)
        if present and kind == "renew" and held.live:
            if held.lease_ms:
                held.expires_ms = self._time_ms + held.lease_ms
            self._tell("Renewed", id_, generation, nonce, record.offset, said=self._time_ms + held.lease_ms)
        elif present and kind != "renew":
            self._tell("Repeated", id_, generation, nonce, record.offset, said=held.g)
        elif whole and kind == "subscribe" and generation == held.generation + 1:
            self._subscribe(id_, held, request, record.offset)
        elif whole and kind == "unsubscribe" and generation == held.generation + 1 and held.live:
            self._end(id_, held, generation, nonce, record.offset, "unsubscribed", position=False)
        else:
            self._tell("Rejection", id_, held.generation, nonce, record.offset)

    def _is_good(self, request: dict[str, Any]) -> bool:
        return is_good(request, self.domain)

    def _lost_of(self, topic: KafkaTopic, seen: Mapping[str, int]) -> dict[int, tuple[int, int]]:
        ends = sorted((int(partition), end) for partition, end in seen.items())
        firsts = {partition: self._reached.get(Source(*topic, partition), 0) for partition, _ in ends}
        return {partition: (firsts[partition], end) for partition, end in ends if end > firsts[partition]}

    def _skip(self, id_: str, nonce: str, request: dict[str, Any], offset: int) -> None:
        partition = Partition(request["topic"], request["partition"], request["topic_id"])
        first, end = max(request["begin"], self._reached.get(partition.source, 0)), request["end"]
        if end > first:
            self._reached[partition.source] = self._ends[partition.source] = self._stamped[partition.source] = end
            place: dict[str, Any] = {"partition": partition, "offset": first, "lost_to": end}
            loss = Item(g=self._g, batch=self._number, topic="", value=None, **place)
            self.losses.append(loss)
            self.by_place[loss.place] = loss
        lost = ((partition.number, (first, end)),) if end > first else ()
        self._tell("Skipped", id_, 0, nonce, offset, said=(partition.topic, partition.topic_id, lost))

    def _subscribe(self, id_: str, held: _Held, request: dict[str, Any], offset: int) -> None:
        topics, ends = tuple(sorted(request["topics"])), request["stamps_ends"]
        lease_ms = request["lease_s"] * 1000
        new = _Held(
            request["generation"], request["nonce"], topics, lease_ms, self._time_ms + lease_ms, self._g, live=True
        )
        self._change(id_, new)
        self._tell(
            "Grant",
            id_,
            new.generation,
            new.nonce,
            offset,
            topics=topics,
            former=held.topics,
            of={*topics, *held.topics},
            said=(held.live, request["lease_s"], tuple(sorted((int(at), end) for at, end in ends.items()))),
        )

    def _end(
        self, id_: str, held: _Held, generation: int, nonce: str, offset: int, reason: str, *, position: bool = True
    ) -> None:
        if position:
            self._g += 1
        self._control_g = self._g
        self._change(id_, _Held(generation, nonce, (), held.lease_ms, 0, self._g))
        self._tell("Ended", id_, generation, nonce, offset, of=held.topics, said=reason)

    def _tell(
        self,
        kind: str,
        id_: str,
        generation: int,
        nonce: str,
        offset: int,
        *,
        topics: tuple[str, ...] = (),
        former: tuple[str, ...] = (),
        of: Iterable[str] = (),
        said: object = None,
    ) -> None:
        clock = tuple((topic, self._clock.get(topic, 0)) for topic in sorted(of))
        self.told.append(Told(kind, id_, generation, nonce, self._g, offset, self._number, topics, former, clock, said))

    def _change(self, id_: str, new: _Held) -> None:
        """From the present position on the id holds what `new` says."""
        former = set(self._held[id_].topics) if id_ in self._held else set()
        touched = former | set(new.topics)
        groups = {topic: self.group(topic) for topic in touched}
        self._held[id_] = new
        for topic in touched:
            counts: dict[str, int] = {}
            for held in self._held.values():
                for other in held.topics if topic in held.topics else ():
                    if other != topic:
                        counts[other] = counts.get(other, 0) + 1
            self._together[topic] = counts
            group = self.group(topic)
            self._note_members(topic, left=groups[topic] - group, joined=group - groups[topic])
            self._closing.setdefault(topic, set()).update(groups[topic] - group)
            self._joined.setdefault(topic, set()).update(group - groups[topic])
        if self.domain.min_subscriptions > 1:
            self._opening |= set(new.topics) - former

    def _note_members(self, topic: str, *, left: set[str], joined: set[str]) -> None:
        for member in left:
            self.members[topic, member, self._since.pop((topic, member))] = self._g
        for member in joined:
            self._since[topic, member] = self._g
            self.members[topic, member, self._g] = None

    # --- what follows from it -----------------------------------------------------------------------------------------

    def chain(self, id_: str) -> list[Told]:
        """What changed the subscription of an id."""
        return [told for told in self.told if told.id == id_ and told.kind in ("Grant", "Ended")]

    def owed(
        self, links: Sequence[Told], is_vague: Callable[[Told], bool] = lambda _: False, *, forgets: bool = False
    ) -> list[tuple[Item, bool]]:
        """π restricted to the set that is in force at each position by a chain, and whether it is for certain. A lease
        that ran out ends no set: who comes back is owed what lies between. A loss is owed to all who may have lost
        something. A link that is vague may have been taken back; where such are forgotten (`forgets`) what was in force
        before may go on behind it.
        """
        owed: list[tuple[Item, bool]] = []
        at, is_taken_back = 0, False
        sets: list[tuple[str, ...]] = [()]
        for item in sorted([*self.items, *self.losses], key=lambda item: item.g):
            while at < len(links) and links[at].g < item.g:
                if links[at].kind == "Grant" or links[at].said == "unsubscribed":
                    is_taken_back = is_vague(links[at])
                    sets = [*(sets if is_taken_back and forgets else ()), links[at].topics]
                at += 1
            name = item.partition.topic if item.lost_to and self.domain.topic_by == "topic" else item.topic
            concerns_all = item.lost_to > 0 and self.domain.topic_by != "topic"
            has = [bool(topics) and (concerns_all or name in topics) for topics in sets]
            if any(has):
                owed.append((item, all(has) and (forgets or not is_taken_back)))
        return owed

    def partition_of(self, topic: str) -> int:
        """The stamps partition of a topic."""
        digest = hashlib.blake2b(topic.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.domain.stamps_partitions


def read_request(value: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_good(request: dict[str, Any], domain: Domain) -> bool:
    """Whether it has all that its kind must have, and nothing else but a signature; a good one, if there must be."""
    kind = request.get("kind")
    fields = _FIELDS.get(kind) if isinstance(kind, str) else None
    is_whole = request.keys() - {"signature"} == fields and request["v"] == 1
    has_names = is_whole and _text(request, "id") and _text(request, "nonce")
    return bool(has_names) and is_signed(request, domain.keys, domain.name)


def passed_over(control: Iterable[Record], domain: Domain) -> dict[Source, int]:
    """By event partition the offset to before which requests say that all is lost."""
    requests = [read_request(record.value) for record in control]
    skips = [request for request in requests if is_good(request, domain) and request["kind"] == "skip"]
    passed: dict[Source, int] = {}
    for skip in skips:
        source = Source(skip["topic"], skip["topic_id"], skip["partition"])
        passed[source] = max(skip["end"], passed.get(source, 0))
    return passed


def _text(request: dict[str, Any], name: str) -> str:
    found = request.get(name)
    return found if isinstance(found, str) else ""


def _is_claim(value: bytes | None) -> bool:
    found = read_request(value)
    return found.keys() == {"v", "kind", "incarnation", "owner"} and found["kind"] == "claim"
