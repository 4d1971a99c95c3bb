"""Many partitions that are read a little at a time: what is paused goes on, at once and from where it was."""

import random
import time
from collections.abc import Callable, Iterator

import pytest
from cut_world import CODECS, Place, World, chunks, plan_of, rows_of, whole

from totalorder.broker import LocalBroker
from totalorder.streaming.cut import consumers
from totalorder.streaming.cut.fast import FORGOTTEN_S, FastReader, _Held
from totalorder.streaming.cut.ranges import ReadPlan

NewTopic = Callable[..., str]
NOW_MS = int(time.time() * 1000) - 10_000_000
SILENCE_S = 20.0
"""What is never fetched again is told of before the test's own time is over."""


def reader_of(broker: LocalBroker) -> FastReader:
    return FastReader(consumers.client_settings(broker.bootstrap_servers, {}))


class Noting:
    """A client of librdkafka's, and which of its calls were made: name and partitions."""

    def __init__(self, reader: FastReader) -> None:
        self.calls: list[tuple[str, list[Place]]] = []
        client = reader._client
        for name in ("start", "stop", "pause", "resume"):
            setattr(client, name, self._noted(name, getattr(client, name)))

    def _noted(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        def noted(*given: object) -> None:
            self.calls.append((name, list(given[0]) if name in ("pause", "resume") else [given[:2]]))  # type: ignore
            call(*given)

        return noted

    def taken(self, name: str) -> list[list[Place]]:
        """The partitions of each call of the name."""
        return [places for called, places in self.calls if called == name]


class Live:
    """Partitions that are written to as they are read; `behind` has where batches ended."""

    def __init__(self, world: World, places: list[Place], chance: random.Random) -> None:
        self.world, self.places, self.chance = world, places, chance
        self.behind = dict.fromkeys(places, 0)

    def plan(self, most: int) -> ReadPlan:
        """Writes to some partitions, and plans all that nobody has read: now and then as aborted or committed."""
        chosen = self.chance.sample(self.places, self.chance.randint(1, most))
        count = self.chance.choice([len(chosen), 3 * len(chosen)])
        rows = [(self.chance.choice(chosen), self.chance.randbytes(9), NOW_MS) for _ in range(count)]
        outcome = self.chance.choice(["plain", "plain", "plain", "commit", "abort"])
        self.world.write(self.chance.choice(CODECS), rows, outcome=outcome)
        wanted = {place: end for place, end in self.world.ends.items() if end > self.behind[place]}
        ranges = [whole(*place, self.behind[place], end) for place, end in wanted.items()]
        self.behind |= wanted
        return plan_of(self.world.servers, ranges, silence_s=SILENCE_S)


@pytest.fixture
def live(broker: LocalBroker, new_topic: NewTopic) -> Live:
    topics = [new_topic("wide", partitions=40) for _ in range(3)]
    return Live(
        World(broker.bootstrap_servers),
        [(topic, partition) for topic in topics for partition in range(40)],
        random.Random(23),
    )


@pytest.fixture
def readers(broker: LocalBroker) -> Iterator[list[FastReader]]:
    made = [reader_of(broker) for _ in range(2)]
    yield made
    for each in made:
        each.close()


@pytest.mark.broker
def test_each_batch_brings_what_came_whoever_read_the_one_before(live: Live, readers: list[FastReader]) -> None:
    """As workers do: one has most batches, another some, and then finds its partitions further than it left them."""
    for _ in range(60):
        plan = live.plan(60)
        reader = live.chance.choice([readers[0], readers[0], readers[0], readers[1]])
        assert rows_of(chunks(plan, reader)) == live.world.expected(plan)


@pytest.mark.broker
def test_a_batch_waits_for_one_stop_and_wakes_the_fetching_once(live: Live, readers: list[FastReader]) -> None:
    reader = readers[0]
    every = [((topic, partition), b"first", NOW_MS) for topic, partition in live.places]
    live.world.write("none", every)
    first = live.plan(1)
    assert rows_of(chunks(first, reader)) == live.world.expected(first)
    for _ in range(10):
        plan = live.plan(100)
        noting = Noting(reader)
        assert rows_of(chunks(plan, reader)) == live.world.expected(plan)
        places = {(part.topic, part.partition) for part in plan.ranges}
        assert len(noting.taken("stop")) <= 1
        (started,) = noting.taken("start")
        (resumed,) = [call for call in noting.taken("resume") if call[:1] != started]
        assert {*started, *resumed} == places
        assert [name for name, _ in noting.calls].index("start") == len(noting.taken("stop")) + len(
            noting.taken("resume")
        ), "the start comes behind: it wakes up the one that fetches"
        assert sorted(place for call in noting.taken("pause") for place in call) == sorted(places)
        assert not any(held.is_fetched for held in reader._held.values())


@pytest.mark.broker
def test_a_partition_that_was_paused_is_read_from_anywhere(live: Live, readers: list[FastReader]) -> None:
    place, world, reader = live.places[0], live.world, readers[0]
    world.write("none", [(place, b"%d" % at, NOW_MS) for at in range(50)])
    for begin, end in ((0, 10), (40, 50), (10, 20), (20, 50), (3, 4), (4, 5)):
        plan = plan_of(world.servers, [whole(*place, begin, end)], silence_s=SILENCE_S)
        assert rows_of(chunks(plan, reader)) == world.expected(plan)


@pytest.mark.broker
def test_what_no_plan_had_for_long_is_let_go_and_read_again_when_it_is_wanted(
    live: Live, readers: list[FastReader]
) -> None:
    """Topics come and go for as long as a worker lives."""
    world, reader, (gone, kept) = live.world, readers[0], (live.places[0], live.places[-1])

    def come_and_be_read(*places: Place) -> None:
        begins = {place: world.ends.get(place, 0) for place in places}
        world.write("none", [(place, b"%d" % at, NOW_MS) for place in places for at in range(3)])
        ranges = [whole(*place, begin, world.ends[place]) for place, begin in begins.items()]
        plan = plan_of(world.servers, ranges, silence_s=SILENCE_S)
        assert rows_of(chunks(plan, reader)) == world.expected(plan)

    come_and_be_read(gone, kept)
    reader._held[gone].used_s -= FORGOTTEN_S
    come_and_be_read(kept)
    assert reader._held.keys() == {gone, kept}, "it is looked at now and then"
    reader._tidy_s = 0.0
    come_and_be_read(kept)
    assert (set(reader._held), set(reader._client._topics)) == ({kept}, {kept[0]})
    come_and_be_read(gone)
    come_and_be_read(gone, kept)
    assert reader._client._topics.keys() == {gone[0], kept[0]}


def test_of_each_broker_one_partition_is_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each broker has a thread that fetches from it, and sleeps unless it is woken up."""
    reader = FastReader({"bootstrap.servers": "127.0.0.1:1", "log_level": "0"})
    calls: list[tuple[str, object]] = []
    for name in ("start", "stop", "resume"):
        monkeypatch.setattr(reader._client, name, lambda *given, name=name: calls.append((name, given)))
    held = {("a", at): _Held("id", 5, 5, is_paused=True, broker=at % 3) for at in range(7)}
    reader._held.update(held)
    reader._held["b", 0] = _Held("id", 1, 1)
    reader._held["b", 1] = _Held("id", 1, 1, is_fetched=True)
    reader._fetch(list(reader._held))
    stopped = [given for name, given in calls if name == "stop"]
    assert sorted(held[given].broker for given in stopped) == [0, 1, 2]  # type: ignore[index]
    (together,) = (given[0] for name, given in calls if name == "resume" and len(given[0]) > 1)  # type: ignore
    assert {*together, *stopped} == held.keys()
    started = {str(given) for name, given in calls if name == "start"}
    assert started == {str(("b", 0, 1)), *(str((*place, 5)) for place in stopped)}  # type: ignore[misc]
    names = [name for name, _ in calls]
    assert names.index("start") > max(at for at, name in enumerate(names) if name in ("stop", "resume"))
    assert names.index("resume") > names.index("stop")
    assert all(each.is_fetched and not each.is_paused for each in reader._held.values())
    reader._held.clear()
    reader.close()
