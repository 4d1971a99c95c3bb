"""The source's part in the driver: takes looks, decides where batches end, and makes each cut public.

Kafka's id of each topic is asked for when a batch is planned, behind its last look, and by the workers again, behind
their reading: a topic that was deleted and made again has another one, and an id never comes back. So what lies between
was all of the topic that the domain admitted.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from totalorder.errors import StateError
from totalorder.sequencer.cuts import Cut, CutSource
from totalorder.sequencer.names import DomainTopics
from totalorder.streaming.cut.chunk import Ints
from totalorder.streaming.cut.looker import Look, Looker
from totalorder.streaming.cut.looks import LookLog, Waiting
from totalorder.streaming.cut.offset import BatchEnd, Span, slices_of
from totalorder.streaming.cut.planner import plan
from totalorder.streaming.cut.publisher import CutPublisher
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.handover import Handover
from totalorder.streaming.record import DomainRecord, EventTopic

_SHARED_FROM = 20_000
"""Events: fewer are read by one task, whatever the settings say."""


class Cutter:
    """One for each query; its methods are Spark's calls, one at a time, while looks come in a thread of their own."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._handover = Handover(settings.folder)
        self._version = self._handover.version()
        self._record: DomainRecord = self._handover.record()
        self._looks = LookLog()
        self._seen = threading.Condition()
        """Guards `_looks`."""
        self._looker: Looker | None = None
        self._publisher = CutPublisher(
            settings.bootstrap_servers, settings.kafka, DomainTopics(domain=settings.domain).cuts
        )
        self._published = 0
        self._longest_ms = 0.0
        self._grows_at_s = 0.0
        self._said_first_trigger = False

    # --- offsets ------------------------------------------------------------------------------------------------------

    def beginning(self) -> BatchEnd:
        """Where the domain begins."""
        topics = self._record.numbered()
        counts = self._ready(BatchEnd(cut=0, order=-1, ends={})).partitions([topic.name for topic in topics])
        ends = {
            number: tuple(topic.starts.get(partition, 0) for partition in range(counts[topic.name]))
            for number, topic in enumerate(topics)
        }
        return BatchEnd(cut=0, order=0, ends=ends)

    def end_after(self, begin: BatchEnd, most: int, wait_s: float) -> BatchEnd:
        """Where the batch behind `begin` ends, with at most `most` events; `begin` itself where nothing comes within
        `wait_s`. Raises StateError for topics that are not those that were admitted, BrokerUnavailable.
        """
        looker = self._ready(begin)
        self._take_in_topics(looker)
        waiting = self._awaited(begin, wait_s)
        if not len(waiting.sizes):
            return begin
        times = _Times(looker, self._looks, waiting)
        end = plan(begin, waiting, most, times, now_ms=time.time_ns() // 1_000_000, tie_order=self._tie_order(waiting))
        end = replace(end, order=len(self._record.orders) - 1)
        self._require_admitted(looker)
        self._publish(begin, end)
        return end

    def _ready(self, begin: BatchEnd) -> Looker:
        """The looker, which begins to look when Spark asks for the first time, from where it is then."""
        if self._looker is None:
            settings = self._settings
            self._looker = Looker(
                settings.bootstrap_servers,
                settings.kafka,
                look_ms=settings.look_ms,
                look_warn_ms=settings.look_warn_ms,
                look_patience_ms=settings.look_patience_ms,
                timeout_s=settings.broker_timeout_s,
                on_look=self._on_look,
            )
            self._grow(self._looker, begin)
            self._looks.taken(begin)
            self._looker.start()
        return self._looker

    def _on_look(self, look: Look) -> None:
        """In the looker's thread."""
        with self._seen:
            if self._looks.add(look.ends, began_ms=look.began_s * 1000, ended_ms=look.ended_s * 1000):
                self._seen.notify()

    def _awaited(self, begin: BatchEnd, wait_s: float) -> Waiting:
        """What waits behind `begin`, for which it may be waited for a while."""
        with self._seen:
            self._longest_ms = max(self._longest_ms, self._looks.taken(begin))
            self._seen.wait_for(lambda: len(self._looks) > 0, wait_s)
            return self._looks.since(begin)

    def _tie_order(self, waiting: Waiting) -> list[tuple[int, int, int]]:
        """What decides of equal times, by place, as far as it is known here: a rank is given at first sight."""
        order = {name: place for place, name in enumerate(self._record.orders[-1])}
        topics = self._record.numbered()
        return [(order.get(topics[number].name, len(order)), number, partition) for number, partition in waiting.sources]

    # --- topics -------------------------------------------------------------------------------------------------------

    def _take_in_topics(self, looker: Looker) -> None:
        """Topics that the driver has admitted, and now and then partitions that were added to others."""
        version = self._handover.version()
        if version != self._version:
            self._version, self._record = version, self._handover.record()
        elif time.monotonic() < self._grows_at_s:
            return
        self._grow(looker, None)

    def _grow(self, looker: Looker, begin: BatchEnd | None) -> None:
        """Has new topics and partitions looked at. What a batch has had already is there, whatever the broker says."""
        topics = self._record.numbered()
        counts = looker.partitions([topic.name for topic in topics])
        known = dict.fromkeys(range(len(topics)), 0)
        with self._seen:
            for number, partition in self._looks.sources:
                known[number] = partition + 1
            had = begin.shape if begin is not None else {}
            new = [
                (number, partition)
                for number, topic in enumerate(topics)
                for partition in range(known[number], max(counts.get(topic.name, 0), had.get(number, 0)))
            ]
            self._looks.know(new, [topics[number].starts.get(partition, 0) for number, partition in new])
            sources = self._looks.sources
        if new:
            looker.watch([(topics[number].name, partition) for number, partition in sources])
        self._grows_at_s = time.monotonic() + self._settings.topic_poll_s

    def _require_admitted(self, looker: Looker) -> None:
        """StateError where a topic is not the one that was admitted."""
        topics = self._record.numbered()
        found = looker.topic_ids([topic.name for topic in topics])
        for topic in topics:
            if found.get(topic.name) != topic.topic_id:
                raise _changed(topic, found.get(topic.name))

    # --- what tasks read, and what everybody may ----------------------------------------------------------------------

    def shares(self, begin: BatchEnd, end: BatchEnd) -> list[ReadPlan]:
        """What each task reads of a batch that is in Spark's log; its cut is acknowledged when this returns."""
        self._publish(begin, end)
        spans = self._spans(begin, end)
        topics = self._record.numbered()
        ranges = [
            Range(
                topic=topics[span.number].name,
                topic_id=topics[span.number].topic_id,
                partition=span.partition,
                begin=span.begin,
                end=span.end,
                slices=span.slices,
            )
            for span in spans
        ]
        self._publisher.await_acknowledged(self._settings.broker_timeout_s)
        return [self._share(end, part) for part in _divided(ranges, self._settings.reading_tasks)]

    def _share(self, end: BatchEnd, ranges: Sequence[Range]) -> ReadPlan:
        settings = self._settings
        return ReadPlan(
            bootstrap_servers=settings.bootstrap_servers,
            kafka=settings.kafka,
            control=DomainTopics(domain=settings.domain).control,
            topic_by=settings.topic_by,
            cut=end.cut,
            topic_order=self._record.orders[end.order],
            ranges=tuple(ranges),
            silence_s=settings.broker_timeout_s,
        )

    def _spans(self, begin: BatchEnd, end: BatchEnd) -> list[Span]:
        topics = self._record.numbered()
        starts = {
            (number, partition): offset
            for number, topic in enumerate(topics)
            for partition, offset in topic.starts.items()
        }
        return slices_of(begin, end, starts)

    def _publish(self, begin: BatchEnd, end: BatchEnd) -> None:
        """Sends the batch's cut, once; what was sent by a former process is sent again."""
        if end.cut == self._published:
            return
        topics = self._record.numbered()
        begins = {(number, partition): offset for number, ends in begin.ends.items() for partition, offset in enumerate(ends)}
        sources = [
            CutSource(topics[number].name, topics[number].topic_id, partition) for number, partition in end.places
        ]
        self._publisher.send(
            Cut.of(
                domain=self._settings.domain,
                incarnation=self._record.incarnation,
                cut=end.cut,
                sources=sources,
                begins=[
                    begins.get(place, topics[place[0]].starts.get(place[1], 0)) for place in end.places
                ],
                ends=end.flat.tolist(),
                looks=end.looks,
                topic_order=self._record.orders[end.order],
            )
        )
        self._published = end.cut

    # --- the rest -----------------------------------------------------------------------------------------------------

    def say_first_trigger_over(self) -> None:
        """Tells the driver, once."""
        if not self._said_first_trigger:
            self._handover.say_first_trigger_over()
            self._said_first_trigger = True

    def figures(self) -> dict[str, Any]:
        """About the looks of the last minute."""
        return {} if self._looker is None else self._looker.figures()

    def close(self) -> None:
        """Ends the looks, and the connections."""
        if self._looker is not None:
            self._looker.stop()
        self._publisher.close()


class _Times:
    """Offsets for times, by the places of what waits."""

    def __init__(self, looker: Looker, looks: LookLog, waiting: Waiting) -> None:
        number_of = {source: at for at, source in enumerate(looks.sources)}
        self._looker = looker
        self._watched = [number_of[source] for source in waiting.sources]

    def offsets_at(self, places: Sequence[int], time_ms: int) -> Ints:
        """See `planner.Times`."""
        return self._looker.offsets_at([self._watched[place] for place in places], time_ms)


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


def _changed(topic: EventTopic, found: str | None) -> StateError:
    done = "deleted" if found is None else "deleted and created again"
    return StateError(
        f"topic {topic.name} was {done} while the job ran",
        remedy="Its offsets mean other records now: begin a new domain with a new checkpoint",
    )
