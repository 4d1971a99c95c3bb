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
from totalorder.demo.audit import Stamps, read_grants, read_stamps
from totalorder.demo.flights import Event, load_events
from totalorder.demo.journal import read_journal
from totalorder.demo.processes import Process, Processes
from totalorder.demo.proof import Proof
from totalorder.demo.report import Figures, expected_events, figures, timed
from totalorder.demo.screen import BoardRow, Screen
from totalorder.demo.world import BOARDS, DOMAIN, KAFKA_TOPICS, PRODUCERS, Board, kafka_topic_of, producer_of
from totalorder.java import SHORT_RUN
from totalorder.kafka_clients import admin, kafka_errors

Rows = npt.NDArray[np.void]

SEQUENCER_READY = "sequencer ready"
"""What `totalorder sequence` logs when the first batch may come."""
_SEQUENCER_TIMEOUT_S = 300.0
_GRANT_TIMEOUT_S = 240.0
_DRAIN_TIMEOUT_S = 240.0
_STANDSTILL_S = 60.0
_END_TIMEOUT_S = 60.0
_PROOF_TIMEOUT_S = 300.0
# What comes after a subscriber has all that it should have is one too many: it gets this long to come.
_EXTRA_S = 1.0
# Every producer must have heard the start before it comes.
_HEAD_START_S = 0.5
_FIRST_EVENTS = 50
_KILL_AT = 0.3
_CHANGE_AT = 0.6
"""Parts of the time of publishing."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large a run is: so many events, published over so many seconds."""

    events: int
    publish_s: float


