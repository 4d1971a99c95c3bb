"""A consumer of kafka-python, and what it reads: told to it in one go, before it is polled."""

from collections.abc import Callable, Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

from kafka import TopicPartition

from totalorder.subscriber.kafka_identities import Place
from totalorder.subscriber.transport import Record

LONGEST_WAIT_MS = 200
IDLE_MS = 500
"""So long the broker holds a fetch where nothing came for a while, and answers at the first byte."""
_VALUE = attrgetter("value")
_PARTITION_MS = 0.2
"""For each partition a fetch takes some 10 µs of a core, of this process and of the broker: what waits longer the more
partitions it asks for keeps its share."""


class Reader:
    """A consumer and the partitions that it reads."""

    def __init__(
        self,
        consumer: Any,
        another_consumer: Callable[[], Any],
        *,
        most: int,
        most_bytes: int,
        most_kept: int = 0,
        wait_ms: float | None = None,
        rests: bool = False,
    ) -> None:
        """`most`: records are returned at a time, and up to `most_kept` are kept for the next times; of values that are
        no larger than those before these are at most `most_bytes`. `wait_ms`: for so long at least the broker holds a
        fetch, and longer where partitions are many; None: as the consumer was told. With `rests` it is longer while
        the reader `is_idle`, and then the first byte ends it. `another_consumer` makes one like it, for `renew`.
        """
        self.consumer, self._another_consumer = consumer, another_consumer
        self._most, self._most_bytes, self._most_kept = most, most_bytes, most_kept
        self._wait_ms, self._rests = wait_ms, rests
        self.is_idle = False
        """Whether nothing came for a while."""
        self._active = 0
        """So many partitions are assigned."""
        self._under_way = 0
        """So many fetches are, if the last poll brought nothing."""
        self._value_bytes = most_bytes
        """Of the largest one in the last poll that brought some; before that as though each was large."""
        self.next: dict[Place, int] = {}
        """Of every partition that is read: the offset behind the last record that was returned."""
        self._kept: dict[Place, list[Record]] = {}
        """What came with those and is to be returned yet, in the order of their turns."""
        self._tell_from: dict[Place, int] = {}
        """Where the consumer has yet to be told, or told again, to read from."""
        self._paused: set[Place] = set()
        """Not assigned for the time being. The consumer's own pause() is of no use: kafka-python 3.0.12 parks what it
        has fetched of a paused partition, and after resume() may neither return it nor fetch again, for ever."""
        self._changed = False
        self.ids: dict[str, str] = {}
        """Kafka's ids of the topics that were read: one that is created again under its name has another."""
        self._suit_fetches()

    def read(self, at: Place, offset: int) -> None:
        self._kept.pop(at, None)
        self._tell_from[at] = self.next[at] = offset
        self._paused.discard(at)
        self._changed = True

    def stop(self, at: Place) -> None:
        self._paused.discard(at)
        if at in self.next:
            del self.next[at]
            for known in (self._kept, self._tell_from):
                known.pop(at, None)
            self._changed = True

    def pause(self, at: Place) -> None:
        if at not in self._paused:
            self._tell_from[at] = self._kept[at][-1].offset + 1 if at in self._kept else self.next[at]
            self._paused.add(at)
            self._changed = True

    def resume(self, at: Place) -> None:
        if at in self._paused:
            self._paused.discard(at)
            self._changed = True

    def is_paused(self, at: Place) -> bool:
        return at in self._paused

    def renew(self) -> None:
        """Goes on with another consumer, and with nothing that the former one has fetched."""
        former, self.consumer = self.consumer, self._another_consumer()
        self._suit_fetches()
        self._tell_from = dict(self.next)
        self._kept.clear()
        self._changed = True
        former.close(autocommit=False, timeout_ms=0)

    def poll(self, timeout_s: float) -> Mapping[Place, list[Record]]:
        self._tell()
        if timeout_s == 0 and (not self.next or self._is_awaited()):
            return {}
        self._under_way = 0
        polled = self.consumer.poll(timeout_ms=max(0, round(timeout_s * 1000)), max_records=self._most_polled())
        found = {Place(*at): records for at, records in polled.items()}
        for at, records in found.items():
            self.next[at] = records[-1].offset + 1
            if at.topic not in self.ids and (found_id := self.consumer._cluster.topic_id(at.topic)) is not None:
                self.ids[at.topic] = str(found_id)
        if not found:
            self._under_way = len(self.consumer._fetcher._nodes_with_pending_fetch_requests)
        else:
            values = filter(None, map(_VALUE, chain.from_iterable(found.values())))
            self._value_bytes = max(map(len, values), default=1)
        return found

    def _is_awaited(self) -> bool:
        """Whether a poll has brought nothing, and the same fetches are under way yet: another one would do nothing, and
        takes two turns of kafka-python's thread (3.0.12).
        """
        fetcher = self.consumer._fetcher
        return 0 < self._under_way == len(fetcher._nodes_with_pending_fetch_requests) and not fetcher._completed_fetches

    def _most_polled(self) -> int:
        fits = self._most_bytes // self._value_bytes
        kept = sum(map(len, self._kept.values()))
        return max(1, min(self._most, fits), min(self._most_kept, fits) - kept)

    def keep(self, at: Place, records: list[Record]) -> None:
        """What was polled last of a partition is returned by `take`."""
        self._kept[at], self.next[at] = records, records[0].offset

    def take(self) -> list[list[Record]]:
        """Some of what is kept, by partitions, which take turns; nothing of those that are paused."""
        found: list[list[Record]] = []
        left = self._most
        for at in [at for at in self._kept if at not in self._paused]:
            records = self._kept.pop(at)
            taken, rest = records[:left], records[left:]
            records.clear()  # see KafkaPythonTransport._poll
            found.append(taken)
            left -= len(taken)
            self.next[at] = taken[-1].offset + 1
            if rest:
                self.keep(at, rest)
            if not left:
                break
        return found

    def position(self, at: Place) -> int:
        """The offset to be read next, gaps at the end included; asks nobody."""
        if at in self._kept:
            return self.next[at]
        told = self._tell_from.get(at)
        return told if told is not None else int(self.consumer.position(TopicPartition(*at), timeout_ms=0))

    def positions_to_ask(self) -> dict[Place, int]:
        """Of all of which nothing is kept."""
        return {at: self.position(at) for at in self.next if at not in self._kept}

    def _tell(self) -> None:
        """Hands what changed since the last poll to the consumer, in one go: each assignment walks all partitions."""
        if not self._changed:
            return
        active = [at for at in self.next if at not in self._paused]
        self.consumer.assign([TopicPartition(*at) for at in active])
        for at in active:
            offset = self._tell_from.pop(at, None)
            if offset is not None:
                self.consumer.seek(TopicPartition(*at), offset)
        self._active, self._under_way = len(active), 0
        self._changed = False

    def _suit_fetches(self) -> None:
        """Decides at each fetch how long the broker may hold it: kafka-python 3.0.12 looks into its settings then.

        What came just before is left out of a fetch, and waits for the end of that: so one is held for long only if it
        asks for all that is read. What is begun to be read while it is held waits too.
        """
        if self._wait_ms is None:
            return
        least_ms, fetcher = self._wait_ms, self.consumer._fetcher
        fetchable, many_bytes = fetcher._fetchable_partitions, fetcher.config["fetch_min_bytes"]

        def suited() -> Any:
            found = fetchable()
            may_rest = self._rests and self.is_idle and len(found) == self._active == len(self.next)
            wait_ms = IDLE_MS if may_rest else fetch_wait_ms(least_ms, self._active)
            fetcher.config.update(fetch_max_wait_ms=wait_ms, fetch_min_bytes=1 if may_rest else many_bytes)
            return found

        fetcher._fetchable_partitions = suited


def fetch_wait_ms(least_ms: float, partitions: int) -> int:
    """How long the broker may hold a fetch of so many partitions."""
    return round(max(least_ms, min(LONGEST_WAIT_MS, _PARTITION_MS * partitions)))
