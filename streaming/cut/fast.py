"""Ranges read by librdkafka's batch call and compiled code: a quarter of the time of a plain loop over messages.

A partition is fetched while a plan asks for it, and beyond that while there is a backlog of it: what comes behind a
range is kept for the next one. So a partition without events costs nothing, and no long poll delays the next start.

Between plans a partition is paused, not stopped. A stop waits for librdkafka's thread, and each start wakes up the one
that fetches, which asks for what has been started so far: of a hundred partitions a few at a time. All that were paused
go on at once.
"""

import ctypes
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES
from totalorder.streaming.cut import messages
from totalorder.streaming.cut.failures import Silence, Trouble
from totalorder.streaming.cut.librdkafka import Addresses, Client, Message
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.records import NONE, Names, OnQuiet, Place, Records, by_place

MOST = 20_000
"""Messages of one batch call."""
BACKLOG = 1_000
"""Offsets behind a range from which on the partition is fetched further."""
MAX_KEPT = 500_000
"""Records that are kept for later ranges, all partitions together."""
AHEAD_FROM = 16
"""Records of a range from which on it is asked whether there is a backlog behind it: that takes a look at a partition.
"""
_RECORD_BYTES = 32
"""A control record's value counts as so many records as fill its room."""
IDLE_S = 10.0
"""A reader that nobody asked for so long reads ahead no further."""
FORGOTTEN_S = 600.0
"""A partition that no plan had for so long is let go: else a worker would keep, and librdkafka ask for, all topics that
ever were.
"""
SPARED_READS = 50
"""So many reads are done without reading ahead when that came to nothing: another worker had the range behind."""
_FIRST_WAIT_MS, _LONGEST_WAIT_MS = 1, 20
_TEXT_BYTES = 1_000


@dataclass
class _Held:
    """What is known of a partition: all of `begin` to before `end`. `kept` has the records, and the names of the plan
    during which they came: the next one counts names anew. librdkafka has it started when it is fetched or paused.
    `broker` is the one that the last records came from, `used_s` when a plan had it last.
    """

    topic_id: str
    begin: int
    end: int
    is_fetched: bool = False
    is_paused: bool = False
    broker: int = -1
    kept: list[tuple[Records, Names]] = field(default_factory=list)
    used_s: float = field(default_factory=time.monotonic)

    @property
    def is_ahead(self) -> bool:
        """Whether more was read of it than was asked for, or is going to be."""
        return self.is_fetched or bool(self.kept)

    def taken(self, end: int, names: Names) -> Iterator[Records]:
        """Takes out what is known before an offset, with topics as `names` counts them."""
        parts, self.kept = self.kept, []
        self.begin = min(end, self.end)
        for records, counted in parts:
            place, count = int(np.searchsorted(records.offset, end)), len(records.offset)
            if place:
                part = records.part(0, place)
                yield part if counted is names else part._replace(topic=names.recoded(part.topic, counted))
            if place < count:
                self.kept.append((records.part(place, count), counted))


class _Run(NamedTuple):
    """Messages of one partition that follow each other, or one error, which says that all before `offset` was seen.

    `broker` is the id of the one that they came from.
    """

    place: Place
    broker: int
    records: Records | None
    offset: int