def run_demo(plan: Plan, console: Console) -> Figures:
    """Run it all, showing progress on `console`; everything that was started is gone when this returns or raises.

    Raises totalorder.Error when a process dies or something takes too long. What was delivered is judged in the result.
    """
    events = load_events(plan.events)
    with Screen(console, _title(events, plan)) as screen:
        screen.phase("broker", "Kafka, one node")
        with LocalBroker() as broker, Processes() as processes:
            run = _Run(plan, events, screen, processes, broker.bootstrap_servers)
            run.start_sequencer()
            run.start_subscribers()
            run.warm_up()
            run.publish()
            run.drain()
            run.end()
            run.prove()
            found = run.compare()
            screen.phase("ending", "no process and no file is left")
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

    def __init__(
        self, plan: Plan, events: list[Event], screen: Screen, processes: Processes, bootstrap_servers: str
    ) -> None:
        self._plan = plan
        self._events = events
        self._screen = screen
        self._processes = processes
        self._bootstrap_servers = bootstrap_servers
        self._airports = sorted({event.airport for event in events} | {name for board in BOARDS for name in board.ever})
        self._start_ms = events[min(_FIRST_EVENTS, len(events) - 1)].time_ms
        self._kafka_topic = kafka_topic_of(self._airports)
        self._ours: dict[str, Process] = {}
        self._plain: dict[str, Process] = {}
        self._producers: list[Process] = []
        self._state = dict.fromkeys((board.id for board in BOARDS), "")

    # --- starting -----------------------------------------------------------------------------------------------------

    def start_sequencer(self) -> None:
        """Topics, then `totalorder sequence` on Spark, until it says that the first batch may come."""
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
            "--checkpoint-dir": str(self._processes.folder / "checkpoint"),
            "--spark": f"spark.driver.extraJavaOptions={SHORT_RUN}",
        }
        self._sequencer = self._processes.start(
            "sequencer", "sequence", arguments=[w for each in arguments.items() for w in each]
        )
        self._processes.until(
            lambda: SEQUENCER_READY in self._sequencer.log_text(),
            what="Starting the sequencer",
            timeout_s=_SEQUENCER_TIMEOUT_S,
        )

    def start_subscribers(self) -> None:
        """The boards and their plain twins, until each has its grant, and the producers, until they can begin."""
        self._screen.phase(
            "subscribers", f"{len(BOARDS)} boards, {len(BOARDS)} plain consumers, {len(PRODUCERS)} producers"
        )
        self._ours = {board.id: self._start_board("board", board) for board in BOARDS}
        self._plain = {board.id: self._start_board("plain", board) for board in BOARDS}
        self._producers = [self._start_producer(producer.name) for producer in PRODUCERS]
        self._screen.boards(self._rows)
        self._processes.until(
            lambda: all(process.status.get("ready") for process in self._everyone()),
            what="Starting subscribers and producers",
            timeout_s=_GRANT_TIMEOUT_S,
        )

    def _start_board(self, role: str, board: Board) -> Process:
        return self._processes.start(
            f"{role}-{board.id}",
            role,
            id=board.id,
            domain=DOMAIN,
            bootstrap_servers=self._bootstrap_servers,
            airports=sorted(board.airports),
            all_airports=self._airports,
            kafka_topics=sorted({self._kafka_topic[airport] for airport in board.ever}),
            journal=str(self._journal(role, board.id)),
        )

    def _start_producer(self, name: str) -> Process:
        path = self._processes.folder / f"{name}.events"
        index = {airport: number for number, airport in enumerate(self._airports)}
        with path.open("w", encoding="utf-8") as file:
            for event in self._events:
                if producer_of(event) == name:
                    where = (self._kafka_topic[event.airport], index[event.airport], event.airport)
                    row = (round(self._due_s(event), 4), *where, event.time_ms, event.to_json().decode())
                    file.write(json.dumps(row) + "\n")
        return self._processes.start(
            f"producer-{name}",
            "produce",
            bootstrap_servers=self._bootstrap_servers,
            events=str(path),
            journal=str(self._journal("produce", name)),
        )

    def _due_s(self, event: Event) -> float:
        """Seconds after the start: the flights' own time, compressed, so nights are quiet and afternoons are not.

        -1 for the first few, which are published beforehand.
        """
        if event.time_ms < self._start_ms:
            return -1
        duration_ms = self._events[-1].time_ms - self._start_ms
        return (event.time_ms - self._start_ms) / max(duration_ms, 1) * self._plan.publish_s

    # --- running ------------------------------------------------------------------------------------------------------

    def warm_up(self) -> None:
        """The first few events, until they are delivered: Spark's first batch takes seconds, all later ones do not."""
        self._screen.phase("first events")
        for producer in self._producers:
            producer.tell(first=True)
        first = [event for event in self._events if event.time_ms < self._start_ms]
        wanted = {board.id: sum(event.airport in board.airports for event in first) for board in BOARDS}
        self._wait_for_counts(wanted)

    def publish(self) -> None:
        """All producers, each at its own pace. On the way one board is killed and another one changes its airports."""
        self._screen.phase("publishing")
        start = time.time() + _HEAD_START_S
        for producer in self._producers:
            producer.tell(start=start)
        incidents = [(_CHANGE_AT, self._change, board) for board in BOARDS if board.later is not None]
        incidents += [(_KILL_AT, self._kill, board) for board in BOARDS if board.killed]

        def tick() -> None:
            count = sum(_count(producer) for producer in self._producers)
            self._screen.note(f"{count:,} of {len(self._events):,} events", (count, len(self._events)))
            if incidents and time.time() - start > incidents[-1][0] * self._plan.publish_s:
                _, happen, board = incidents.pop()
                happen(board)

        self._processes.until(
            lambda: all(producer.status.get("done") for producer in self._producers) and not incidents,
            what="Publishing",
            timeout_s=2 * self._plan.publish_s + _DRAIN_TIMEOUT_S,
            tick=tick,
        )
        self._published = np.concatenate([read_journal(self._journal("produce", each.name)) for each in PRODUCERS])
        self._screen.note(f"{len(self._published):,} events acknowledged by Kafka")

    def _kill(self, board: Board) -> None:
        self._processes.crash(self._ours[board.id])
        self._ours[board.id] = self._start_board("board", board)
        self._state[board.id] = "restarted"

    def _change(self, board: Board) -> None:
        assert board.later is not None
        for process in (self._ours[board.id], self._plain[board.id]):
            process.tell(airports=sorted(board.later))
        self._state[board.id] = "changed"

    def drain(self) -> None:
        """Wait for all stamps, and then for every board to have the number of events that it must have."""
        self._screen.phase("draining")
        # Its Spark takes a while to start, and to make the tables.
        self._auditor = self._processes.start(
            "auditor",
            "prove",
            domain=DOMAIN,
            bootstrap_servers=self._bootstrap_servers,
            tables=str(self._processes.folder / "lineage"),
        )
        self._processes.until(
            lambda: (
                all(self._ours[board.id].status.get("changed") for board in BOARDS if board.later is not None)
                and all(process.status.get("ready") for process in self._ours.values())
            ),
            what="The grants of the changed and of the restarted subscriber",
            timeout_s=_GRANT_TIMEOUT_S,
        )
        self._stamps = self._read_stamps()
        grants = read_grants(self._bootstrap_servers, DOMAIN)
        g = self._stamps.g_of(self._published["event"])
        self._expected = {
            id_: expected_events(grants.get(id_, ()), self._published, g, self._airports) for id_ in self._ours
        }
        self._wait_for_counts({id_: len(events) for id_, events in self._expected.items()})
        self._screen.note(f"{sum(map(_count, self._ours.values())):,} deliveries")

    def _wait_for_counts(self, wanted: dict[str, int]) -> None:
        """Gives up when nothing moves any more: what is missing then is counted, and shown in the end."""
        moved = _Patience(_STANDSTILL_S)

        def tick() -> None:
            moved.saw(sum(map(_count, (*self._ours.values(), *self._plain.values()))))
            self._screen.note(f"{sum(map(_count, self._ours.values())):,} deliveries")

        self._processes.until(
            lambda: moved.exhausted or all(_count(self._ours[id_]) >= wanted[id_] for id_ in wanted),
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
            self._processes.until(_after(0.5), what="Waiting for stamps", timeout_s=_END_TIMEOUT_S)

    # --- ending -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the subscribers as an application does, and the sequencer as an operator does."""
        self._screen.phase("stopping", f"{len(BOARDS)} boards, {len(BOARDS)} plain consumers, the sequencer")
        self._processes.until(_after(_EXTRA_S), what="Waiting for repeated events", timeout_s=_END_TIMEOUT_S)
        for process in self._everyone():
            process.tell(stop=True)
        self._processes.dismiss(self._everyone(), timeout_s=_END_TIMEOUT_S)
        self._admin.close()
        self._sequencer.terminate()
        self._processes.dismiss([self._sequencer], timeout_s=_END_TIMEOUT_S)

    def prove(self) -> None:
        """The lineage into Delta tables, and the audits on these, by a process that knows Kafka's topics alone."""
        self._screen.phase("lineage", "stamps, grants and receipts into Delta tables")
        auditor = self._auditor
        auditor.tell(begin=True)
        self._processes.until(lambda: "events" in auditor.status, what="The lineage", timeout_s=_PROOF_TIMEOUT_S)
        events, deliveries = auditor.status["events"], auditor.status["deliveries"]
        self._screen.note(f"{events:,} events and {deliveries:,} deliveries in Delta tables")
        self._screen.phase("audits", "SQL on the tables alone")
        self._processes.until(lambda: "audits" in auditor.status, what="The audits", timeout_s=_PROOF_TIMEOUT_S)
        auditor.tell(stop=True)
        self._processes.dismiss([auditor], timeout_s=_END_TIMEOUT_S)

    def compare(self) -> Figures:
        """Holds what the subscribers wrote down against each other and against what was published."""
        self._screen.phase("comparing", f"{len(BOARDS) * (len(BOARDS) - 1) // 2} pairs of subscribers")
        return figures(
            ours=self._delivered("board"),
            plain=self._delivered("plain"),
            expected=self._expected,
            published=self._published,
            stamps=self._stamps,
            proof=Proof.of(self._auditor.status),
        )

    def _everyone(self) -> list[Process]:
        return [*self._ours.values(), *self._plain.values(), *self._producers]

    def _delivered(self, role: str) -> dict[str, Rows]:
        return {board.id: read_journal(self._journal(role, board.id)) for board in BOARDS}

    def _journal(self, role: str, name: str) -> Path:
        return self._processes.folder / f"{role}-{name}.journal"

    def _rows(self) -> Iterator[BoardRow]:
        for board in BOARDS:
            ours, plain = self._ours[board.id], self._plain[board.id]
            yield BoardRow(
                board=board,
                state=self._state[board.id],
                ours=_count(ours),
                plain=_count(plain),
                last=ours.status.get("last", ""),
            )


def _count(process: Process) -> int:
    return int(process.status.get("count", 0))


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
