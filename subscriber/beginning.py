"""Where reading begins: which stamps and events follow a place in the order, found in Kafka alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from totalorder.errors import BatchesMissing, EventsLost
from totalorder.sequencer.wire.control import Answer, Grant
from totalorder.sequencer.wire.position import Progress, StampsMark
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.delivery.events import GONE
from totalorder.subscriber.delivery.rows import groups
from totalorder.subscriber.position import Position
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.reading.machine import losses_in
from totalorder.subscriber.stamps_log import Others, StampsLog
from totalorder.subscriber.start import Start, ms_of
from totalorder.subscriber.transport import Partition, Transport

_MOST_WALKS = 5
"""So often stamps are walked through to find the earliest while retention takes some of them."""


class Beginning:
    """Looks into a domain's stamps, of so many partitions, as they are when this is made.

    `others`: see StampsLog.
    """

    def __init__(
        self,
        transport: Transport,
        domain: str,
        choice: Choice,
        partitions: int,
        others: Others,
    ) -> None:
        self._transport, self._choice, self._partitions = transport, choice, partitions
        self.log = StampsLog(transport, domain, choice.partitions(partitions), others)

    def find(self, start: Start, answers: Sequence[Answer]) -> tuple[Mapping[int, StampsMark], int]:
        """Where each stamps partition is read from, and the g behind which events of the choice are wanted.

        `answers` are all that grants have. EventsLost where stamps do not reach back so far.
        """
        if start == "now":
            return self.log.last_marks()
        if start == "earliest":
            return self._earliest(answers)
        if isinstance(start, Position):
            after = start.g
            searches = self.log.search(lambda looked: looked.g <= after)
        else:
            from_ms = ms_of(start)
            searches = self.log.search(lambda looked: looked.time_ms < from_ms)
            after = max((search.last.g for search in searches.values() if search.last), default=0)
        return self.log.marks(searches, f"what follows {start}"), after

    def _earliest(self, answers: Sequence[Answer]) -> tuple[Mapping[int, StampsMark], int]:
        """Where everything of the chosen topics is still there, behind what retention has removed of any of them.

        That takes a walk through all stamps: one consistent cut over all topics. Where a log begins with what a
        replaced process of the job has written late, batches are missing behind that: what counts begins there. What
        retention takes meanwhile is before what is earliest.
        """
        behind, after = 0, max((loss.g for loss in losses_in(answers, self._choice)), default=0)
        walks = 0
        while True:
            try:
                marks, first = self.log.first_marks(behind)
                through = self._gone_through(marks, first, after)
                self.log.require_there(marks)
            except BatchesMissing as missing:
                behind = missing.batch - 1
            except EventsLost as lost:
                walks += 1
                if walks == _MOST_WALKS or not self.log.has_moved(lost):
                    raise
            else:
                return marks, max(first, through)

    def _gone_through(self, marks: Mapping[int, StampsMark], first: int, after: int) -> int:
        """Behind which g of all from the marks on, and behind `after`, Kafka has everything of the chosen topics."""
        choice, begins = self._choice, dict[Source, int]()
        for whole in self.log.walk(marks, choice, partitions=self._partitions, after=first):
            rows = whole.rows
            self._learn_begins({whole.sources[at] for at in np.unique(rows.source).tolist()}, begins)
            begin = np.array([begins.get(source, 0) for source in whole.sources], dtype=np.int64)
            gone = rows.g[rows.offset < begin[rows.source]]
            after = max(after, int(gone[-1]) if len(gone) else 0)
        return after

    def _learn_begins(self, sources: Collection[Source], begins: dict[Source, int]) -> None:
        """The first offsets that Kafka has of event partitions; of those that are gone, behind all."""
        new = {source for source in sources if source not in begins}
        ids = {name: self._transport.topic_id(name) for name in sorted({source.topic for source in new})}
        there = [Partition.of(source) for source in sorted(new) if ids[source.topic] == source.topic_id]
        begins |= dict.fromkeys(new, GONE)
        begins |= {at.source: begin for at, begin in self._transport.beginning_offsets(there).items()}

    def progress(self, marks: Mapping[int, StampsMark], after: int, grant: Grant) -> Progress:
        """That of a subscriber that was granted this, and is to have what lies behind `after` too.

        It is as though the set had been in force since then, and its lease had run out at once: what comes before the
        grant is put in order by frontiers. The clock is the grant's, less what lies between.
        """
        clock = {grant.ids[name]: grant.clock[name] for name in grant.topics}
        named = grant.topic_by == "topic"
        sources = {
            source: offset for source, offset in grant.next_offsets.items() if not named or source.topic in grant.topics
        }
        seen: set[int] = set()
        read = set[Source]()
        for whole in self.log.walk(
            marks, self._choice, partitions=self._partitions, after=after, through_batch=grant.batch
        ):
            rows = whole.rows.part(0, int(np.searchsorted(whole.rows.g, grant.g)))
            for topic, at in groups(rows.topic) if len(rows) else ():
                if topic not in seen:
                    clock[topic] = int(rows.n[at][0]) - 1
                    seen.add(topic)
            for number, at in groups(rows.source) if len(rows) else ():
                source = whole.sources[number]
                if source not in read:
                    sources[source] = int(rows.offset[at][0])
                    read.add(source)
        anew = self.log.anew
        return Progress(
            generation=grant.generation,
            switched_g=after,
            g=after,
            topics={grant.ids[name]: name for name in grant.topics},
            clock=clock,
            pending=(),
            sources=sources,
            stamps={
                number: replace(mark, offset=self.log.begins[number], batch=anew[number]) if number in anew else mark
                for number, mark in marks.items()
            },
            stamps_partitions=grant.stamps_partitions,
            min_subscriptions=grant.min_subscriptions,
            topic_by=grant.topic_by,
        )
