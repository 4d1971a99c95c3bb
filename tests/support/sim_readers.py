"""Readers of a finished simulated world, whose job is down, and subscribers that come late, when it runs again: what
they give, against the records of the batches.
"""

import random
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import Any, NamedTuple
from unittest.mock import patch

from sim_kafka import SimTransport
from sim_truth import Item, Truth
from sim_world import World

from totalorder.errors import BatchesMissing, EventsLost
from totalorder.sequencer.wire.control import Grant, decode_answer
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost, Position, Reader, Subscriber, reader, stamps_log
from totalorder.subscriber.reader_session import ReaderSettings
from totalorder.subscriber.transport import Partition

READERS = 3
"""Of each world that is looked at."""


def check_readers(world: World, truth: Truth) -> int:
    """AssertionError where one gives something else than π restricted to its topics; how many events they gave."""
    rng = random.Random(f"{world.seed} readers")
    most = rng.choice([1, 5, 50_000])
    smaller = partial(ReaderSettings, max_waiting=most)
    with patch.object(reader, "ReaderSettings", smaller), patch.object(stamps_log, "_MOST_WAITING", most):
        given = sum(_ReaderCheck(world, truth, rng).check() for _ in range(READERS))
        return given + (_LateCheck(world, truth, rng).check_late() if world.domain.min_subscriptions == 1 else 0)


class _Owed(NamedTuple):
    items: list[Item]
    stops: bool
    """Whether a loss comes behind them, and ends it."""


class _ReaderCheck:
    patterns = True

    def __init__(self, world: World, truth: Truth, rng: random.Random) -> None:
        self.world, self.truth, self.rng, self.kafka = world, truth, rng, world.kafka
        self.topics = set(world.some_topics())
        self.everything = self.patterns and rng.random() < 0.2
        self.skips = rng.random() < 0.7
        partitions = {truth.partition_of(topic) for topic in self.topics}
        if self.everything:
            self.topics, partitions = set(world.topics), set(range(world.domain.stamps_partitions))
        self.items = sorted((item for item in [*truth.items, *truth.losses] if self._chosen(item)), key=lambda i: i.g)
        self.first_batch = max(self._first_batch(number) for number in partitions)
        self.first_g = truth.batches[self.first_batch - 2].g if self.first_batch > 1 else 0

    def check(self) -> int:
        start, afters, certain = self._start()
        after = max(min(afters), self.first_g if start == "earliest" else 0)
        until, through = self._until(max(afters))
        try:
            reader = self._reader(start, until)
        except EventsLost:
            assert not certain, f"from {start} nothing is lost"
            return 0
        assert reader.position.g in afters, f"from {start} begins at {reader.position}, and not at one of {afters}"
        after = max(after, reader.position.g)
        expected = self._owed([item for item in self.items if after < item.g <= through])
        got: list[Any] = []
        try:
            assert self._is_stopped(got, reader) == expected.stops, f"from {start} to {until}"
        except BatchesMissing:  # a log that begins with what was written late told of a beginning that it has not
            assert not certain, f"from {start} no stamps are missing"
            return 0
        assert [_said(event) for event in got] == [self._true(item) for item in expected.items], (
            f"from {start} to {until}"
        )
        for event, item in zip(got, expected.items, strict=True):
            if isinstance(event, Event):
                assert (event.n, event.topic, event.value) == (item.n, item.topic, item.value)
        assert [event.sequence for event in got] == list(range(1, len(got) + 1))
        return len(got)

    def _owed(self, items: list[Item]) -> "_Owed":
        """All of them; for who does not skip, those before the first that is gone."""
        before = list(items) if self.skips else list(takewhile(lambda item: not self._is_gone(item), items))
        return _Owed(before, len(before) < len(items))

    def _is_stopped(self, got: list[Any], events: Iterable[Any]) -> bool:
        """Takes what comes; whether a loss ended that. BatchesMissing where stamps are."""
        try:
            for event in events:
                got += [event]
        except BatchesMissing:
            raise
        except EventsLost:
            return True
        return False

    def _reader(self, start: Any, until: Any) -> Reader[Any]:
        chosen: dict[str, Any] = {"pattern": ".*"} if self.everything else {"topics": sorted(self.topics)}
        transport = SimTransport(self.kafka, self.rng, lambda _: None, most=self.rng.choice([1, 3, 20]))
        return Reader(
            **chosen,
            domain=self.world.domain.name,
            start=start,
            until=until,
            on_lost="skip" if self.skips else "fail",
            max_buffered=self.rng.choice([1, 3, 100]),
            transport=transport,
            clock=lambda: 0.0,
            wall_clock=lambda: 2e9,
        )

    # --- where it begins and ends -------------------------------------------------------------------------------------

    def _start(self) -> tuple[Any, set[int], bool]:
        """What it is told, behind which g that may be, and whether it can begin there for certain."""
        batches = self.truth.batches
        last_g = batches[-1].g if batches else 0
        kind = self.rng.choice(["earliest", "position", "time", "now"])
        if kind == "earliest":
            gone = [item.g for item in self.items if self._is_gone(item) and (item.lost_to or item.g > self.first_g)]
            # Of what comes before the first stamps it is not known how far it goes.
            return "earliest", {max(gone, default=0)}, True
        if kind == "now":
            return "now", {last_g}, True
        if kind == "time" and batches:
            batch = self.rng.choice(batches)
            # The job's clock may fall back, and its batches be written again: then it may begin earlier.
            earlier = {one.g for one in batches if one.time_ms < batch.time_ms}
            return datetime.fromtimestamp(batch.time_ms / 1000, UTC), {0, *earlier}, False
        g = self.rng.randint(0, last_g)
        whole = [one.number for one in batches if one.g <= g]
        return self._position(g), {g}, self.first_batch <= max(whole, default=0) or self.first_batch == 1

    def _until(self, after: int) -> tuple[Any, int]:
        last = self.truth.batches[-1].g if self.truth.batches else 0
        if self.rng.random() < 0.5 or after > last:
            return "now", last
        g = self.rng.randint(after, last)
        return self._position(g), g

    def _position(self, g: int) -> Position:
        return Position(self.world.domain.name, self.kafka.ids[self.world.names.stamps], g)

    def _first_batch(self, number: int) -> int:
        """The first one from which on a stamps partition has all, from its first part on; behind all, if it has none.

        A log may begin with what was written late once more: what comes behind that need not be the next batch.
        """
        first, last = len(self.truth.batches) + 1, -1
        for record in self.kafka.logs.get(Partition(self.world.names.stamps, number), []):
            headers = dict(record.headers)
            batch = int(headers["batch"] or 0)
            if last < 0 or batch > last + 1:
                first = batch + (headers["part"] != b"0")
            last = max(last, batch)
        return first

    # --- what is true -------------------------------------------------------------------------------------------------

    def _chosen(self, item: Item) -> bool:
        """A loss concerns whom its topic, or where nothing says that Kafka topics name them, all."""
        if self.everything:
            return bool(item.topic or item.lost_to)
        if not item.lost_to:
            return item.topic in self.topics
        return not self._by_topic() or item.partition.topic in self.topics

    def _by_topic(self) -> bool:
        log = self.kafka.logs.get(Partition(self.world.names.grants, 0), [])
        granted = any(isinstance(decode_answer(record.value), Grant) for record in log if record.value is not None)
        return granted and self.world.domain.topic_by == "topic"

    def _is_gone(self, item: Item) -> bool:
        at = item.partition
        is_there = self.kafka.ids.get(at.topic) == at.topic_id
        return item.lost_to > 0 or not is_there or item.offset < self.kafka.begin(at)

    def _true(self, item: Item) -> tuple[int, Source, int, bool]:
        return (item.g, *item.place, self._is_gone(item))


