"""The source's part in the driver: takes looks, decides where batches end, and makes each cut public.

Kafka's id of each topic is asked for when a batch is planned, behind its last look, and by the workers again, behind
their reading: a topic that was deleted and made again has another one, and an id never comes back. So what lies between
was all of the topic that the domain admitted.

A topic that is gone is left out of batches from then on, and the driver is told. Once the domain's record says so too,
control is: that is how the engine, and everybody, learns that nothing more comes of it, and how much of it is lost.

What retention has removed before it was read the driver finds, when reading fails, and the record says. A batch of its
own passes over that, together with control, which is told in it: so the loss stands in π where it lies in the log.
"""

import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from totalorder.control_keys import read_signatures
from totalorder.errors import BrokerUnavailable, LimitExceeded, StateError
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.control import Retire, Skip, encode_request
from totalorder.sequencer.wire.cuts import Cut, CutEncoder
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.signing import RETIRE
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.ahead import MAX_EVENTS, Ahead
from totalorder.streaming.cut.chunk import Chunk, Ints
from totalorder.streaming.cut.ends import Look
from totalorder.streaming.cut.looker import Looker
from totalorder.streaming.cut.looks import LookLog, Waiting
from totalorder.streaming.cut.offset import MAX_PLACES, BatchEnd, Looks, Span, laid_out, slices_of
from totalorder.streaming.cut.planner import Planned, end_at, plan
from totalorder.streaming.cut.publisher import Publisher
from totalorder.streaming.cut.questions import Questions, TopicGone
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.requests import Topic
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.handover import Handover
from totalorder.streaming.record import CONTROL, GO_ON_WITHOUT, EventTopic, changed

_MINUTE_S = 60.0
_SAY_LOOKS_S = 1.0
_SHARED_FROM = 20_000
"""Events: fewer are read by one task, whatever the settings say."""


