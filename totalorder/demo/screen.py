"""What a person sees: phases, progress and boards while it runs, then the figures."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from totalorder.demo.report import Figures, Side
from totalorder.demo.world import BOARDS, Board


@dataclass(frozen=True, kw_only=True)
class BoardRow:
    """One line of the live table: the board's state and counts so far."""

    board: Board
    state: str = ""
    ours: int = 0
    plain: int = 0
    last: str = ""


class Screen:
    """Shows the run on `console`: a live display on a terminal, a line for each phase elsewhere."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._done: list[tuple[str, float, str]] = []
        self._phase = ""
        self._began = self._phase_began = time.monotonic()
        self._note = ""
        self._progress: tuple[int, int] | None = None
        self._rows: Callable[[], Iterable[BoardRow]] = tuple
        self._live = Live(get_renderable=self._draw, console=console, refresh_per_second=5, transient=True)

    def __enter__(self) -> Self:
        self._console.print(Text(self._title, style="bold"))
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._finish_phase()
        self._live.stop()
        if self._console.is_terminal and kind is None:
            self._console.print(self._phases())

    @property
    def seconds(self) -> dict[str, float]:
        """Duration of each finished phase, and of all so far."""
        total = time.monotonic() - self._began
        return {name: seconds for name, seconds, _ in self._done} | {"total": total}

    def phase(self, name: str, note: str = "") -> None:
        """The next phase begins."""
        self._finish_phase()
        self._phase, self._note, self._progress = name, note, None
        self._phase_began = time.monotonic()

    def note(self, note: str, progress: tuple[int, int] | None = None) -> None:
        """Say something about the present phase; `progress` is (done, of)."""
        self._note, self._progress = note, progress

    def boards(self, rows: Callable[[], Iterable[BoardRow]]) -> None:
        """Show the boards from now on; `rows` is called at every refresh."""
        self._rows = rows

    def _finish_phase(self) -> None:
        if not self._phase:
            return
        taken = time.monotonic() - self._phase_began
        self._done.append((self._phase, taken, self._note))
        if not self._console.is_terminal:
            self._console.print(f"{self._phase:<11} {taken:5.1f} s  {self._note}", highlight=False, soft_wrap=True)
        self._phase = ""

    def _phases(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, seconds, note in self._done:
            table.add_row(Text("✓", style="green"), name, f"{seconds:5.1f} s", Text(note, style="dim"))
        return table

    def _draw(self) -> RenderableType:
        table = self._phases()
        if self._phase:
            seconds = time.monotonic() - self._phase_began
            table.add_row(Spinner("dots"), self._phase, f"{seconds:5.1f} s", Text(self._note))
        parts: list[RenderableType] = [table]
        if self._progress is not None:
            done, of = self._progress
            parts.append(ProgressBar(total=max(of, 1), completed=done, width=70))
        rows = list(self._rows())
        if rows:
            parts.append(_board_table(rows))
        return Group(*parts)


def _board_table(rows: list[BoardRow]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("board", no_wrap=True)
    table.add_column("topics", justify="right")
    table.add_column("state", no_wrap=True)
    table.add_column("delivered", justify="right")
    table.add_column("plain", justify="right", style="dim")
    table.add_column("last event", no_wrap=True, style="cyan")
    for row in rows:
        topics = len(row.board.airports)
        table.add_row(row.board.name, str(topics), row.state, f"{row.ours:,}", f"{row.plain:,}", said(row.last))
    return table


def said(value: str) -> str:
    """An event's JSON as a person would say it."""
    if not value:
        return ""
    event: Mapping[str, Any] = json.loads(value)
    way = f"→ {event['to']}" if "to" in event else f"← {event['from']}"
    return f"{event['at'][5:16].replace('T', ' ')} {event['flight']} {event['airport']} {way}"


