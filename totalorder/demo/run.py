"""One run from begin to end: broker, sequencer, subscribers, producers, and then the comparison."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from totalorder.broker import LocalBroker
from totalorder.demo.audit import Stamps, read_stamps
from totalorder.demo.crew import Crew, Member
from totalorder.demo.flights import Event, load_events
from totalorder.demo.journal import read_journal
from totalorder.demo.report import Figures, expected_at_least, expected_events, figures, timed
from totalorder.demo.screen import BoardRow, Screen
from totalorder.demo.world import BOARDS, DOMAIN, KAFKA_TOPICS, PRODUCERS, Board, kafka_topic_of, producer_of
from totalorder.kafka_clients import admin, kafka_errors
from totalorder.sequencer.names import DomainTopics

Rows = npt.NDArray[np.void]

_SEQUENCER_TIMEOUT_S = 120.0
_GRANT_TIMEOUT_S = 120.0
_DRAIN_TIMEOUT_S = 120.0
_STANDSTILL_S = 30.0
_END_TIMEOUT_S = 30.0
# What comes after a subscriber has all that it should have is one too many: it gets this long to come.
_EXTRA_S = 1.0
# Every producer must have heard the start before it comes.
_HEAD_START_S = 0.5


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large a run is: so many events, published over so many seconds."""

    events: int
    publish_s: float


@dataclass(frozen=True, kw_only=True)
class _Pair:
    """A board and its two processes."""

    board: Board
    ours: Member
    plain: Member


def run_demo(plan: Plan, console: Console) -> Figures:
    """Run it all, showing progress on `console`; everything that was started is gone when this returns or raises.

    Raises totalorder.Error when a process dies or something takes too long. What was delivered is judged in the result.
    """
    events = load_events(plan.events)
    with Screen(console, _title(events, plan)) as screen, Crew() as crew:
        screen.phase("broker", "Kafka, one node")
        with LocalBroker() as broker:
            run = _Run(plan, events, screen, crew, broker.bootstrap_servers)
            run.start_sequencer()
            run.start_subscribers()
            run.publish()
            run.drain()
            found = run.compare()
            screen.phase("ending", "no process and no file is left")
            run.end()
    return timed(found, screen.seconds)


def _title(events: list[Event], plan: Plan) -> str:
    first, last = (datetime.fromtimestamp(event.time_ms / 1000, UTC) for event in (events[0], events[-1]))
    days = (last - first).total_seconds() / 86_400
    return (
        f"{len(events):,} departures and arrivals of New York's flights from {first:%-d %B %Y} on: "
        f"{days:.1f} days in {plan.publish_s:.0f} s"
    )


