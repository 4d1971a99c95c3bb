"""What a row of the source holds: a chunk of records, or a plan of what whoever takes the row is to read itself.

The first rows of a checkpoint that was recovered are seeds: the state that a shard begins with.

A plan goes where one task both reads and stamps: that one worker reads as the source's own would, and Spark needs no
other one. What leads to Kafka, passwords with it, is not in a row: Spark may write rows to disk.
"""

import json
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from totalorder.errors import StateError
from totalorder.streaming.cut import chunk
from totalorder.streaming.cut.chunk import Chunk
from totalorder.streaming.cut.ranges import Range, ReadPlan, SliceEnd
from totalorder.streaming.cut.source_settings import SourceSettings

_PLAN, _SEED = b"TORP\x01", b"TORS\x01"
"""No chunk begins so."""
_SEED_HEAD = struct.Struct("<5sIQ")


def encode_plan(plan: ReadPlan) -> bytes:
    """What of the plan is this batch's own."""
    ranges = [(part.topic, part.topic_id, part.partition, part.begin, part.end, part.slices) for part in plan.ranges]
    content = {"cut": plan.cut, "order": plan.topic_order, "ranges": ranges}
    return _PLAN + json.dumps(content, separators=(",", ":")).encode()


def decode_plan(data: bytes, settings: SourceSettings) -> ReadPlan:
    """What `encode_plan` packed, as a plan of the query with these settings; StateError for anything else."""
    try:
        if not data.startswith(_PLAN):
            raise ValueError(f"it begins with {data[: len(_PLAN)]!r}")
        content = json.loads(data[len(_PLAN) :])
        ranges = [_range(*fields) for fields in content["ranges"]]
        return settings.plan(cut=content["cut"], topic_order=content["order"], ranges=ranges)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(
            f"what the source has planned cannot be read: {type(error).__name__}: {error}",
            remedy="Start the job again",
        ) from error


def _range(topic: str, topic_id: str, partition: int, begin: int, end: int, slices: Sequence[tuple[int, int]]) -> Range:
    ends = tuple(SliceEnd(number, offset) for number, offset in slices)
    numbers = (partition, begin, end, *(number for each in ends for number in each))
    if not all(type(text) is str for text in (topic, topic_id)) or not all(type(number) is int for number in numbers):
        raise ValueError("a range has other things than texts and numbers")
    return Range(topic=topic, topic_id=topic_id, partition=partition, begin=begin, end=end, slices=ends)


class Seed(NamedTuple):
    """The state of a shard: the bytes of its hot and of its cold part."""

    shard: int
    hot: bytes
    cold: bytes


def encode_seed(seed: Seed) -> bytes:
    """Its row."""
    return _SEED_HEAD.pack(_SEED, seed.shard, len(seed.hot)) + seed.hot + seed.cold


def seed_in(data: bytes) -> Seed | None:
    """The seed that a row is; None for any other row. StateError for one that was cut short."""
    if not data.startswith(_SEED):
        return None
    size = len(data) - _SEED_HEAD.size
    if size >= 0:
        _, shard, hot = _SEED_HEAD.unpack_from(data)
        if hot <= size:
            middle = _SEED_HEAD.size + hot
            return Seed(shard, data[_SEED_HEAD.size : middle], data[middle:])
    raise StateError("the state of a recovered checkpoint was cut short", remedy="Run `totalorder recover` again")


def chunks_of(data: bytes, settings: SourceSettings) -> Iterator[Chunk]:
    """The chunks of a row; of a plan, as they are read. Raises what reading raises, StateError for other bytes."""
    if not data.startswith(_PLAN):
        yield chunk.decode(data)
        return
    # Imported only where it is read: the process that Spark asks about the processor has ten seconds to start.
    from totalorder.streaming.cut import reading
    from totalorder.streaming.cut.verifying import present_ids

    yield from reading.read(decode_plan(data, settings), verify=present_ids)
