"""Readers without an end in a simulated world: they read while the job runs, die, and go on from what they kept."""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sim_kafka import SimTransport

from totalorder.errors import BatchesMissing, BrokerUnavailable, EventsLost, SettingsError
from totalorder.subscriber import Event, Lost, Position, Reader
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.stamps_log import LAST_RECORDS
from totalorder.subscriber.transport import Partition, Record

if TYPE_CHECKING:
    from sim_world import World

_QUIET = 3
"""So often in a row nothing comes, and nothing will."""


@dataclass
class Life:
    """One Reader, from where it began on."""

    pattern: str
    """Of the topics that it reads."""
    start: Position | Literal["earliest", "now"]
    cuts: int
    """So many batches were over before it began."""
    is_shown: bool
    """Whether the last of these, or a newer one, is among the last records of a stamps partition that it reads."""
    begin_g: int = 0
    given: list[Event | Lost] = field(default_factory=list, repr=False)
    ended: str = ""

    def reads(self, topic: str) -> bool:
        """Whether it is one of its topics."""
        return bool(topic) and re.fullmatch(self.pattern, topic) is not None


class FollowerTransport(SimTransport):
    """While one waits for Kafka others publish, and the job runs, or dies."""

    def __init__(self, world: "World") -> None:
        super().__init__(world.kafka, world.rng, self._let_others, most=world.rng.choice([1, 3, 20]))
        self._world = world

    def _let_others(self, _: float) -> None:
        if self._world.healing or self.rng.random() > 0.05:
            return
        if self._world.silent:
            raise BrokerUnavailable("no broker")
        (self._world.publish if self.rng.random() < 0.5 else self._world.sequence)()


class Follower:
    """Who reads the same topics again and again, and what it keeps of where it is."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.lives: list[Life] = []
        self.reader: Reader[Event | Lost] | None = None
        self.transport = FollowerTransport(world)
        self._world, self._rng = world, world.rng
        some = sorted(world.some_topics())
        self._pattern = "|".join(some) if self._rng.random() < 0.7 else ".*"
        is_named = self._pattern != ".*" and self._rng.random() < 0.5
        self._chosen: dict[str, Any] = {"topics": some} if is_named else {"pattern": self._pattern}
        self._start: Position | Literal["earliest", "now"] = self._rng.choice(["earliest", "now"])
        self._skips = self._rng.random() < 0.5

    def go_on(self) -> bool:
        """Begins, dies, or takes what has come; whether anything came."""
        if self.reader is None:
            self._begin()
        elif not self._world.healing and self._rng.random() < 0.05:
            self._end("killed")
        else:
            return self._take(self.reader)
        return True

    def _begin(self) -> None:
        life = Life(self._pattern, self._start, len(self._world.sequencer.batches), self._is_present_shown())
        self.transport = FollowerTransport(self._world)
        try:
            self.reader = Reader(
                **self._chosen,
                domain=self._world.domain.name,
                start=life.start,
                on_lost="skip" if self._skips else "fail",
                max_buffered=self._rng.choice([1, 3, 100]),
                transport=self.transport,
                clock=lambda: self._world.now,
                wall_clock=lambda: 2e9,
            )
        except BrokerUnavailable:
            return
        except SettingsError as error:
            # Of a log that ends with much that was written late, that is taken for the present until the job goes on.
            if life.is_shown or "which is the present" not in str(error):
                raise
            return
        except EventsLost:
            # While it reads stamps are kept for it, and not while it does not.
            assert self._world.has("trims"), f"{life}: no stamps are gone"
            self._start = "now"
            return
        life.begin_g = self.reader.position.g
        self.lives.append(life)

    def _is_present_shown(self) -> bool:
        """Whether the last batch that all stamps partitions have had is where a Reader looks for the present."""
        kafka, count = self._world.kafka, self._world.domain.stamps_partitions
        stamps = [Partition(self._world.names.stamps, number) for number in range(count)]
        over = min(max(map(_batch, kafka.ever(at)), default=0) for at in stamps)
        choice = Choice(tuple(self._chosen.get("topics", ())), self._chosen.get("pattern"))
        read = [kafka.logs.get(stamps[number], []) for number in choice.partitions(count)]
        return over <= max((_batch(record) for log in read for record in log[-LAST_RECORDS:]), default=0)

    def _take(self, reader: Reader[Event | Lost]) -> bool:
        life = self.lives[-1]
        try:
            if self._rng.random() < 0.5:
                given = list(reader.poll_batch(self._rng.randint(1, 20)))
            else:
                given = [event for event in [reader.poll()] if event is not None]
        except BrokerUnavailable:
            self._end("silence")
            return True
        except BatchesMissing:
            # Stamps that were gone before it began, where the log begins with what was written late and hides that.
            assert self._world.has("trims"), f"{life}: no stamps are gone"
            assert self._world.has("late"), f"{life} began where stamps are gone"
            assert isinstance(life.start, Position) or not life.is_shown, f"{life} needs nothing of before"
            self._start = "now"
            self._end("unordered")
            return True
        except EventsLost:
            # Of events that are not stamped yet it is not known where a Reader will want them.
            assert self._world.loses_events or self._world.has("trims"), f"{life}: nothing is lost"
            assert not self._skips, f"{life} skips what is lost"
            self._skips = True
            self._end("lost")
            return True
        life.given += given
        assert reader.position.g == (life.given[-1].g if life.given else life.begin_g)
        if given and self._rng.random() < 0.5:
            self._start = reader.position
        return bool(given)

    def _end(self, how: str) -> None:
        assert self.reader is not None
        self.lives[-1].ended = how
        self.reader.close()
        self.reader = None


def _batch(record: Record) -> int:
    return int(dict(record.headers)["batch"] or 0)


class Followers:
    """Those of a world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        number = world.rng.randint(1, 2) if world.has("follows") else 0
        self.all = [Follower(world, f"follower {at}") for at in range(number)]

    @property
    def reading(self) -> list[Follower]:
        """Those whose Reader lives."""
        return [follower for follower in self.all if follower.reader is not None]

    def go_on(self) -> None:
        """One of them."""
        if not self._world.silent:
            self._world.rng.choice(self.all).go_on()

    def settle(self) -> None:
        """All that is stamped is read."""
        for follower in self.all:
            quiet = 0
            for _ in range(3_000):
                came = follower.go_on()
                quiet = 0 if came or not follower.transport.at_ends() else quiet + 1
                if quiet > _QUIET:
                    break
            else:
                raise AssertionError(f"{follower.name} does not come to rest")