class _Run:
    """The phases, in the order in which they are called."""

    def __init__(self, plan: Plan, events: list[Event], screen: Screen, crew: Crew, bootstrap_servers: str) -> None:
        self._plan = plan
        self._events = events
        self._screen = screen
        self._crew = crew
        self._bootstrap_servers = bootstrap_servers
        self._airports = sorted({event.airport for event in events} | {name for board in BOARDS for name in board.ever})
        self._kafka_topic = kafka_topic_of(self._airports)
        self._pairs: list[_Pair] = []
        self._producers: list[Member] = []

    # --- starting -----------------------------------------------------------------------------------------------------

    def start_sequencer(self) -> None:
        """Topics, then `totalorder sequence` on Spark, until it has made the domain's own topics."""
        self._screen.phase("sequencer", "Spark")
        with kafka_errors(self._bootstrap_servers):
            self._admin = admin(self._bootstrap_servers)
            # Events carry their own time, in 2013; by it Kafka would take them for old and delete them.
            settings = {"retention.ms": "-1"}
            self._admin.create_topics(
                {name: {"num_partitions": n, "configs": settings} for name, n in KAFKA_TOPICS.items()}
            )
        arguments = {
            "--domain": DOMAIN,
            "--bootstrap-servers": self._bootstrap_servers,
            "--topics": ",".join(KAFKA_TOPICS),
            "--topic-by": "key",
            "--checkpoint-dir": str(self._crew.folder / "checkpoint"),
        }
        self._sequencer = self._crew.start(
            "sequencer", "sequence", arguments=[w for each in arguments.items() for w in each]
        )
        wanted = {DomainTopics(domain=DOMAIN).stamps, DomainTopics(domain=DOMAIN).grants}
        self._crew.until(
            lambda: wanted <= set(self._admin.list_topics()),
            what="Starting the sequencer",
            timeout_s=_SEQUENCER_TIMEOUT_S,
        )

    def start_subscribers(self) -> None:
        """The boards and their plain twins, until each has its grant, and the producers, until they can begin."""
        self._screen.phase(
            "subscribers", f"{len(BOARDS)} boards, {len(BOARDS)} plain consumers, {len(PRODUCERS)} producers"
        )
        self._pairs = [self._start_board(board) for board in BOARDS]
        self._producers = [self._start_producer(producer.name) for producer in PRODUCERS]
        self._screen.boards(self._rows)
        everyone = [pair.ours for pair in self._pairs] + [pair.plain for pair in self._pairs] + self._producers
        self._crew.until(
            lambda: all(member.status.get("ready") for member in everyone),
            what="Starting subscribers and producers",
            timeout_s=_GRANT_TIMEOUT_S,
        )

    def _start_board(self, board: Board) -> _Pair:
        spec = {
            "id": board.id,
            "domain": DOMAIN,
            "bootstrap_servers": self._bootstrap_servers,
            "airports": sorted(board.airports),
            "all_airports": self._airports,
            "kafka_topics": sorted({self._kafka_topic[airport] for airport in board.ever}),
        }
        members = [
            self._crew.start(f"{role}-{board.id}", role, journal=str(self._journal(role, board.id)), **spec)
            for role in ("board", "plain")
        ]
        return _Pair(board=board, ours=members[0], plain=members[1])

    def _start_producer(self, name: str) -> Member:
        path = self._crew.folder / f"{name}.events"
        index = {airport: number for number, airport in enumerate(self._airports)}
        with path.open("w", encoding="utf-8") as file:
            for event in self._events:
                if producer_of(event) == name:
                    where = (self._kafka_topic[event.airport], index[event.airport], event.airport)
                    row = (round(self._due_s(event), 4), *where, event.time_ms, event.to_json().decode())
                    file.write(json.dumps(row) + "\n")
        return self._crew.start(
            f"producer-{name}",
            "produce",
            bootstrap_servers=self._bootstrap_servers,
            events=str(path),
            journal=str(self._journal("produce", name)),
        )

    def _due_s(self, event: Event) -> float:
        """Seconds after the start: the flights' own time, compressed, so nights are quiet and afternoons are not."""
        first, last = self._events[0].time_ms, self._events[-1].time_ms
        return (event.time_ms - first) / max(last - first, 1) * self._plan.publish_s

    # --- running ------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """All producers, each at its own pace; half-way one board changes its airports."""
        self._screen.phase("publishing")
        start = time.time() + _HEAD_START_S
        for producer in self._producers:
            producer.tell(start=start)
        changing = [pair for pair in self._pairs if pair.board.later is not None]

        def tick() -> None:
            if changing and time.time() - start > self._plan.publish_s / 2:
                self._change(changing.pop())
            count = sum(producer.status.get("count", 0) for producer in self._producers)
            self._screen.note(f"{count:,} of {len(self._events):,} events", (count, len(self._events)))

        self._crew.until(
            lambda: all(producer.status.get("done") for producer in self._producers) and not changing,
            what="Publishing",
            timeout_s=2 * self._plan.publish_s + _DRAIN_TIMEOUT_S,
            tick=tick,
        )
        self._published = np.concatenate([read_journal(self._journal("produce", each.name)) for each in PRODUCERS])
        self._screen.note(f"{len(self._published):,} events acknowledged")

    def _change(self, pair: _Pair) -> None:
        assert pair.board.later is not None
        for member in (pair.ours, pair.plain):
            member.tell(airports=sorted(pair.board.later))

    def drain(self) -> None:
        """Wait until every board has what it must have at least, every stamp is written, and then the exact number."""
        self._screen.phase("draining")
        least = {pair.board.id: expected_at_least(pair.board, self._published, self._airports) for pair in self._pairs}
        self._wait_for_counts(least)
        self._crew.until(
            lambda: all("changed_at_g" in pair.ours.status for pair in self._pairs if pair.board.later is not None),
            what="The grant of the changed subscription",
            timeout_s=_GRANT_TIMEOUT_S,
        )
        self._changed_at_g = max(pair.ours.status.get("changed_at_g", 0) for pair in self._pairs)
        self._stamps = self._read_stamps()
        g = self._stamps.g_of(self._published["event"])
        self._expected = {
            pair.board.id: expected_events(pair.board, self._published, g, self._airports, self._changed_at_g)
            for pair in self._pairs
        }
        self._wait_for_counts({id_: len(events) for id_, events in self._expected.items()})
        self._screen.note(f"{sum(map(len, self._expected.values())):,} deliveries")

    def _wait_for_counts(self, wanted: dict[str, int]) -> None:
        """Gives up when nothing moves any more: what is missing then is counted, and shown in the end."""
        moved = _Patience(_STANDSTILL_S)

        def tick() -> None:
            moved.saw(sum(_count(pair.ours) + _count(pair.plain) for pair in self._pairs))
            self._screen.note(f"{sum(_count(pair.ours) for pair in self._pairs):,} deliveries")

        self._crew.until(
            lambda: moved.exhausted or all(_count(pair.ours) >= wanted[pair.board.id] for pair in self._pairs),
            what="Delivering the rest",
            timeout_s=_DRAIN_TIMEOUT_S,
            tick=tick,
        )

    def _read_stamps(self) -> Stamps:
        """All stamps, once every event has one; events of airports that nobody shows are stamped too."""
        patience = _Patience(_STANDSTILL_S)
        while True:
            stamps = read_stamps(self._bootstrap_servers, DOMAIN)
            patience.saw(len(stamps.event))
            if len(stamps.event) >= len(self._published) or patience.exhausted:
                return stamps
            self._crew.until(_after(0.5), what="Waiting for stamps", timeout_s=_END_TIMEOUT_S)

    # --- ending -------------------------------------------------------------------------------------------------------

    def compare(self) -> Figures:
        """Ends the subscribers and holds what they wrote down against each other and against what was published."""
        self._screen.phase("comparing", f"{len(self._pairs) * (len(self._pairs) - 1) // 2} pairs of subscribers")
        self._crew.until(_after(_EXTRA_S), what="Waiting for repeated events", timeout_s=_END_TIMEOUT_S)
        everyone = [pair.ours for pair in self._pairs] + [pair.plain for pair in self._pairs] + self._producers
        for member in everyone:
            member.tell(stop=True)
        self._crew.dismiss(everyone, timeout_s=_END_TIMEOUT_S)
        return figures(
            ours=self._delivered("board"),
            plain=self._delivered("plain"),
            expected=self._expected,
            published=self._published,
            stamps=self._stamps,
            changed_at_g=self._changed_at_g,
        )

    def end(self) -> None:
        """Stops the sequencer as an operator would."""
        self._admin.close()
        self._sequencer.terminate()
        self._crew.dismiss([self._sequencer], timeout_s=_END_TIMEOUT_S)

    def _delivered(self, role: str) -> dict[str, Rows]:
        return {pair.board.id: read_journal(self._journal(role, pair.board.id)) for pair in self._pairs}

    def _journal(self, role: str, name: str) -> Path:
        return self._crew.folder / f"{role}-{name}.journal"

    def _rows(self) -> Iterator[BoardRow]:
        for pair in self._pairs:
            ours = pair.ours.status
            yield BoardRow(
                board=pair.board,
                state=ours.get("state", ""),
                ours=_count(pair.ours),
                plain=_count(pair.plain),
                last=ours.get("last", ""),
            )


def _count(member: Member) -> int:
    return int(member.status.get("count", 0))


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


class _Patience:
    """Ends when a number has not changed for a while."""

    def __init__(self, standstill_s: float) -> None:
        self._standstill_s = standstill_s
        self._number = -1
        self._since = time.monotonic()

    def saw(self, number: int) -> None:
        """The number as it is now."""
        if number != self._number:
            self._number, self._since = number, time.monotonic()

    @property
    def exhausted(self) -> bool:
        """Whether it has stood still for too long."""
        return time.monotonic() - self._since > self._standstill_s