class FastReader:
    """A `Reader`."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        """`settings`: librdkafka's."""
        self._trouble = Trouble()
        # With a group a client would look for its coordinator, and might not be allowed to.
        ungrouped = {name: value for name, value in settings.items() if name != "group.id"}
        self._client = Client(ungrouped, self._trouble.of_client)
        self._held: dict[Place, _Held] = {}
        self._messages = np.zeros(MOST, dtype=np.uint64)
        self._columns = messages.Columns.of_size(MOST)
        self._room = np.zeros(3, dtype=np.uint64)
        self._spared = 0
        self._tidy_s = 0.0
        self._lock = threading.Lock()
        self._is_used = False
        self._idle: threading.Timer | None = None

    def read(self, plan: ReadPlan, names: Names, on_quiet: OnQuiet) -> Iterator[tuple[int, Records]]:
        """See `Reader`."""
        places = by_place(plan)
        with self._used():
            self._tidy(places)
            for place in [place for place, held in self._held.items() if held.is_ahead and place not in places]:
                self._leave(place)
            for place, at in places.items():
                for records in self._begin(place, plan.ranges[at], names):
                    yield at, records
            yield from self._rest(plan, names, places, on_quiet)
            self._spared = max(0, self._spared - 1)

    def forget(self, topic: str) -> None:
        """See `Reader`."""
        for place in [place for place in self._held if place[0] == topic]:
            self._drop(place)

    def close(self) -> None:
        """See `Reader`."""
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            self._is_used = True
        self._drop_all()
        self._client.close()

    @contextmanager
    def _used(self) -> Iterator[None]:
        """Within, nothing but the caller changes what is held; behind it, what is read ahead is let go in time."""
        with self._lock:
            if self._idle is not None:
                self._idle.cancel()
            self._is_used = True
        try:
            yield
        except BaseException:  # what was read may have been handed out, or not
            self._drop_all()
            raise
        finally:
            self._is_used = False
            if any(held.is_fetched for held in self._held.values()):
                self._idle = threading.Timer(IDLE_S, self.release)
                self._idle.daemon = True
                self._idle.start()

    def release(self) -> None:
        """Reads ahead no further, unless somebody reads."""
        with self._lock:
            if not self._is_used:
                self._drop_all()

    # --- partitions ---------------------------------------------------------------------------------------------------

    def _tidy(self, places: Collection[Place]) -> None:
        """Now and then lets go of what no plan had for long."""
        now_s = time.monotonic()
        if now_s < self._tidy_s:
            return
        self._tidy_s = now_s + FORGOTTEN_S
        for place in [place for place, held in self._held.items() if held.used_s < now_s - FORGOTTEN_S]:
            self._drop(place)
        self._client.keep({topic for topic, _ in (*self._held, *places)})

    def _begin(self, place: Place, wanted: Range, names: Names) -> Iterator[Records]:
        """Makes a partition ready for a range; what is known of it already."""
        held = self._held.get(place)
        if held is None or (held.topic_id, held.begin) != (wanted.topic_id, wanted.begin):
            self._leave(place)
            held = self._held[place] = _Held(wanted.topic_id, wanted.begin, wanted.begin)
        held.used_s = time.monotonic()
        yield from held.taken(wanted.end, names)

    def _fetch(self, places: Collection[Place]) -> None:
        """Has partitions fetched from where they are known to.

        Of those that go on, one for each broker is stopped and started. The stop waits until what was paused before is
        paused: to go on means nothing to one that is not. The start wakes up the thread that fetches from there.
        """
        resumed = [place for place in places if self._held[place].is_paused]
        first = {self._held[place].broker: place for place in resumed}
        started = [place for place in places if not self._held[place].is_fetched and not self._held[place].is_paused]
        for place in first.values():
            self._stop(place)
        self._client.resume([place for place in resumed if self._held[place].is_paused])
        for place in (*started, *first.values()):
            self._client.start(*place, self._held[place].end)
        for place in (*resumed, *started):
            self._held[place].is_fetched, self._held[place].is_paused = True, False

    def _end(self, places: Collection[tuple[Place, Range]]) -> None:
        """Fetches partitions further only where there is a backlog of them."""
        over = [place for place, wanted in places if self._held[place].is_fetched and not self._goes_on(place, wanted)]
        self._pause(over)

    def _goes_on(self, place: Place, wanted: Range) -> bool:
        if self._spared or wanted.end - wanted.begin < AHEAD_FROM:
            return False
        return self._client.high_watermark(*place) >= self._held[place].end + BACKLOG

    def _pause(self, places: Collection[Place]) -> None:
        if places:
            self._client.pause(places)
        for place in places:
            self._held[place].is_fetched, self._held[place].is_paused = False, True

    def _leave(self, place: Place) -> None:
        """Drops a partition of which something else is read now."""
        if place in self._held and self._held[place].is_fetched:
            self._spared = SPARED_READS
        self._drop(place)

    def _stop(self, place: Place) -> None:
        held = self._held[place]
        if held.is_fetched or held.is_paused:
            self._client.stop(*place)
        if held.is_paused:  # else it would be so when it is started again
            self._client.resume([place])
        held.is_fetched = held.is_paused = False

    def _drop(self, place: Place) -> None:
        if place in self._held:
            self._stop(place)
            del self._held[place]

    def _drop_all(self) -> None:
        for place in list(self._held):
            self._drop(place)

    # --- messages -----------------------------------------------------------------------------------------------------

    def _rest(
        self, plan: ReadPlan, names: Names, places: Mapping[Place, int], on_quiet: OnQuiet
    ) -> Iterator[tuple[int, Records]]:
        """Fetches what of the ranges is not known yet."""
        missing = {place: plan.ranges[at] for place, at in places.items()}
        self._settle(missing, places)
        self._fetch(missing)
        wait_ms, silence = _FIRST_WAIT_MS, Silence(plan, on_quiet)
        while missing:
            came = set[Place]()
            for run in self._poll(plan, names, missing, wait_ms):
                for records in self._took(run, missing, came, names):
                    yield places[run.place], records
            if came or self._look_behind(missing, came):
                wait_ms = _FIRST_WAIT_MS
                silence.begin()
                self._settle(missing, came)
            else:
                wait_ms = min(2 * wait_ms, _LONGEST_WAIT_MS)
                self._bear(plan, missing, silence)
            self._bound_kept(missing)

    def _settle(self, missing: dict[Place, Range], came: Iterable[Place]) -> None:
        """Takes out what is complete of what came further."""
        done = [(place, missing.pop(place)) for place in came if self._held[place].end >= missing[place].end]
        for place, wanted in done:
            self._held[place].begin = wanted.end
        self._end(done)

    def _bear(self, plan: ReadPlan, missing: Mapping[Place, Range], silence: Silence) -> None:
        """Nothing came: hears why, and whether that may pass."""
        self._client.hear()
        self._trouble.raise_refusal(plan.bootstrap_servers)
        if silence.is_over():
            parts = [(wanted, self._held[place].end) for place, wanted in missing.items()]
            raise self._trouble.silent(plan, parts)

    def _look_behind(self, missing: Mapping[Place, Range], came: set[Place]) -> bool:
        """Behind the last record there may be markers of transactions only: they come with no message."""
        for place, position in zip(missing, self._client.positions(missing), strict=True):
            if position is not None and position > self._held[place].end:
                self._held[place].end = position
                came.add(place)
        return bool(came)

    def _took(self, run: _Run, missing: Mapping[Place, Range], came: set[Place], names: Names) -> Iterator[Records]:
        """Takes note of a run; what of it belongs to the present range. `came`: what is missing and came further."""
        held, wanted = self._held.get(run.place), missing.get(run.place)
        if held is None:
            return
        if run.records is not None:
            place = int(np.searchsorted(run.records.offset, held.end))
            held.kept.append((run.records.part(place, len(run.records.offset)), names))
        if wanted is not None and run.offset > held.end:
            came.add(run.place)
        held.end, held.broker = max(held.end, run.offset), run.broker
        if wanted is not None:
            yield from held.taken(wanted.end, names)

    def _bound_kept(self, missing: Mapping[Place, Range]) -> None:
        """Reads no further ahead when much is kept."""
        if self._kept() > MAX_KEPT:
            self._pause([place for place, held in self._held.items() if held.is_fetched and place not in missing])

    def _kept(self) -> int:
        parts = [records for held in self._held.values() for records, _ in held.kept]
        values_bytes = sum(len(value) for records in parts for value in records.control.values())
        return sum(len(records.offset) for records in parts) + values_bytes // _RECORD_BYTES

    def _poll(self, plan: ReadPlan, names: Names, missing: Mapping[Place, Range], wait_ms: int) -> list[_Run]:
        """Waits for messages of what is missing, and gives them back when they are read."""
        count = self._client.poll(self._messages, MOST, 0)
        if not count:  # asked for more than come, librdkafka would wait for all of the time
            wanted = sum(part.end - self._held[place].end for place, part in missing.items())
            count = self._client.poll(self._messages, min(wanted, MOST), wait_ms)
        got = self._messages[:count]
        try:
            return list(self._runs(got, plan, names, missing))
        finally:
            messages.destroy(got)

    def _runs(self, got: Addresses, plan: ReadPlan, names: Names, missing: Mapping[Place, Range]) -> Iterator[_Run]:
        named, _kept_alive = _named(plan.topic_by)
        runs = messages.read(got, named, self._room, self._columns)
        for begin, end in pairwise([*self._columns.begin[:runs].tolist(), len(got)]):
            message = Message.from_address(int(got[begin]))
            topic = self._client.topic_name(message.topic) if message.topic else ""
            place, broker = (topic, message.partition), self._client.broker(int(got[begin]))
            if message.err:
                yield from self._error(message, place, broker, missing)
            else:
                records = self._records(place, got[begin:end], slice(begin, end), plan, names)
                yield _Run(place, broker, records, int(records.offset[-1]) + 1)

    def _records(self, place: Place, got: Addresses, part: slice, plan: ReadPlan, names: Names) -> Records:
        columns = self._columns
        filled = (columns.offset, columns.timestamp_ms, columns.crc)
        offset, timestamp_ms, crc = (column[part].copy() for column in filled)
        topic, control = np.full(len(offset), NONE, dtype=np.int64), dict[int, bytes]()
        if place[0] == plan.control:
            values = (Message.from_address(address).value(MAX_CONTROL_BYTES + 1) for address in got.tolist())
            control = dict(enumerate(values))
        elif plan.topic_by != "topic":
            found = zip(columns.named[part].tolist(), columns.named_size[part].tolist(), strict=True)
            topic[:] = [names.code(ctypes.string_at(at, size)) if at else NONE for at, size in found]
        return Records(offset, timestamp_ms, crc, topic, control)

    def _error(self, message: Message, place: Place, broker: int, missing: Mapping[Place, Range]) -> Iterator[_Run]:
        code, text = message.err, message.value(_TEXT_BYTES).decode(errors="replace")
        wanted, held = missing.get(place), self._held.get(place)
        if held is None:
            self._trouble.of_client(code, text)
        elif wanted is not None:
            yield _Run(place, broker, None, self._trouble.of_partition(code, text, message.offset, wanted, held.end))
        if held is not None and self._trouble.is_final(code) and message.offset >= held.end:
            self._stop(place)  # once it is wanted from there, it is tried anew


def _named(topic_by: str) -> tuple[messages.Named, object]:
    """What names events' pub/sub topics, and what must be kept alive for it."""
    if not topic_by.startswith("header:"):
        return messages.Named(topic_by == "key", 0), None
    name = ctypes.create_string_buffer(topic_by.removeprefix("header:").encode())
    return messages.Named(False, ctypes.addressof(name)), name
