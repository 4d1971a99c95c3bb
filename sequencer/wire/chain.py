"""The chain of batches of one stamps partition, by digests: what is new, what is a repetition, what cannot be."""

from collections import OrderedDict

from totalorder.errors import BatchesMissing, Contradiction
from totalorder.sequencer.wire.stamps import StampedBatch

REMEMBERED_BATCHES = 64
"""A repeated batch is compared with its first copy this far back. An older repetition is dropped unseen: every digest
covers the one before it, so a job that runs astray meets a remembered batch, or the next one, with another digest."""

_TWO_WRITERS = "Two sequencers write to this domain, or a checkpoint was replaced: stop one, begin a new domain"


class Chain:
    """Admits the batches of a stamps partition in the order of its log.

    It begins behind batch number `batch`; `digest` is that one's, empty when it is not known.
    """

    def __init__(self, domain: str, partition: int, *, batch: int, digest: str) -> None:
        self._name = f"{domain}.stamps[{partition}]"
        self.repeated = 0
        """How many batches were ignored."""
        self._digests: OrderedDict[int, str] = OrderedDict()
        self._incarnation = 0
        self.go_on_behind(batch, digest)
        if digest:
            self._digests[batch] = digest

    def go_on_behind(self, batch: int, digest: str) -> None:
        """Reading resumes behind another batch; what lies between was not needed."""
        self._last = (batch, digest, 0)

    @property
    def last(self) -> int:
        """The number of the last batch that was admitted."""
        return self._last[0]

    def admit(self, batch: StampedBatch) -> bool:
        """Takes the next batch of the log in; False when it is to be ignored (a repetition, or a deposed job's).

        Contradiction when it does not agree with the chain; BatchesMissing when some are not there before it.
        """
        if batch.incarnation < self._incarnation or self._is_repeated(batch):
            self.repeated += 1
            return False
        self._check_follows(batch, *self._last)
        assert batch.batch == self.last + 1, f"{self._name} takes in batch {batch.batch} behind {self.last}"
        self._incarnation = batch.incarnation
        self._last = (batch.batch, batch.digest, batch.g)
        self._digests[batch.batch] = batch.digest
        if len(self._digests) > REMEMBERED_BATCHES:
            self._digests.popitem(last=False)
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
            raise BatchesMissing(
                f"{self._name} goes from batch {last} to {batch.batch}: stamps were removed before they were read",
                remedy="Raise the retention of the stamps topic. Without stamps there is no order: "
                'start="now" (--start now) begins at the present and gives up all that is owed',
                batch=batch.batch,
            )
        if (digest and batch.previous_digest != digest) or batch.g < g:
            raise Contradiction(
                f"batch {batch.batch} of {self._name} does not continue batch {last} ({digest[:12]})",
                remedy=_TWO_WRITERS,
            )