def _said(event: Event | Lost) -> tuple[int, Source, int, bool]:
    source = Source(event.kafka_topic, event.topic_id, event.partition)
    is_lost = isinstance(event, Lost)
    return event.g, source, event.first_offset if isinstance(event, Lost) else event.offset, is_lost


class _LateCheck(_ReaderCheck):
    """A Subscriber that begins in the past, in two processes."""

    patterns = False
    now = 0.0

    def check_late(self) -> int:
        """Like `check`."""
        last = self.truth.batches[-1].g if self.truth.batches else 0
        after = self.rng.randint(0, last)
        whole = [one.number for one in self.truth.batches if one.g <= after]
        certain = self.first_batch <= max(whole, default=0) or self.first_batch == 1
        expected = self._owed([item for item in self.items if item.g > after])
        first = self.rng.randint(0, len(expected.items))
        try:
            subscriber = self._subscriber(self._position(after))
        except EventsLost:
            assert not certain, f"late, from {after} nothing is lost"
            return 0
        got: list[Any] = []
        assert not self._is_stopped(got, self._taken(subscriber, first)), f"late, from {after}"
        rest = self._taken(self._subscriber("saved"), len(expected.items) + 1)
        assert self._is_stopped(got, rest) == expected.stops, f"late, from {after}"
        assert [_said(event) for event in got] == [self._true(item) for item in expected.items], f"late, from {after}"
        return len(got)

    def _subscriber(self, start: Any) -> Subscriber[Any]:
        transport = SimTransport(self.kafka, self.rng, self._tick, most=self.rng.choice([1, 3, 20]))
        return Subscriber(
            sorted(self.topics),
            id="late",
            domain=self.world.domain.name,
            start=start,
            start_timeout_s=1_000,  # a poll takes its time here though something comes, and may bring one record
            on_lost="skip" if self.skips else "fail",
            max_buffered=self.rng.choice([1, 3, 100]),
            control_key=self.world.keys.of("late"),
            transport=transport,
            clock=lambda: self.now,
            wall_clock=lambda: 2e9,
        )

    def _taken(self, subscriber: Subscriber[Any], most: int) -> Iterator[Any]:
        """So many events, acknowledged, of a process that is killed then; fewer when no more come."""
        for _ in range(most):
            if (event := subscriber.poll(30)) is None:
                return
            subscriber.ack(event)
            yield event

    def _tick(self, timeout_s: float) -> None:
        self.now += max(timeout_s, 0.001)
        self.world.sequencer.time_ms += max(1, round(timeout_s * 1000))
        self.world.sequencer.run()

    def _by_topic(self) -> bool:
        return self.world.domain.topic_by == "topic"
