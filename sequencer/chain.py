"""One stamps partition as a subscriber sees it: the digest chain, what is complete, and what is still owed."""

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from totalorder.errors import Contradiction, EventsLost
from totalorder.sequencer.position import StampsMark
from totalorder.sequencer.stamps import Source, StampedBatch

REMEMBERED_BATCHES = 64
"""A repeated batch is compared with its first copy this far back. An older repetition is dropped unseen: every digest
covers the one before it, so a job that runs astray meets a remembered batch, or the next one, with another digest."""

_TWO_WRITERS = "Two sequencers write to this domain, or a checkpoint was replaced: stop one, begin a new domain"


@dataclass(slots=True, eq=False)
class BatchMark:
    """A batch in the log: `offset` of its first part, and how many of its rows are not acknowledged yet."""

    offset: int
    batch: int
    digest: str
    outstanding: int = 0
    released: bool = False


@dataclass(eq=False)
class StampsPartition:
    """State of one stamps partition."""

    domain: str
    partition: int
    next_offset: int
    reading: bool = True
    paused: bool = False
    waiting: int = 0
    """Rows that are released and not yet delivered."""
    held_rows: int = 0
    """Rows of batches that are not released."""
    held: deque[tuple[StampedBatch, BatchMark]] = field(default_factory=deque)
    complete_g: int = 0
    complete_batch: int = 0
    """Nothing is owed of any batch before, and this one's rows are taken."""
    frontier: dict[Source, int] = field(default_factory=dict)
    """The next offsets of event partitions at the end of the last released batch, as far as batches have told them."""
    skipped: int = 0
    """The last batch before those that are read here."""
    repeated: int = 0
    _marks: deque[BatchMark] = field(default_factory=deque)
    _done: tuple[int, str] = (0, "")
    _last: tuple[int, str, int] = (0, "", 0)
    """Number, digest (empty when it is not known) and g of the last batch."""
    _digests: OrderedDict[int, str] = field(default_factory=OrderedDict)
    _incarnation: int = 0

    @classmethod
    def begin(cls, domain: str, partition: int, mark: StampsMark) -> "StampsPartition":
        """A partition about to be read from `mark`."""
        made = cls(domain=domain, partition=partition, next_offset=mark.offset)
        made._continue(mark)
        made._done = (mark.batch, mark.digest)
        if mark.digest:
            made._digests[mark.batch] = mark.digest
        return made

    def read_again(self, mark: StampsMark) -> None:
        """Reading resumes at `mark` after it was stopped; what lies between was not needed."""
        self.reading, self.next_offset = True, mark.offset
        self._continue(mark)
        self._marks.append(BatchMark(offset=mark.offset, batch=mark.batch, digest=mark.digest, released=True))

    def _continue(self, mark: StampsMark) -> None:
        self.complete_batch, self._last = mark.batch, (mark.batch, mark.digest, 0)
        self.skipped = mark.batch

    def stop(self) -> None:
        """Nothing more is read. Batches that are not released hold no row that is owed."""
        while self._marks and not self._marks[-1].released:
            self.next_offset = self._marks.pop().offset
        self.held.clear()
        self.held_rows = 0
        self.reading = self.paused = False

    def admit(self, batch: StampedBatch, *, offset: int, next_offset: int) -> bool:
        """Takes the next batch of the log in; False when it is to be ignored (a repetition, or a deposed job's).

        Contradiction when it does not agree with the chain; EventsLost when batches are missing before it.
        """
        if batch.incarnation < self._incarnation or self._is_repeated(batch):
            # It may end between the parts of the next batch: the place to go on does not move.
            self.repeated += 1
            return False
        self._check_follows(batch, *self._last)
        self.next_offset = next_offset
        self._incarnation = batch.incarnation
        self._last = (batch.batch, batch.digest, batch.g)
        self._digests[batch.batch] = batch.digest
        if len(self._digests) > REMEMBERED_BATCHES:
            self._digests.popitem(last=False)
        mark = BatchMark(offset=offset, batch=batch.batch, digest=batch.digest)
        self._marks.append(mark)
        self.held.append((batch, mark))
        self.held_rows += len(batch.rows)
        return True

    def _is_repeated(self, batch: StampedBatch) -> bool:
        if batch.batch > self._last[0]:
            return False
        known = self._digests.get(batch.batch)
        if known is not None and known != batch.digest:
            raise Contradiction(
                f"{self._name} has batch {batch.batch} twice, with digests {known[:12]} and {batch.digest[:12]}",
                remedy=_TWO_WRITERS,
            )
        return True

    def _check_follows(self, batch: StampedBatch, last: int, digest: str, g: int) -> None:
        if batch.batch > last + 1:
            raise EventsLost(
                f"{self._name} goes from batch {last} to {batch.batch}: stamps were removed before they were read",
                remedy="Raise the retention of the stamps topic. Without stamps there is no order: "
                'start="new" (--new) begins at the present and gives up all that is owed',
            )
        if (digest and batch.previous_digest != digest) or batch.g < g:
            raise Contradiction(
                f"batch {batch.batch} of {self._name} does not continue batch {last} ({digest[:12]})",
                remedy=_TWO_WRITERS,
            )

    @property
    def _name(self) -> str:
        return f"{self.domain}.stamps[{self.partition}]"

    def release(self, answers_g: int) -> tuple[StampedBatch, BatchMark] | None:
        """The next batch, once every answer on grants up to its end has been read."""
        if not self.held or self.held[0][0].control_g > answers_g:
            return None
        batch, mark = self.held.popleft()
        self.held_rows -= len(batch.rows)
        mark.released = True
        return batch, mark

    def complete(self, batch: StampedBatch) -> None:
        """All rows of a released batch are taken: the frontier moves."""
        self.complete_g, self.complete_batch = batch.g, batch.batch
        self.frontier |= batch.next_offsets

    def learn(self, batch: StampedBatch) -> None:
        """Another partition has released a batch. All partitions of a batch advance the same event partitions: where
        it was not read here, it tells this frontier too.
        """
        if batch.batch <= self.skipped:
            told = batch.next_offsets.items()
            self.frontier |= {source: max(end, self.frontier.get(source, 0)) for source, end in told}

    def resume_mark(self) -> StampsMark:
        """Where a later process must read on: the oldest batch with a row that is not acknowledged."""
        while self._marks and self._marks[0].released and not self._marks[0].outstanding:
            mark = self._marks.popleft()
            self._done = (mark.batch, mark.digest)
        offset = self._marks[0].offset if self._marks else self.next_offset
        return StampsMark(offset=offset, batch=self._done[0], digest=self._done[1])
