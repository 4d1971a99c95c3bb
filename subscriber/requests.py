"""What a process asks of the sequencer, and what it is answered."""

from collections.abc import Callable
from contextlib import suppress

from totalorder.errors import BrokerUnavailable, Fenced, Rejected, SubscriptionEnded
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Request,
    Unsubscribe,
    encode_request,
)
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.signing import Signer
from totalorder.subscriber.transport import Partition, Transport

_ATTEMPTS = 5
"""How often a request is asked again because another process changed the id's generation in between."""


class Requests:
    """The requests of one process of a subscriber id. `note` must see all answers on grants, in the log's order."""

    def __init__(
        self,
        transport: Transport,
        *,
        id: str,  # noqa: A002
        domain: str,
        nonce: str,
        wait: Callable[[], None],
        signer: Signer | None = None,
    ) -> None:
        """`wait` lets answers come to `note`; it raises when it has waited long enough. `signer` signs what is asked,
        where the domain wants that.
        """
        self._signer = signer
        self._transport, self._id, self._nonce, self._wait = transport, id, nonce, wait
        self._control = Partition(DomainTopics(domain=domain).control, 0)
        self.latest = 0
        """The newest generation of the id that any process holds or held."""
        self._held = 0
        """The newest generation that this process was granted."""
        self.vacant = True
        """Whether the id is owed nothing but by a request of this process that waits: it never held a subscription, or
        ended its last one."""
        self._links_g = 0
        """Position of the newest change of the id that is known; older ones may be repeated behind it."""
        self._lapsed = 0
        """Position at which the lease ran out; 0 while it has not."""
        self._asked: tuple[int, int] | None = None
        """Generation and control offset of the request that waits for its answer; no offset that is (yet) known: -1."""
        self._request: Request | None = None
        """What was begun and is not awaited."""
        self._outcome: Grant | Ended | Rejection | None = None
        self._passed = False
        """Whether a later control record was answered, which comes after the answer to ours."""

    def note(self, answer: Answer) -> None:
        """Remembers what an answer says about the id's generation and the request that waits.

        Fenced where another process renews what it was granted later: its grant itself may be gone. Compaction keeps
        the last one of an id, which is an older one where a job that was replaced has written that once more.
        """
        if isinstance(answer, Renewed) and answer.id == self._id:
            self.latest = max(self.latest, answer.generation)
            if answer.nonce != self._nonce and answer.generation > self._held > 0:
                raise self.fenced(answer.generation)
        if self._asked is not None and self._asked[1] >= 0:
            self._passed |= answer.offset > self._asked[1]
        if isinstance(answer, Grant | Ended | Rejection) and answer.id == self._id:
            self.latest = max(self.latest, answer.generation)
        if self._outcome is None and self._answers_ours(answer):
            assert isinstance(answer, Grant | Ended | Rejection)
            self._outcome = answer
        if isinstance(answer, Grant | Ended) and answer.id == self._id and answer.g > self._links_g:
            self._links_g = answer.g
            self._note_link(answer)

    def _note_link(self, answer: Grant | Ended) -> None:
        own = answer.nonce == self._nonce
        if own and isinstance(answer, Grant):
            self._held = answer.generation
        if own:
            self._lapsed = answer.g if isinstance(answer, Ended) and answer.reason == "expired" else 0
        if not (own and isinstance(answer, Grant)):
            self.vacant = isinstance(answer, Ended) and answer.reason == "unsubscribed"

    def _answers_ours(self, answer: Answer) -> bool:
        if self._asked is None:
            return False
        generation, offset = self._asked
        if isinstance(answer, Rejection):
            return answer.offset == offset
        return (
            isinstance(answer, Grant | Ended)
            and (answer.id, answer.nonce) == (self._id, self._nonce)
            and answer.generation == generation
        )

    def ask(self, make: Callable[[int], Request]) -> int:
        """Sends a request with the generation that follows the present one until it took effect; returns that.

        Raises Rejected with the sequencer's reason, Fenced when another process holds the id by now, SubscriptionEnded
        when its lease ran out meanwhile, and whatever `wait` raises.
        """
        self._finish()
        reason = "its lease ran out before it was seen"
        for _ in range(_ATTEMPTS):
            generation = self.latest + 1
            outcome = self._ask_once(make(generation), generation)
            if isinstance(outcome, Rejection):
                reason = outcome.reason
                self._check_rejected(outcome, generation)
            elif outcome is None and self.latest > generation:
                raise self.fenced(self.latest)
            elif isinstance(outcome, Grant) or (outcome is not None and outcome.reason == "unsubscribed"):
                return generation
            # Else compaction left only the end of a lease of what was granted: nobody has it any more.
        raise Rejected(
            f"subscriber id {self._id!r} changes hands all the time: {reason}", remedy="Run one process per id"
        )

    def begin(self, make: Callable[[int], Request], timeout_s: float) -> None:
        """Sends such a request, and waits for no answer: `is_open` until that has come.

        It is sent again where an earlier one came to BrokerUnavailable, which it raises too: of two with one generation
        the first that was written counts.
        """
        generation = self.latest + 1
        self._request = make(generation)
        self._outcome, self._passed, self._asked = None, False, (generation, -1)
        self._asked = generation, self._send(self._request, timeout_s)

    @property
    def is_open(self) -> bool:
        """Whether a request that was written waits for its answer."""
        return self._asked is not None and self._asked[1] >= 0 and self._outcome is None and not self._passed

    @property
    def lapsed(self) -> bool:
        """Whether the lease has run out."""
        return self._lapsed > 0

    def check(self) -> None:
        """Rejected, where the sequencer refused what was begun for a reason that it will always have."""
        if isinstance(self._outcome, Rejection) and self._asked is not None and not self._lapsed:
            self._check_rejected(self._outcome, self._asked[0])

    def _finish(self) -> None:
        """What was begun is answered before anything else is asked: two of one generation would be one request."""
        if self._request is None or self._asked is None:
            return
        if self._outcome is None and self._asked[1] < 0:
            self._asked = self._asked[0], self._send(self._request)
        while self.is_open:
            self._wait()
        self._request = None

    def _ask_once(self, request: Request, generation: int) -> Grant | Ended | Rejection | None:
        """The answer; None when the log of grants went on without it, since compaction left a newer one."""
        # Also a send that fails, or is interrupted, may have written it.
        self._outcome, self._passed, self._asked = None, False, (generation, -1)
        self._asked = generation, self._send(request)
        while self._outcome is None and not self._passed:
            self._wait()
        return self._outcome

    def _check_rejected(self, rejection: Rejection, generation: int) -> None:
        if self._lapsed:
            raise SubscriptionEnded(
                f"the lease of subscriber id {self._id!r} ran out at g {self._lapsed}",
                remedy="Make a new Subscriber to go on; call poll() more often, or give a longer lease_s",
            )
        if rejection.generation + 1 == generation:
            raise Rejected(f"the sequencer refused the request of subscriber id {self._id!r}: {rejection.reason}")

    def fenced(self, generation: int) -> Fenced:
        """What to tell when another process holds the id, with this generation, before this one began."""
        return Fenced(
            f"another process took over subscriber id {self._id!r} with generation {generation}",
            remedy="Give each process an id of its own, or run one process per id",
        )

    def withdraw(self, timeout_s: float) -> None:
        """Takes back a request of a process that goes away: else it would be granted to nobody, and live for a lease.

        Where the id was subscribed before, the subscription and what it is owed go on as they would have.
        """
        if self._asked is None or isinstance(self._outcome, Rejection) or not self.vacant:
            return
        if self.latest > self._asked[0]:
            return
        request = Unsubscribe(id=self._id, generation=self._asked[0] + 1, nonce=self._nonce)
        with suppress(BrokerUnavailable):  # nothing more can be done; the lease will end it
            self._send(request, timeout_s)

    def renew(self, generation: int, timeout_s: float | None) -> None:
        """Asks for a longer lease; its answer is not waited for."""
        request = Renew(id=self._id, generation=generation, nonce=self._nonce)
        self._send(request, timeout_s)

    def _send(self, request: Request, timeout_s: float | None = None) -> int:
        """Where it stands on control."""
        value = encode_request(request, self._signer)
        return self._transport.send(self._control, self._id.encode(), value, timeout_s=timeout_s)
