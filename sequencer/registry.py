"""Subscriptions: what each control record does at its position in π, and the answer that it gets."""

from collections.abc import Iterable, Mapping
from typing import TypedDict

import numpy as np
import numpy.typing as npt

from totalorder.errors import LimitExceeded
from totalorder.sequencer.draft import Draft
from totalorder.sequencer.stamper import Stamper
from totalorder.sequencer.state import Subscription
from totalorder.sequencer.wire.control import (
    Answer,
    BadRequest,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Repeated,
    Request,
    Retire,
    Retired,
    Skip,
    Skipped,
    Subscribe,
    Unsigned,
    Unsubscribe,
    parse_request,
)
from totalorder.sequencer.wire.limits import MAX_KAFKA_TOPICS, MAX_SUBSCRIPTIONS
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import KafkaTopic, Source

Ints = npt.NDArray[np.int64]
_NEVER = Subscription(generation=0, nonce="", topics=(), lease_ms=0, expires_ms=0, g=0, lapsed=True)


class _Stem(TypedDict):
    """What every answer says of the batch that it came in."""

    batch: int
    incarnation: int


class _Who(TypedDict):
    """Whom an answer is for."""

    id: str
    generation: int
    nonce: str


class Registry:
    """The subscriptions while one batch moves them on; every request takes a position and gets an answer."""

    def __init__(
        self,
        draft: Draft,
        stamper: Stamper,
        starts: Mapping[Source, int],
        *,
        control_g: int,
        batch_number: int,
        time_ms: int,
        signatures: Signatures | None = None,
    ) -> None:
        self.draft = draft
        self.control_g = control_g
        self.answers: list[Answer] = []
        self.unsigned = 0
        """Requests that should have been signed."""
        self._signatures = signatures
        self._stamper = stamper
        self._starts = starts
        self._batch = batch_number
        self._time_ms = time_ms

    def expire(self) -> None:
        """Ends, in id order, every subscription whose lease has run out by the batch's time."""
        for id_ in self.draft.due(self._time_ms):
            held = self.draft.subscriptions[id_]
            self._end(id_, held, generation=held.generation, nonce=held.nonce, offset=-1, reason="expired")

    def handle(self, value: bytes, offset: int, next_offsets: Ints) -> None:
        """Applies the control record at `offset` at the next position of π; what it skips moves `next_offsets`."""
        answered, g = len(self.answers), self._stamper.g
        try:
            request = parse_request(value, self._signatures)
            if isinstance(request, Retire):
                self._retire(request, offset, next_offsets)
            elif isinstance(request, Skip):
                self._skip(request, offset, next_offsets)
            else:
                self._apply(request, offset, next_offsets)
        except BadRequest as bad:
            self.unsigned += isinstance(bad, Unsigned)
            held = self.draft.subscriptions.get(bad.id or "", _NEVER)
            answer = Rejection(
                id=bad.id or "",
                nonce=bad.nonce or "",
                generation=held.generation,
                g=self._position(),
                offset=offset,
                reason=bad.reason,
                **self._stem(),
            )
            self.answers.append(answer)
        assert len(self.answers) == answered + 1, f"the request at offset {offset} of control has not one answer"
        assert self._stamper.g == g + 1, f"the request at offset {offset} of control has not taken one position"

    def _retire(self, request: Retire, offset: int, next_offsets: Ints) -> None:
        """Of one that is retired already this changes nothing, and says the same again."""
        topic = KafkaTopic(request.topic, request.topic_id)
        if topic not in self.draft.ranks and len(self.draft.kafka_topics) >= MAX_KAFKA_TOPICS:
            raise _bad(request, f"the domain has {MAX_KAFKA_TOPICS} Kafka topics, its limit")
        self.draft.number_kafka_topics([topic])
        reached = self._reached(next_offsets)
        first = {partition: reached.get(Source(*topic, partition), 0) for partition in request.seen}
        lost = {part: (first[part], end) for part, end in sorted(request.seen.items()) if end > first[part]}
        answer = Retired(
            id=request.id,
            nonce=request.nonce,
            g=self._position(),
            offset=offset,
            topic=request.topic,
            topic_id=request.topic_id,
            lost=self.draft.retire(topic, lost),
            **self._stem(),
        )
        self.answers.append(answer)

    def _skip(self, request: Skip, offset: int, next_offsets: Ints) -> None:
        """What lies below the next offset was stamped, or told as lost before."""
        rank = self.draft.ranks.get(KafkaTopic(request.topic, request.topic_id), -1)
        if rank in self.draft.retired:
            raise _bad(request, "the topic was retired")
        index = self.draft.source_ids.get((rank, request.partition))
        if index is None:
            raise _bad(request, f"no event topic, or one too many: the limit is {MAX_KAFKA_TOPICS} for a domain")
        first, next_offsets[index] = max(request.begin, int(next_offsets[index])), max(request.end, next_offsets[index])
        answer = Skipped(
            id=request.id,
            nonce=request.nonce,
            g=self._position(),
            offset=offset,
            topic=request.topic,
            topic_id=request.topic_id,
            lost={request.partition: (first, request.end)} if request.end > first else {},
            **self._stem(),
        )
        self.answers.append(answer)

    def _reached(self, next_offsets: Ints) -> dict[Source, int]:
        """The next offset of each event partition that was seen, or does not begin at 0."""
        seen = {self.draft.source(index): offset for index, offset in enumerate(next_offsets.tolist())}
        return {**self._starts, **seen}

    def _apply(self, request: Subscribe | Unsubscribe | Renew, offset: int, next_offsets: Ints) -> None:
        held = self.draft.subscriptions.get(request.id, _NEVER)
        if isinstance(request, Renew):
            self._renew(request, held, offset)
        elif (request.generation, request.nonce) == (held.generation, held.nonce):
            g = self._position()
            self.answers.append(Repeated(**_who(request), g=g, offset=offset, answered_g=held.g, **self._stem()))
        elif request.generation != held.generation + 1:
            raise _bad(request, f"generation {request.generation} does not follow the present one, {held.generation}")
        elif isinstance(request, Subscribe):
            self._subscribe(request, held, offset, next_offsets)
        else:
            self._unsubscribe(request, held, offset)

    def _renew(self, request: Renew, held: Subscription, offset: int) -> None:
        if (request.generation, request.nonce) != (held.generation, held.nonce) or held.lapsed:
            raise _bad(request, f"not the holder of the present generation, {held.generation}")
        expires_ms = self._time_ms + held.lease_ms
        if held.lease_ms:
            self.draft.renew(request.id, expires_ms)
        g = self._position()
        self.answers.append(Renewed(**_who(request), g=g, offset=offset, expires_ms=expires_ms, **self._stem()))

    def _unsubscribe(self, request: Unsubscribe, held: Subscription, offset: int) -> None:
        if held.lapsed:
            raise _bad(request, "there is no live subscription of this id")
        self._end(
            request.id,
            held,
            generation=request.generation,
            nonce=request.nonce,
            offset=offset,
            reason="unsubscribed",
        )

    def _end(self, id_: str, held: Subscription, *, generation: int, nonce: str, offset: int, reason: str) -> None:
        g = self._position()
        self._regroup(held.topics, ())
        self.draft.set(id_, Subscription(generation, nonce, (), held.lease_ms, 0, g, True))
        ended = Ended(
            id=id_,
            generation=generation,
            nonce=nonce,
            g=g,
            offset=offset,
            reason=reason,
            clock=self._clock(held.topics),
            **self._stem(),
        )
        self.answers.append(ended)

    def _subscribe(self, request: Subscribe, held: Subscription, offset: int, next_offsets: Ints) -> None:
        if request.id not in self.draft.subscriptions and len(self.draft.subscriptions) >= MAX_SUBSCRIPTIONS:
            raise _bad(request, f"the domain holds {MAX_SUBSCRIPTIONS} subscriptions, its limit")
        self._number(request)
        g = self._position()
        topics = tuple(self.draft.topic_ids[name] for name in request.topics)
        self._regroup(held.topics, topics)
        lease_ms = request.lease_s * 1000
        expires_ms = self._time_ms + lease_ms
        self.draft.set(
            request.id, Subscription(request.generation, request.nonce, topics, lease_ms, expires_ms, g, False)
        )
        both = sorted({*topics, *held.topics})
        former = tuple(sorted(self.draft.topics[topic] for topic in held.topics))
        config = self.draft.config
        grant = Grant(
            **_who(request),
            g=g,
            offset=offset,
            topics=request.topics,
            former=former,
            continuous=not held.lapsed,
            clock=self._clock(both),
            ids={self.draft.topics[topic]: topic for topic in both},
            next_offsets=self._bounds(request.topics, next_offsets),
            stamps_ends=request.stamps_ends,
            stamps_partitions=config.stamps_partitions,
            min_subscriptions=config.min_subscriptions,
            topic_by=config.topic_by,
            lease_s=request.lease_s,
            **self._stem(),
        )
        self.answers.append(grant)

    def _number(self, request: Subscribe) -> None:
        """Topics that no event has shown yet get their ids here."""
        try:
            self.draft.number_topics(request.topics)
            self._stamper.grow()
        except LimitExceeded as limit:
            raise _bad(request, limit.what) from None

    def _regroup(self, former: tuple[int, ...], topics: tuple[int, ...]) -> None:
        self._stamper.apply(self.draft.regroup(former, topics))

    def _bounds(self, topics: tuple[str, ...], next_offsets: Ints) -> dict[Source, int]:
        """Lower bounds of the next offsets of the event partitions that can hold the topics' events."""
        retired = {self.draft.kafka_topics[rank] for rank in self.draft.retired}
        by_topic = self.draft.config.topic_by == "topic"
        return {
            source: offset
            for source, offset in self._reached(next_offsets).items()
            if source.kafka_topic not in retired and (not by_topic or source.topic in topics)
        }

    def _clock(self, topics: Iterable[int]) -> dict[str, int]:
        return {self.draft.topics[topic]: int(self._stamper.clocks[topic]) for topic in topics}

    def _position(self) -> int:
        self.control_g = self._stamper.position()
        return self.control_g

    def _stem(self) -> _Stem:
        return {"batch": self._batch, "incarnation": self.draft.config.incarnation}


def _who(request: Subscribe | Unsubscribe | Renew) -> _Who:
    return {"id": request.id, "generation": request.generation, "nonce": request.nonce}


def _bad(request: Request, reason: str) -> BadRequest:
    return BadRequest(reason, id=request.id, nonce=request.nonce)
