"""One stamps partition as a subscriber sees it: what is complete, what is still owed, and where to read on later."""

from collections import deque
from dataclasses import dataclass

from totalorder.sequencer.wire.chain import Chain
from totalorder.sequencer.wire.position import StampsMark
from totalorder.sequencer.wire.stamps import Source, StampedBatch


@dataclass(slots=True, eq=False)
class BatchMark:
    """A batch in the log: `offset` of its first part, and how many of its rows are not acknowledged yet."""

    offset: int
    batch: int
    digest: str
    outstanding: int = 0
    released: bool = False


class StampsPartition:
    """State of one stamps partition, which is about to be read from `mark`."""

    def __init__(self, domain: str, partition: int, mark: StampsMark) -> None:
        self.partition = partition
        self.name = f"{domain}.stamps[{partition}]"
        self.next_offset = mark.offset
        self.reading, self.paused = True, False
        self.waiting = 0
        """Rows that are released and not yet delivered."""
        self.held_rows = 0
        """Rows of batches that are not released."""
        self.held: deque[tuple[StampedBatch, BatchMark]] = deque()
        self.complete_g = 0
        self.complete_batch = mark.batch
        """Nothing is owed of any batch before, and this one's rows are taken."""
        self.frontier: dict[Source, int] = {}
        """The next offsets of event partitions at the end of the last released batch, as far as batches told them."""
        self._skipped = mark.batch
        """The last batch before those that are read here."""
        self._marks: deque[BatchMark] = deque()
        self._done = (mark.batch, mark.digest)
        self._chain = Chain(domain, partition, batch=mark.batch, digest=mark.digest)

    @property
    def repeated(self) -> int:
        """How many batches were ignored."""
        return self._chain.repeated

    def read_again(self, mark: StampsMark) -> None:
        """Reading resumes at `mark` after it was stopped; what lies between was not needed."""
        self.reading, self.next_offset = True, mark.offset
        self.complete_batch = self._skipped = mark.batch
        self._chain.go_on_behind(mark.batch, mark.digest)
        self._marks.append(BatchMark(offset=mark.offset, batch=mark.batch, digest=mark.digest, released=True))

    def stop(self) -> None:
        """Nothing more is read. Batches that are not released hold no row that is owed."""
        while self._marks and not self._marks[-1].released:
            self.next_offset = self._marks.pop().offset
        self.held.clear()
        self.held_rows = 0
        self.reading = self.paused = False

    def admit(self, batch: StampedBatch, *, offset: int, next_offset: int) -> bool:
        """Takes the next batch of the log in, unless it is to be ignored; errors as of Chain."""
        if not self._chain.admit(batch):
            # It may end between the parts of the next batch: the place to go on does not move.
            return False
        self.next_offset = next_offset
        mark = BatchMark(offset=offset, batch=batch.batch, digest=batch.digest)
        self._marks.append(mark)
        self.held.append((batch, mark))
        self.held_rows += len(batch.rows)
        return True

    def release(self, answers_g: int) -> tuple[StampedBatch, BatchMark] | None:
        """The next batch, once every answer on grants up to its end has been read."""
        if not self.held or self.held[0][0].control_g > answers_g:
            return None
        batch, mark = self.held.popleft()
        self.held_rows -= len(batch.rows)
        assert self.held_rows >= 0, f"{self.name} has given more rows than it held"
        mark.released = True
        return batch, mark

    def complete(self, batch: StampedBatch) -> None:
        """All rows of a released batch are taken: the frontier moves."""
        assert batch.batch > self.complete_batch, f"{self.name} completes batch {batch.batch} after a later one"
        self.complete_g, self.complete_batch = batch.g, batch.batch
        self.frontier |= batch.next_offsets

    def learn(self, batch: StampedBatch) -> None:
        """Another partition has released a batch. All partitions of a batch advance the same event partitions: where
        it was not read here, it tells this frontier too.
        """
        if batch.batch <= self._skipped:
            told = batch.next_offsets.items()
            self.frontier |= {source: max(end, self.frontier.get(source, 0)) for source, end in told}

    def check_whole(self, max_waiting: int) -> None:
        """Dear (sequencer/wire/invariants.py)."""
        numbers = [batch.batch for batch, _ in self.held]
        assert numbers == sorted(set(numbers)), f"{self.name} holds batches out of order"
        assert not numbers or numbers[0] > self.complete_batch, f"{self.name} holds a batch that is complete"
        rows = sum(len(batch.rows) for batch, _ in self.held)
        assert rows == self.held_rows, f"{self.name} holds {rows} rows, and counts {self.held_rows}"
        assert self.reading or not (self.held or self.paused), f"{self.name} is not read, and holds or is paused"
        load = self.waiting + self.held_rows
        assert not self.paused or load > max_waiting // 2, f"{self.name} is paused, and only {load} rows wait"

    def resume_mark(self) -> StampsMark:
        """Where a later process must read on: the oldest batch with a row that is not acknowledged."""
        while self._marks and self._marks[0].released and not self._marks[0].outstanding:
            mark = self._marks.popleft()
            self._done = (mark.batch, mark.digest)
        offset = self._marks[0].offset if self._marks else self.next_offset
        return StampsMark(offset=offset, batch=self._done[0], digest=self._done[1])
