"""Snapshots of the job's state in a simulated world: the driver's part, in the steps of streaming/snapshots.py."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from totalorder.sequencer.snapshot import SnapshotMark, encode_mark
from totalorder.sequencer.wire.control import Claim, encode_claim
from totalorder.subscriber.transport import Partition

if TYPE_CHECKING:
    from sim_sequencer import SimSequencer


@dataclass(frozen=True)
class _Asked:
    """Where the request stands on control, and where state and stamps ended before it."""

    at: int
    state_end: int
    stamps_ends: tuple[int, ...]


@dataclass(frozen=True)
class _Told:
    """A batch that is over, and told the state behind it: its cut, and its number."""

    cut: int
    batch: int


class Snapshots:
    """Those of one job. What a process has asked for its successor does not know."""

    def __init__(self, job: "SimSequencer") -> None:
        self._job = job
        self.restart()

    def restart(self) -> None:
        """The driver is a new one."""
        self._asked: _Asked | None = None
        self._told: _Told | None = None
        self._newest = self._marked = 0

    def note(self, cut: int, batch: int, asked_at: int | None) -> None:
        """A batch is over."""
        self._newest = batch
        if self._asked is not None and asked_at is not None and asked_at >= self._asked.at:
            self._told = _Told(cut, batch)

    def see_to_it(self) -> None:
        """Asks for a snapshot, or marks the one that was told."""
        names, kafka = self._job.names, self._job.kafka
        if self._told is not None and self._asked is not None:
            self._mark(self._told, self._asked)
            self._told = self._asked = None
        elif self._newest > self._marked:
            if names.state not in kafka.topics:
                kafka.create(names.state, 1)
            state_end, stamps_ends = kafka.end(Partition(names.state, 0)), self._stamps_ends()
            claim = Claim(incarnation=self._job.incarnation, owner=self._job.identity)
            at = kafka.append(Partition(names.control, 0), value=encode_claim(claim))
            self._asked = _Asked(at, state_end, stamps_ends)

    def _mark(self, told: _Told, asked: _Asked) -> None:
        job = self._job
        is_last = job.planned is None and told.cut == len(job.batches)
        mark = SnapshotMark(
            domain=job.domain.name,
            incarnation=job.incarnation,
            batch=told.batch,
            shards=len(job.states),
            cut=told.cut,
            ends=job.published[told.cut],
            starts=job.starts,
            topic_order=job.batches[told.cut - 1].topic_order,
            stamps_begins=asked.stamps_ends,
            stamps_ends=self._stamps_ends() if is_last else None,
            keys=job.signatures.prints if job.signatures is not None else (),
        )
        at, record = Partition(job.names.state, 0), encode_mark(mark)
        job.kafka.append(at, value=record.value, headers=record.headers)
        self._marked = told.batch
        if job.rng.random() < 0.8:  # or it dies before that
            job.kafka.trim(at, asked.state_end)

    def _stamps_ends(self) -> tuple[int, ...]:
        numbers = range(self._job.domain.stamps_partitions)
        return tuple(self._job.kafka.end(Partition(self._job.names.stamps, number)) for number in numbers)