def figures_table(found: Figures) -> RenderableType:
    """The final screen."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("")
    table.add_column("totalorder", justify="right")
    table.add_column("plain consumers", justify="right")
    for name, ours, plain in _lines(found):
        table.add_row(name, ours, plain)
    return Group(_summary(found), table, _pairs(found), _audits(found), _verdict(found))


def _summary(found: Figures) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("events", f"{found.events:,} of {found.airports} airports, a pub/sub topic each")
    table.add_row("stamps", f"{found.stamps:,} in {found.batches:,} batches")
    table.add_row(
        "size", f"{found.stamps_bytes_per_event:.1f} bytes and {found.entries_per_event:.1f} clock entries per event"
    )
    table.add_row("subscribers", f"{found.boards} processes of ours, {found.boards} plain Kafka consumers")
    for board in BOARDS:
        if board.killed:
            table.add_row("", f"{board.name}: killed by kill -9, restarted, {found.ours.again:,} events redelivered")
        if board.later:
            table.add_row("", f"{board.name}: changed its topics in mid-run")
    return table


def _lines(found: Figures) -> Iterable[tuple[str, RenderableType, RenderableType]]:
    ours, plain = found.ours, found.plain

    def both(name: str, show: Callable[[Side], RenderableType]) -> tuple[str, RenderableType, RenderableType]:
        return name, show(ours), show(plain)

    yield both("deliveries", lambda side: f"{side.deliveries:,}")
    yield both("delay, median / p99", lambda side: f"{side.delay_p50_ms:,.0f} / {side.delay_p99_ms:,.0f} ms")
    yield both("pairs of subscribers compared", lambda side: f"{side.agreement.subscriber_pairs:,}")
    yield both("  of which disagree", lambda side: _count(side.disagreeing_pairs))
    yield both("pairs of events compared", lambda side: f"{side.agreement.event_pairs:,}")
    yield both("  seen in different order", lambda side: _count(side.agreement.disagreements))
    yield "missing", _count(ours.missing + found.unstamped), _not_judged(plain.missing)
    yield "repeated", _count(ours.repeated), _not_judged(plain.repeated)
    yield "not subscribed to, or not published", _count(ours.foreign), _not_judged(plain.foreign)


def _count(number: int) -> Text:
    return Text(f"{number:,}", style="bold red" if number else "bold green")


def _not_judged(number: int) -> Text:
    """A plain consumer has no position at which a change of topics takes effect: it is shown, not judged."""
    return Text(f"{number:,}", style="dim")


def _pairs(found: Figures) -> Text:
    """The two plain consumers that disagreed most."""
    pair, (ours, plain) = max(found.disagreements_by_pair.items(), key=lambda item: item[1][1])
    name_of = {board.id: board.name for board in BOARDS}
    names = " and ".join(name_of.get(id_, id_) for id_ in pair.split("+"))
    text = f"Of the plain consumers, {names} disagreed most: on {plain:,} pairs of events (ours: on {ours:,})."
    return Text(text if plain else "", style="dim")


def _audits(found: Figures) -> Table:
    """What the lineage tables prove; what an audit found stands below it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("audit of the lineage tables, in SQL")
    table.add_column("rows examined", justify="right")
    table.add_column("verdict")
    for audit in found.proof.audits:
        if audit.verdict == "information":
            continue
        style = "bold green" if audit.verdict == "holds" else "bold red"
        table.add_row(audit.title, f"{audit.rows_examined:,}", Text(audit.verdict, style))
        for row in audit.rows:
            table.add_row(Text(f"  {row}", "red"), "", "")
    if found.unproven:
        table.add_row(f"published events that the tables lack: {found.unproven:,}", "", Text("violated", "bold red"))
    return table


def _verdict(found: Figures) -> Text:
    if found.ok:
        return Text(
            "All subscribers saw their common events in one order; nothing missing, nothing twice.", "bold green"
        )
    return Text("The promise was NOT kept: see the figures in red.", "bold red")
