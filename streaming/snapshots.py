"""The driver's part of snapshots: it asks for one now and then, marks it when it is whole, and takes out older ones.

It asks by the checkpoint's own claim, written to control once more. Every shard tells its state behind the batch that
has that record, in the same output as the batch's stamps. When Spark has committed the batch, all of it is on Kafka;
then the mark says so, with what only the driver knows, and what stands on `<domain>.state` before the snapshot is of no
use any more. Killed in between, it leaves the older snapshot.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable, Error, StateError
from totalorder.sequencer.snapshot import SnapshotMark, encode_mark
from totalorder.streaming import claims, reading, writing
from totalorder.streaming.checkpoint import newest_planned, offsets_at, planned_end
from totalorder.streaming.progress import BatchProgress
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.store import Store
from totalorder.streaming.topics import Topics

FIRST_S, EVERY_S = 60.0, 600.0
"""From the start to the first snapshot, and from one to the next, where there was a batch."""
_PROBE = (("kind", b"probe"), ("version", b"1"))
_AGAIN_S = 2.0
"""From a broker that did not answer to the next try."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Where the request stands on control, and where state and stamps ended before it."""

    at: int
    state_end: int
    stamps_ends: tuple[int, ...]


class Snapshots:
    """Those of one run of the job. `note` takes each finished batch; when something `is_due`, `see_to_it` does it.

    `keys` are the prints of its control keys (signing.py). What goes wrong with a snapshot is said, and ends no job.
    """

    def __init__(
        self, settings: Settings, log: Any, *, keys: tuple[str, ...] = (), now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings, self._log, self._keys, self._now_s = settings, log, keys, now_s
        self._next_s = now_s() + FIRST_S
        self._asked: _Asked | None = None
        self._told: BatchProgress | None = None
        self._newest = self._marked = 0

    def note(self, batch: BatchProgress) -> None:
        """Takes note of a finished batch."""
        self._newest, asked_at = batch.figures["batch"], batch.figures["asked_at"]
        if self._asked is not None and asked_at is not None and asked_at >= self._asked.at:
            self._told, self._next_s = batch, self._now_s()

    @property
    def is_due(self) -> bool:
        """Whether there is something to be done."""
        return self._now_s() >= self._next_s and (self._told is not None or self._newest > self._marked)

    def see_to_it(self, record: DomainRecord, store: Store, topics: Topics) -> None:
        """Does what is due. BrokerUnavailable, and then it is due again in a moment."""
        self._next_s = self._now_s() + _AGAIN_S
        try:
            self._see_to_it(record, store, topics)
        except BrokerUnavailable:
            raise
        except Error as error:
            self._told = self._asked = None
            self._log.warning(
                "no snapshot",
                topic=self._settings.own_topics.state,
                reason=error.what,
                remedy="Allow the sequencer to read and write there, else a lost checkpoint may be lost for good",
            )
        self._next_s = self._now_s() + EVERY_S

    def _see_to_it(self, record: DomainRecord, store: Store, topics: Topics) -> None:
        if self._told is not None and self._asked is not None:
            self._mark(self._told, self._asked, record, store, topics)
            self._told = self._asked = None
        else:
            self._asked = self._ask(record)

    def _ask(self, record: DomainRecord) -> _Asked:
        """Once it asks, the workers must be able to write there: so it tries first."""
        writing.write(self._settings, self._settings.own_topics.state, b"", _PROBE)
        state_end, stamps_ends = self._ends()
        return _Asked(at=claims.repeat(self._settings, record), state_end=state_end, stamps_ends=stamps_ends)

    def _mark(self, told: BatchProgress, asked: _Asked, record: DomainRecord, store: Store, topics: Topics) -> None:
        try:
            mark = self._mark_of(told, asked, record, store)
        except StateError as error:  # Spark has removed that part of its log: the driver was late
            self._log.warning("snapshot left out", batch=told.figures["batch"], reason=error.what)
            return
        topic, wire = self._settings.own_topics.state, encode_mark(mark)
        writing.write(self._settings, topic, wire.value, wire.headers)
        self._marked = mark.batch
        try:
            topics.trim(topic, asked.state_end)
        except BrokerUnavailable:
            raise
        except Error as error:
            self._log.warning(
                "older snapshots stay",
                topic=topic,
                reason=error.what,
                remedy="Allow the sequencer to delete records there, else that topic grows",
            )

    def _mark_of(self, told: BatchProgress, asked: _Asked, record: DomainRecord, store: Store) -> SnapshotMark:
        settings = self._settings
        end = planned_end(store, record, told.planned, settings.checkpoint_dir)
        _, stamps_ends = self._ends()
        # What a batch writes, it writes when it is planned: so these are the batch's own ends only if it is the newest.
        is_last = newest_planned(store) == told.planned
        return SnapshotMark(
            domain=settings.domain,
            incarnation=record.incarnation,
            batch=told.figures["batch"],
            shards=settings.shards,
            cut=end.cut,
            ends=offsets_at(record, end),
            starts=record.starts,
            topic_order=record.orders[end.order] if end.order >= 0 else (),
            stamps_begins=asked.stamps_ends,
            stamps_ends=stamps_ends if is_last else None,
            keys=self._keys,
        )

    def _ends(self) -> tuple[int, tuple[int, ...]]:
        """Where state ends, and each stamps partition."""
        names, partitions = self._settings.own_topics, self._settings.stamps_partitions
        with reading.reader(self._settings) as consumer:
            held = reading.held(consumer, {names.state: 1, names.stamps: partitions})
        ends = {(at.topic, at.partition): end for at, (_, end) in held.items()}
        return ends[names.state, 0], tuple(ends[names.stamps, number] for number in range(partitions))
