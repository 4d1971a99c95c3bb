"""How far a subscriber is, and its saved form (the value of a record on `<domain>.positions`)."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

from totalorder.errors import WireError
from totalorder.sequencer.wire.budget import parse_json
from totalorder.sequencer.wire.control import Ended, Grant, Link, decode_answer, encode_answer
from totalorder.sequencer.wire.limits import MAX_ANSWER_BYTES, MAX_STAMPS_PARTITIONS
from totalorder.sequencer.wire.names import stamps_partition
from totalorder.sequencer.wire.stamps import Source
from totalorder.sequencer.wire.values import number, text

VERSION = 3

_partition = lru_cache(maxsize=100_000)(stamps_partition)
"""A position is made for each acknowledgement: its topics are not hashed anew each time."""


def partitions_of(topics: Iterable[str], partitions: int) -> set[int]:
    """The stamps partitions, of so many, that hold the topics' timestamps."""
    return {_partition(name, partitions) for name in topics}


@dataclass(frozen=True, kw_only=True)
class StampsMark:
    """Where to read on in a stamps partition.

    `batch` and `digest` are of the last batch before what is needed: older ones that are repeated behind `offset` are
    not needed either. The digest is empty when it is not known.
    """

    offset: int
    batch: int
    digest: str = ""

    @classmethod
    def of(cls, grant: Grant, partition: int) -> "StampsMark":
        """What is needed since a grant: the batch that holds it, and what follows."""
        return cls(offset=grant.stamps_ends.get(partition, 0), batch=grant.batch - 1)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Everything through here is delivered and acknowledged, nothing behind it.

    The set in force is `topics` (id → name) since `switched_g`, with `clock` = LC delivered of each (sub_LC); `pending`
    are changes that lie behind. `g` is the last position of π that was passed. `sources` and `stamps` say from where
    to read each partition again: at or before the oldest record that is still owed.
    """

    generation: int
    switched_g: int
    g: int
    topics: Mapping[int, str]
    clock: Mapping[int, int]
    pending: tuple[Link, ...]
    sources: Mapping[Source, int]
    stamps: Mapping[int, StampsMark]
    stamps_partitions: int
    min_subscriptions: int
    topic_by: str

    def __post_init__(self) -> None:
        if self.clock.keys() != self.topics.keys():
            raise ValueError("the clock does not hold the topics in force")
        if not 1 <= self.stamps_partitions <= MAX_STAMPS_PARTITIONS or self.min_subscriptions not in (1, 2):
            raise ValueError("stamps_partitions or min_subscriptions is out of range")
        if partitions_of(self.topics.values(), self.stamps_partitions) - self.stamps.keys():
            raise ValueError("a stamps partition is missing")

    @classmethod
    def at(cls, grant: Grant) -> "Progress":
        """The beginning of a subscription that starts at its grant."""
        needed = partitions_of(grant.topics, grant.stamps_partitions)
        return cls(
            generation=grant.generation,
            switched_g=grant.g,
            g=grant.g,
            topics={grant.ids[name]: name for name in grant.topics},
            clock={grant.ids[name]: grant.clock[name] for name in grant.topics},
            pending=(),
            sources=grant.next_offsets,
            stamps={partition: StampsMark.of(grant, partition) for partition in needed},
            stamps_partitions=grant.stamps_partitions,
            min_subscriptions=grant.min_subscriptions,
            topic_by=grant.topic_by,
        )


def before_subscription(position: Progress | None, grant: Grant | None) -> int:
    """Through this g what follows a position comes from before the id's subscription; 0 where nothing does.

    Who begins before its grant, `grant` or the first that is pending, has its set in force as of that generation.
    """
    first = position.pending[0] if position is not None and position.pending else grant
    if position is None or not isinstance(first, Grant) or first.generation != position.generation:
        return 0
    return first.g


@dataclass(frozen=True, kw_only=True)
class SavedPosition:
    """A position with the process that saved it.

    `generation` is the process's own. `delivered_through`: nothing after this g has been handed to the application, by
    this process or a former one, nor will be before the process has saved a larger one. `stored`: the application keeps
    its position in a database of its own, which this one follows. `anew`: it is to begin here, whatever the database
    has; nothing was handed out since.
    """

    id: str
    generation: int
    nonce: str
    delivered_through: int
    position: Progress
    stored: bool = False
    anew: bool = False

    def __post_init__(self) -> None:
        if self.anew and not self.stored:
            raise ValueError("anew is of a position that follows a database")

    @property
    def age(self) -> tuple[int, int, int]:
        """Sorts the saved positions of one id: the largest is the newest.

        A deposed process may still save what it acknowledged, beyond the newer one's position; but it knows of no
        change of the subscription since.
        """
        return self.generation, self.position.g, self.position.switched_g

    @property
    def key(self) -> bytes:
        """Key of its record: a former process can never overwrite what a later one saved."""
        return f"{self.id}/{self.generation}".encode()


def encode_saved(saved: SavedPosition) -> bytes:
    """JSON form."""
    position = saved.position
    flags = {"stored": saved.stored, "anew": saved.anew}
    record = {
        "v": VERSION,
        "id": saved.id,
        "generation": saved.generation,
        "nonce": saved.nonce,
        "delivered_through": saved.delivered_through,
        "in_force": position.generation,
        "switched_g": position.switched_g,
        "g": position.g,
        "topics": sorted([topic, name, position.clock[topic]] for topic, name in position.topics.items()),
        "pending": [json.loads(encode_answer(answer)) for answer in position.pending],
        "sources": sorted([*source, offset] for source, offset in position.sources.items()),
        "stamps": sorted([part, mark.offset, mark.batch, mark.digest] for part, mark in position.stamps.items()),
        "stamps_partitions": position.stamps_partitions,
        "min_subscriptions": position.min_subscriptions,
        "topic_by": position.topic_by,
    } | {name: True for name, is_set in flags.items() if is_set}
    return json.dumps(record, separators=(",", ":"), sort_keys=True).encode()


def decode_saved(value: bytes) -> SavedPosition:
    """Reads `encode_saved`; WireError for anything else."""
    try:
        record = parse_json(value, MAX_ANSWER_BYTES)
        version = record["v"]
    except (ValueError, KeyError, TypeError) as error:
        raise WireError(f"a saved position is not readable ({error!r})", remedy=_REMEDY) from None
    if version != VERSION:
        raise WireError(
            f"a saved position has version {version!r}; this program reads {VERSION}",
            remedy='Use the release that saved it, or begin anew with start="now" (--start now)',
        )
    try:
        return _saved(record)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise WireError(f"a saved position is damaged: {error}", remedy=_REMEDY) from None


_REMEDY = 'Begin anew with start="now" (--start now), or look for another writer on the positions topic'


def _saved(record: Mapping[str, Any]) -> SavedPosition:
    pending: list[Link] = []
    for raw in record["pending"]:
        answer = decode_answer(json.dumps(raw).encode())
        if not isinstance(answer, Grant | Ended):
            raise ValueError("a pending answer changes nothing")
        pending.append(answer)
    changes = [number(record["switched_g"]), *(answer.g for answer in pending)]
    if any(after <= before for before, after in pairwise(changes)):
        raise ValueError("its changes do not follow each other")
    position = Progress(
        generation=number(record["in_force"]),
        switched_g=number(record["switched_g"]),
        g=number(record["g"]),
        topics={number(topic): text(name) for topic, name, _ in record["topics"]},
        clock={topic: number(n) for topic, _, n in record["topics"]},
        pending=tuple(pending),
        sources={
            Source(text(topic), text(topic_id), number(part)): number(offset)
            for topic, topic_id, part, offset in record["sources"]
        },
        stamps={
            number(part): StampsMark(offset=number(offset), batch=number(batch), digest=text(digest))
            for part, offset, batch, digest in record["stamps"]
        },
        stamps_partitions=number(record["stamps_partitions"]),
        min_subscriptions=number(record["min_subscriptions"]),
        topic_by=text(record["topic_by"]),
    )
    if record.get("stored", True) is not True or record.get("anew", True) is not True:
        raise ValueError("stored or anew is not true")
    return SavedPosition(
        id=text(record["id"]),
        generation=number(record["generation"]),
        nonce=text(record["nonce"]),
        delivered_through=number(record["delivered_through"]),
        position=position,
        stored="stored" in record,
        anew="anew" in record,
    )
