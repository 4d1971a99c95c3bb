"""What a task of the source is to read: exact ranges of offsets, and the slice that each offset belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from totalorder.sequencer.wire.stamps import Source


class SliceEnd(NamedTuple):
    """The part of a range before `end`, from the slice end before it on, belongs to slice number `slice`."""

    slice: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Range:
    """Offsets `begin` to before `end` of one partition of the Kafka topic with this name and this id.

    `slices` ascend in number and offset, and the last one's offset is `end`.
    """

    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int
    slices: tuple[SliceEnd, ...]

    @property
    def source(self) -> Source:
        """The partition that it is a range of."""
        return Source(self.topic, self.topic_id, self.partition)


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """One task's share of a batch, with all that a worker needs to know to read it.

    `kafka` has the Java client's names. `control` is the name of the domain's control topic, whose records come with
    their values; `topic_by` says what names an event's pub/sub topic ("topic", "key" or "header:NAME"). `cut` is the
    batch's number among cuts; of equal record times the topic that stands earlier in `topic_order` wins.
    """

    bootstrap_servers: str
    kafka: Mapping[str, str]
    control: str
    topic_by: str
    cut: int
    topic_order: tuple[str, ...]
    ranges: tuple[Range, ...]
    silence_s: float
    """After so many seconds in which nothing came of what is missing, reading gives up."""