class Cutter:
    """One for each query; its methods are Spark's calls, one at a time, while looks come in a thread of their own."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._handover = Handover(settings.folder)
        self._version = self._handover.version()
        signatures = read_signatures(settings.control_key_file, settings.domain)
        self._signer = signatures.signer(RETIRE) if signatures else None
        """Of the keys that the file has now, as the driver: what it gets later holds from the next start on."""
        self._gone: set[int] = set()
        """Topics that Kafka has no longer, of those that the record says are read."""
        self._announced: set[int] = set()
        """Those that the record says are gone, and of which control was told."""
        self._told_lost: dict[tuple[int, int], tuple[tuple[int, int], int]] = {}
        """By source what control was told to be lost, and behind which offset that stands there."""
        self._take_record()
        self._questions = Questions(settings.bootstrap_servers, settings.kafka, timeout_s=settings.broker_timeout_s)
        cuts = DomainTopics(domain=settings.domain).cuts
        self._publisher, self._encoder = Publisher(settings.bootstrap_servers, settings.kafka, cuts), CutEncoder()
        self._watched: list[tuple[int, int]] = []
        """The sources that are looked at."""
        self._placed: tuple[tuple[Source, ...], Ints] = ((), np.zeros(0, dtype=np.int64))
        """Sources of looks, and the places of each among the sources of `_looks`."""
        self._published: BatchEnd | None = None
        self._ahead = Ahead()
        self._planned: Planned | None = None
        self._looks = LookLog()
        self._seen = threading.Condition()
        """Guards `_looks`; what sources it has is changed by Spark's calls alone."""
        self._periods: deque[tuple[float, float]] = deque()
        """Of looks that batches took in the last minute: when, and the longest period in ms."""
        self._looker = Looker(
            settings.bootstrap_servers,
            settings.kafka,
            look_ms=settings.look_ms,
            look_warn_ms=settings.look_warn_ms,
            look_patience_ms=settings.look_patience_ms,
            on_look=self._on_look,
        )
        self._is_looking = False
        self._grows_s = 0.0
        self._said_looks_s = -math.inf
        self._has_said_first_trigger = False

    def _take_record(self) -> None:
        self._record = self._handover.record()
        self._topics = self._record.numbered()
        self._read = {number: topic for number, topic in enumerate(self._topics) if topic.state == "read"}
        self._gone &= self._read.keys()
        self._starts = {
            (number, partition): offset
            for number, topic in enumerate(self._topics)
            for partition, offset in topic.starts.items()
        }
        self._lost = {
            (number, partition): bounds
            for number, topic in self._read.items()
            for partition, bounds in topic.lost.items()
        }

    # --- offsets ------------------------------------------------------------------------------------------------------

    def is_beginning(self, begin: BatchEnd) -> bool:
        """Whether a recovered checkpoint begins there. Its first batch brings the seeds, and nothing else."""
        return begin == self._record.beginning

    def seeds(self) -> list[bytes]:
        """The rows that a recovered checkpoint's first batch brings."""
        return self._handover.seeds()

    def beginning(self) -> BatchEnd:
        """Where the domain begins, or a recovered checkpoint."""
        if self._record.beginning is not None:
            return self._record.beginning
        found = self._admitted()
        ends = {
            number: tuple(
                self._starts.get((number, partition), 0) for partition in range(len(found[topic.name].leaders))
            )
            for number, topic in self._present.items()
        }
        return BatchEnd(cut=0, order=0, ends=ends)

    def end_after(self, begin: BatchEnd, most: int, wait_s: float) -> BatchEnd:
        """Where the batch behind `begin` ends, with at most `most` offsets; `begin` itself where nothing comes within
        `wait_s`. Raises StateError for topics that are not those that were admitted, BrokerUnavailable.
        """
        while True:
            known = set(self._gone)
            try:
                end = self._end_after(begin, most, wait_s)
            except TopicGone:
                self._admitted()  # knows what has become of it
                if self._gone == known:
                    raise
            else:
                if end is not None:
                    return end

    def _end_after(self, begin: BatchEnd, most: int, wait_s: float) -> BatchEnd | None:
        """The same; None where another topic is found to be gone behind the last look."""
        self._look_on(begin)
        if lost := self._open_losses(begin):
            return self._pass_over(begin, lost, wait_s)
        waiting = self._awaited(begin, wait_s)
        if not len(waiting.sizes):
            return begin
        known = set(self._gone)
        self._planned = plan(
            begin,
            waiting,
            limit=most,
            order=len(self._record.orders) - 1,
            times=_Times(self._questions, self._topics, waiting),
            now_ms=time.time_ns() // 1_000_000,
            tie_order=self._tie_order(),
            last=self._planned,
        )
        self._admitted()
        if self._gone != known:
            return None
        end = self._planned.end
        self._publish(begin, end)
        if self._planned.taken <= MAX_EVENTS:
            for wanted in self._plans(begin, end):
                self._ahead.begin(wanted)
        self._say_looks()
        return end

    def _open_losses(self, begin: BatchEnd) -> dict[tuple[int, int], tuple[int, int]]:
        """By source what is lost, and no batch has passed over yet."""
        open_ = {source: bounds for source, bounds in self._lost.items() if self._reached(source, begin) < bounds[1]}
        known = {source for source in self._looks.sources if source[0] in self._present} if open_ else set()
        return {source: bounds for source, bounds in open_.items() if source in known}

    def _reached(self, source: tuple[int, int], begin: BatchEnd) -> int:
        """How far batches went, or where the source begins."""
        number, partition = source
        ends = begin.ends.get(number, ())
        return ends[partition] if partition < len(ends) else self._starts.get(source, 0)

    def _pass_over(self, begin: BatchEnd, lost: Mapping[tuple[int, int], tuple[int, int]], wait_s: float) -> BatchEnd:
        """The end of a batch that passes over what is lost, and has of all else only control, which tells of it;
        `begin` as long as control cannot be read so far.
        """
        told_to = max(self._told_to(source, bounds) for source, bounds in lost.items())
        (control,) = self._questions.ends([(self._topics[CONTROL].name, 0)]).tolist()
        with self._seen:
            if control < told_to:  # somebody's transaction is open there
                self._seen.wait(wait_s)
                return begin
            self._note_period(self._looks.taken(begin))
            waiting = self._looks.since(begin)
        ends, place_of = waiting.begins.copy(), {source: place for place, source in enumerate(waiting.sources)}
        for source, (_, end) in {**lost, (CONTROL, 0): (0, control)}.items():
            ends[place_of[source]] = max(ends[place_of[source]], end)
        end = end_at(begin, len(self._record.orders) - 1, waiting, ends, Looks())
        self._publish(begin, end)
        return end

    def _told_to(self, source: tuple[int, int], bounds: tuple[int, int]) -> int:
        """Tells control what is lost of a source, once; behind which offset that stands there."""
        number, partition = source
        if self._told_lost.get(source, ((0, 0), 0))[0] != bounds:
            topic, (first, behind) = self._topics[number], bounds
            request = Skip(
                **self._sender(),
                topic=topic.name,
                topic_id=topic.topic_id,
                partition=partition,
                begin=first,
                end=behind,
            )
            self._told_lost[source] = bounds, self._tell(request)
        return self._told_lost[source][1]

    def _say_looks(self) -> None:
        """Tells the driver how looks go, each second at most."""
        if time.monotonic() >= self._said_looks_s + _SAY_LOOKS_S:
            self._said_looks_s = time.monotonic()
            self._handover.say_looks(self.figures())

    def _tie_order(self) -> list[int]:
        """The numbers of the topics that the present list of names has, in its order."""
        number_of = {topic.name: number for number, topic in self._read.items()}
        return [number_of[name] for name in self._record.orders[-1] if name in number_of]

    @property
    def _present(self) -> dict[int, EventTopic]:
        """The topics that are read and not gone."""
        return {number: topic for number, topic in self._read.items() if number not in self._gone}

    def _admitted(self) -> dict[str, Topic]:
        """What Kafka has of the topics now, by name; `_gone` are then those that it has no longer.

        StateError where one is that may not be, BrokerUnavailable where brokers do not agree, LimitExceeded where the
        topics have more partitions than a domain may have.
        """
        names = [topic.name for topic in self._read.values()]
        found, until_s = self._questions.topics(names), time.monotonic() + self._settings.broker_timeout_s
        while missed := self._missed(found) - self._gone:
            gone = self._questions.gone({self._read[number].name: self._read[number].topic_id for number in missed})
            for number in missed:
                if self._read[number].name in gone:
                    self._let_go(number, found)
            if not gone:
                self._bear_disagreement(min(missed), until_s)
                found = self._questions.cluster(names).topics
        self._gone &= self._missed(found)
        partitions = sum(len(found[topic.name].leaders) for topic in self._present.values())
        if partitions > MAX_PLACES:
            raise LimitExceeded(
                f"the domain's topics have {partitions:,} partitions, and may have {MAX_PLACES:,}",
                remedy="Begin a domain with fewer of them; topics that Kafka has no longer do not count",
            )
        return found

    def _missed(self, found: Mapping[str, Topic]) -> set[int]:
        """Topics that a broker does not know, or under another id."""
        ids = {name: topic.topic_id for name, topic in found.items()}
        return {number for number, topic in self._read.items() if ids.get(topic.name) != topic.topic_id}

    def _let_go(self, number: int, found: Mapping[str, Topic]) -> None:
        topic = self._read[number]
        if number == CONTROL or not self._settings.retires_deleted:
            raise changed(topic.name, is_there=topic.name in found, is_own=number == CONTROL)
        self._gone.add(number)
        self._handover.say_topics_changed()

    def _bear_disagreement(self, number: int, until_s: float) -> None:
        if time.monotonic() > until_s:
            raise BrokerUnavailable(
                f"the Kafka brokers at {self._settings.bootstrap_servers} do not agree on the id of topic "
                f"{self._read[number].name}",
                remedy="Look for a broker that does not keep up with the others",
            )

    # --- looks --------------------------------------------------------------------------------------------------------

    def _look_on(self, begin: BatchEnd) -> None:
        """Looks go on, with topics and partitions that have come. Raises what ended them."""
        version = self._handover.version()
        if version != self._version:
            self._version = version
            self._take_record()
            self._grows_s = 0.0
        self._announce(begin)
        if time.monotonic() >= self._grows_s:
            self._grow(begin)
        if not self._is_looking:
            self._looker.start()
            self._is_looking = True
        self._looker.newest()

    def _grow(self, begin: BatchEnd) -> None:
        """Has new topics and partitions looked at. What batches have had is there, whatever a broker says now."""
        found = self._admitted()
        known = dict(self._looks.sources)  # the last partition of each topic stays
        new = [
            (number, partition)
            for number, topic in self._present.items()
            for partition in range(
                known.get(number, -1) + 1, max(len(found[topic.name].leaders), begin.shape.get(number, 0))
            )
        ]
        self._require_whole(new, begin)
        with self._seen:
            self._looks.know(new, [self._starts.get(source, 0) for source in new])
            self._note_period(self._looks.taken(begin))
            sources = [source for source in self._looks.sources if source[0] in self._read]
        if sources != self._watched:
            self._watched = sources
            self._looker.watch(self._named(sources), self._had(sources, begin))
        self._grows_s = time.monotonic() + self._settings.topic_poll_s

    def _announce(self, begin: BatchEnd) -> None:
        """Tells control of each topic that the record says is gone, and how far it was seen; forgets its looks."""
        for number, topic in enumerate(self._topics):
            if topic.state == "read" or number in self._announced:
                continue
            self._announced.add(number)
            with self._seen:
                seen = self._looks.seen(number)
                self._looks.retire(number)
            if topic.state == "gone":
                had = dict(enumerate(begin.ends.get(number, ())))
                ends = {part: max(had.get(part, 0), seen.get(part, 0)) for part in {*had, *seen}}
                ends = {part: end for part, end in ends.items() if end > 0}
                self._tell(Retire(**self._sender(), topic=topic.name, topic_id=topic.topic_id, seen=ends))

    def _sender(self) -> dict[str, str]:
        return {"id": "sequencer", "nonce": secrets.token_hex(8)}

    def _tell(self, request: Retire | Skip) -> int:
        """Writes a request to control; returns the offset behind it."""
        settings = self._settings
        publisher = Publisher(settings.bootstrap_servers, settings.kafka, DomainTopics(domain=settings.domain).control)
        try:
            publisher.send(WireRecord(value=encode_request(request, self._signer), headers=()))
            publisher.await_acknowledged(settings.broker_timeout_s)
            return publisher.reached
        finally:
            publisher.close()

    def _require_whole(self, new: Sequence[tuple[int, int]], begin: BatchEnd) -> None:
        """StateError where Kafka has removed records that no batch has had."""
        asked = [(self._topics[number].name, partition) for number, partition in new]
        earliest = self._questions.earliest(asked).tolist() if asked else []
        for (number, partition), offset in zip(new, earliest, strict=True):
            source = number, partition
            begins = max(self._reached(source, begin), self._lost.get(source, (0, 0))[1])
            if offset > begins:
                raise StateError(
                    f"partition {partition} of topic {self._topics[number].name} begins at offset {offset} by now: "
                    f"{begins} to {offset - 1} were removed before they were stamped",
                    remedy=f"Raise the retention, and {GO_ON_WITHOUT}",
                )

    def _named(self, sources: Sequence[tuple[int, int]]) -> list[Source]:
        return [
            Source(self._topics[number].name, self._topics[number].topic_id, partition) for number, partition in sources
        ]

    def _had(self, sources: Sequence[tuple[int, int]], begin: BatchEnd) -> list[int]:
        """How far batches went, -1 for sources that none had: an end can only be higher."""
        return [(*begin.ends.get(number, ())[partition : partition + 1], -1)[0] for number, partition in sources]

    def _on_look(self, look: Look) -> None:
        """In the looker's thread."""
        with self._seen:
            if self._looks.add(self._ends_of(look), began_ms=look.began_s * 1000, ended_ms=look.ended_s * 1000):
                self._seen.notify()

    def _ends_of(self, look: Look) -> Ints:
        """The look's ends by place among the sources of `_looks`; of what is not looked at any more, no answer."""
        if look.sources is not self._placed[0]:
            place_of = {source: place for place, source in enumerate(self._named(self._looks.sources))}
            self._placed = look.sources, np.array([place_of[source] for source in look.sources], dtype=np.int64)
        ends = np.full(self._looks.width, -1, dtype=np.int64)
        ends[self._placed[1]] = look.ends
        return ends

    def _awaited(self, begin: BatchEnd, wait_s: float) -> Waiting:
        """What waits behind `begin`, for which it may be waited for a while."""
        with self._seen:
            self._note_period(self._looks.taken(begin))
            self._seen.wait_for(lambda: len(self._looks) > 0, wait_s)
            waiting = self._looks.since(begin).without(self._gone)
            if self._gone and not len(waiting.sizes):  # what is gone waits until the record says so
                self._seen.wait(wait_s)
            return waiting

    def _note_period(self, period_ms: float) -> None:
        now_s = time.monotonic()
        self._periods.append((now_s, period_ms))
        while self._periods[0][0] < now_s - _MINUTE_S:
            self._periods.popleft()

    # --- what tasks read, and what everybody may ----------------------------------------------------------------------

    def shares(self, begin: BatchEnd, end: BatchEnd) -> list[ReadPlan]:
        """What each task reads of a batch that is in Spark's log; its cut is acknowledged when this returns.

        A new domain's first batch is empty: it ends where it begins, and is no cut.
        """
        if end.cut == begin.cut:
            return []
        self._publish(begin, end)
        plans = self._plans(begin, end)
        self._publisher.await_acknowledged(self._settings.broker_timeout_s)
        return plans

    def read_ahead(self, wanted: ReadPlan) -> list[Chunk] | None:
        """What was read already of the batch planned last, None where nothing was; raises what reading does."""
        return self._ahead.chunks(wanted)

    def _plans(self, begin: BatchEnd, end: BatchEnd) -> list[ReadPlan]:
        spans = [span for span in slices_of(begin, end, self._starts) if span.number in self._read]
        ranges = [wanted for span in spans if (wanted := self._range(span)) is not None]
        order = self._record.orders[end.order]
        return [
            self._settings.plan(cut=end.cut, topic_order=order, ranges=part)
            for part in _divided(ranges, self._settings.reading_tasks)
        ]

    def _range(self, span: Span) -> Range | None:
        """What is to be read of a batch's share of one partition: nothing that is lost, nor what lies before."""
        _, behind = self._lost.get((span.number, span.partition), (0, 0))
        if span.end <= behind:
            return None
        topic = self._topics[span.number]
        return Range(
            topic=topic.name,
            topic_id=topic.topic_id,
            partition=span.partition,
            begin=max(span.begin, behind),
            end=span.end,
            slices=tuple(part for part in span.slices if part.end > behind),
        )

    def _publish(self, begin: BatchEnd, end: BatchEnd) -> None:
        """Sends the batch's cut, once; a former process may have sent it too."""
        if end == self._published:
            return
        starts = np.array([self._starts.get(place, 0) for place in end.places], dtype=np.int64)
        cut = Cut.of(
            domain=self._settings.domain,
            incarnation=self._record.incarnation,
            cut=end.cut,
            sources=self._named(end.places),
            begins=laid_out(begin.ends, end.shape, starts).tolist(),
            ends=end.flat.tolist(),
            looks=end.looks,
            topic_order=self._record.orders[end.order],
        )
        self._publisher.send(self._encoder.encode(cut, now_s=time.monotonic()))
        self._published = end

    # --- the rest -----------------------------------------------------------------------------------------------------

    def say_first_trigger_over(self) -> None:
        """Tells the driver, once."""
        if not self._has_said_first_trigger:
            self._handover.say_first_trigger_over()
            self._has_said_first_trigger = True

    def figures(self) -> dict[str, Any]:
        """About the looks of the last minute: milliseconds within which two records may be ordered by their clocks,
        partitions of brokers that are silent, and the share of a core that looks take.

        Looks that were made one since too many waited count as the one that they are.
        """
        found = self._looker.figures()
        with self._seen:
            made_one_ms = max([self._looks.longest_period_ms, *(period_ms for _, period_ms in self._periods)])
        return {
            "longest_ms": max(found.longest_period_ms + found.longest_ms, made_one_ms),
            "silent": found.silent_places,
            "share": found.processor_share,
        }

    def close(self) -> None:
        """Ends the looks, and the connections."""
        if self._is_looking:
            self._looker.stop()
        self._ahead.close()
        self._questions.close()
        self._publisher.close()


class _Times:
    """Offsets for times, by the places of what waits."""

    def __init__(self, questions: Questions, topics: Sequence[EventTopic], waiting: Waiting) -> None:
        self._questions = questions
        self._named = [(topics[number].name, partition) for number, partition in waiting.sources]

    def offsets_at(self, places: Sequence[int], time_ms: int) -> Ints:
        """See `planner.Times`."""
        return self._questions.offsets_at([self._named[place] for place in places], time_ms)


def _divided(ranges: Sequence[Range], tasks: int) -> list[list[Range]]:
    """The ranges, shared evenly by so many tasks where that pays; none without any."""
    sizes = [part.end - part.begin for part in ranges]
    if tasks == 1 or sum(sizes) < _SHARED_FROM:
        return [list(ranges)] if ranges else []
    shares: list[list[Range]] = [[] for _ in range(min(tasks, len(ranges)))]
    loads = np.zeros(len(shares), dtype=np.int64)
    for at in np.argsort(sizes, kind="stable")[::-1].tolist():
        least = int(np.argmin(loads))
        shares[least].append(ranges[at])
        loads[least] += sizes[at]
    return shares
