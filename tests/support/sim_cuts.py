"""Cuts on a SimKafka: a batch's cut as the job makes it public, and what everybody can make of those that are there."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sim_kafka import SimKafka

from totalorder.sequencer.wire.cuts import Cut as PublicCut, CutsAssembler
from totalorder.subscriber.transport import Partition, Record


@dataclass(frozen=True, eq=False)
class Look:
    """The ends of all partitions as one look found them, each at the moment at which it was asked for."""

    ends: dict[Partition, int]
    asked: dict[Partition, int]
    end: int
    """The moment at which the last answer was there."""


@dataclass(frozen=True)
class Cut:
    """What the write-ahead log has of a batch, and the records themselves, slice by slice."""

    number: int
    time_ms: int
    topic_order: tuple[str, ...]
    slices: list[list[Record]]
    begins: dict[Partition, int]
    ends: list[dict[Partition, int]]
    """How far the batch went with each slice."""
    looks: tuple[Look, ...] = ()
    """Those that it took as a whole."""

    def ends_elsewhere(self, other: "Cut") -> bool:
        """Whether the two end at different offsets of a partition that both have."""
        ends = self.ends[-1]
        return any(ends.get(at, end) != end for at, end in other.ends[-1].items())

    def public(self, kafka: SimKafka, domain: str, incarnation: int) -> PublicCut:
        """As it is told to everybody: what advances, and all that Kafka has."""
        last = self.ends[-1]
        sources = sorted(at for at, end in last.items() if end > self.begins.get(at, 0) or kafka.has(at))
        place = {at: number for number, at in enumerate(sources)}
        before = self.begins
        looks = []
        for ends in self.ends[:-1]:
            moved = [(place[at], end - before.get(at, 0)) for at, end in ends.items() if end > before.get(at, 0)]
            looks.append(moved)
            before = ends
        return PublicCut.of(
            domain=domain,
            incarnation=incarnation,
            cut=self.number,
            sources=[at.source for at in sources],
            begins=[self.begins.get(at, 0) for at in sources],
            ends=[last[at] for at in sources],
            looks=looks,
            topic_order=self.topic_order,
        )


def read_cuts(records: Iterable[Record], domain: str) -> tuple[dict[int, PublicCut], tuple[PublicCut, ...]]:
    """By its number the cut that counts, and all contents that the newest came with."""
    assembler = CutsAssembler(domain=domain)
    found: dict[int, PublicCut] = {}
    for record in records:
        headers = {name: value for name, value in record.headers if value is not None}
        found |= {cut.cut: cut for cut in assembler.add(record.value, headers)}
    return found, assembler.newest


def taken(cut: PublicCut, log: Callable[[Partition], Sequence[Record]]) -> list[list[Record]]:
    """The records that a cut takes, slice by slice, of the logs of partitions."""
    slices: list[list[Record]] = [[] for _ in range(len(cut.slice_start) - 1)]
    for number, source, begin, end in cut.parts:
        records = log(Partition.of(source))
        first, last = (bisect_left(records, offset, key=lambda record: record.offset) for offset in (begin, end))
        slices[number] += records[first:last]
    return slices
