"""`totalorder bench job --beside PYTHON`: this installation's job against another one's, by turns in one run.

Each is a process of its own with its own Python, Spark and subscriber, as users run them, so that the two need not
understand each other's stamps; broker, topics, load and judge are the same. A turn is one domain: the job starts, warms
up and is measured by its delays; then it stops, events gather, and it is measured by how fast it works them off.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from totalorder import kafka_clients
from totalorder.bench.job.command import TOPICS, delays_between, percentiles_ms
from totalorder.bench.live.load import READY_TIMEOUT_S, Floats, Worker, fill, publish_paced
from totalorder.bench.live.progress import WHOLE, BatchTime, events_per_s, whole_batches
from totalorder.bench.outcome import Outcome, Request, Say, Size, Table
from totalorder.broker import LocalBroker
from totalorder.errors import Error, SettingsError

_READY = "sequencer ready"
_LOOK_S = 0.2
_START_S = 180.0
_END_S = 60.0
_ARRIVAL_S = 60.0
_BACKLOG_S = 400.0
_PROBE_S = 120.0
# The other installation's own subscriber; a connection by its number takes the place of the pipe.
_RECEIVE = """
import sys
from multiprocessing.connection import Connection
from totalorder.bench.live.load import receive_ordered
receive_ordered(Connection(int(sys.argv[1])), sys.argv[2], sys.argv[3].split(","), sys.argv[4])
"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done. Java is new in every turn, so each publishes for `warm_up_s` first; and of a backlog of
    `events` the first half of the batches does not count.
    """

    events: int
    batch: int
    rounds: int
    rates: tuple[int, ...]
    warm_up_s: float
    phase_s: float

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(events=4_000, batch=1_000, rounds=1, rates=(200,), warm_up_s=1, phase_s=2),
            quick=cls(events=600_000, batch=50_000, rounds=1, rates=(200, 1_000), warm_up_s=30, phase_s=15),
            full=cls(events=2_000_000, batch=100_000, rounds=3, rates=(200, 1_000, 5_000), warm_up_s=120, phase_s=20),
        )


@dataclass
class Measured:
    """What was seen of one installation, all rounds together; delays in seconds, by rate."""

    delays: dict[int, list[Floats]] = field(default_factory=dict)
    small: list[BatchTime] = field(default_factory=list)
    """Batches while events came at the first rate."""
    backlog: list[BatchTime] = field(default_factory=list)


def run(request: Request) -> Outcome:
    """By turns; SettingsError where `request.beside` is not the Python of an installation with benchmarks."""
    assert request.beside is not None
    pythons = {"other": _checked(request.beside), "this": sys.executable}
    plan, measured = Plan.of(request.size), {name: Measured() for name in pythons}
    request.say("Starting a broker")
    with LocalBroker() as broker, tempfile.TemporaryDirectory(prefix="totalorder-bench-") as folder:
        with kafka_clients.admin(broker.bootstrap_servers) as admin:
            admin.create_topics({name: {"num_partitions": 1} for name in TOPICS})
            admin.wait_for_topics(TOPICS)
        for number in range(plan.rounds):
            for name, python in pythons.items():
                place = Path(folder) / f"{name}-{number}"
                place.mkdir()
                turn = _Turn(python, broker.bootstrap_servers, place, plan, request.say)
                turn.run(measured[name])
    data = summary(measured)
    return Outcome(data=data, tables=tables(data))


def _checked(python: Path) -> str:
    # Not resolved: a virtual environment's interpreter is a link, and is that of the environment by its place.
    command = [str(python.absolute()), "-c", "from totalorder.bench.live.load import receive_ordered"]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=_PROBE_S, env=_environment(), cwd="/")
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        raise SettingsError(
            f"--beside: {python} cannot load totalorder.bench: {said.decode(errors='replace').strip()[-200:]}",
            remedy="Give the Python of a virtual environment in which totalorder is installed with its benchmarks",
        ) from None
    return command[0]


def _environment() -> dict[str, str]:
    """Without what would lead another installation's Python to this one's modules."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


# --- one turn ---------------------------------------------------------------------------------------------------------


class _Turn:
    def __init__(self, python: str, servers: str, folder: Path, plan: Plan, say: Say) -> None:
        self._python, self._servers, self._folder, self._plan, self._say = python, servers, folder, plan, say

    def run(self, measured: Measured) -> None:
        """Delays and backlog, added to what was measured."""
        name, plan = self._folder.name, self._plan
        self._say(f"{name}: starting; {plan.warm_up_s:g} s at {plan.rates[0]} events/s come first")
        with self._job("live") as job, _receiver(self._python, self._servers, name) as pipe:
            phases = self._phases(job, measured)
            rows = _all_of(pipe, sum(count for _, count in phases.values()))
        self._note(phases, rows, measured)
        fill(self._servers, TOPICS, [None] * plan.events)
        with self._job("backlog") as job:
            batches = job.until_read(plan.events)
        counted = whole_batches(batches)
        measured.backlog += counted[len(counted) // 2 :]
        self._say(f"{name}: backlog at {events_per_s(counted[len(counted) // 2 :]):,.0f} events/s")

    def _job(self, name: str) -> "Job":
        arguments = {
            "--domain": self._folder.name,
            "--bootstrap-servers": self._servers,
            "--topics": ",".join(TOPICS),
            "--checkpoint-dir": str(self._folder / "checkpoint"),
            "--starting-offsets": "latest",
            "--max-events-per-batch": str(self._plan.batch),
            "--log-format": "json",
        }
        words = [word for each in arguments.items() for word in each]
        return Job(
            [self._python, "-m", "totalorder.cli", "sequence", *words, "--verbose"], self._folder / f"{name}.log"
        )

    def _phases(self, job: "Job", measured: Measured) -> dict[int, tuple[float, int]]:
        """When each rate's phase began, and its events; 0 stands for the warm-up."""
        plan = self._plan
        phases = {0: self._publish(job, plan.rates[0], plan.warm_up_s)}
        for rate in plan.rates:
            before = len(job.batches())
            phases[rate] = self._publish(job, rate, plan.phase_s)
            if rate == plan.rates[0]:
                measured.small += job.batches()[before:]
        return phases

    def _publish(self, job: "Job", rate: int, seconds: float) -> tuple[float, int]:
        began, deadline = time.time(), time.monotonic() + 3 * seconds + _ARRIVAL_S
        with Worker(publish_paced, self._servers, TOPICS, rate, seconds) as publisher:
            while not publisher.ended(_LOOK_S):
                job.raise_if_ended()
                if time.monotonic() > deadline:
                    raise Error(f"publishing {rate} events/s cannot keep up", remedy="The machine is too busy")
        return began, round(rate * seconds)

    def _note(self, phases: Mapping[int, tuple[float, int]], rows: Floats, measured: Measured) -> None:
        begins = [began for began, _ in phases.values()]
        for (rate, (began, count)), end in zip(phases.items(), [*begins[1:], float("inf")], strict=True):
            delays = delays_between(rows, began, end)
            if len(delays) != count:
                raise Error(
                    f"{len(delays)} of {count} events came through {self._folder.name} at {rate} events/s",
                    remedy=f"It had {_ARRIVAL_S:g} s to catch up: this machine is too slow for the rate",
                )
            if rate:
                measured.delays.setdefault(rate, []).append(delays)
                p50, p99 = percentiles_ms([delays])
                self._say(f"{self._folder.name} at {rate} events/s: p50 {p50:.0f} ms, p99 {p99:.0f} ms")


class Job:
    """A sequencer process, from when it is ready; ended in good order, or killed where it does not end."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command, self._log = command, log

    def __enter__(self) -> "Job":
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=_environment(),
                cwd="/",
            )
        try:
            self._until(lambda: any(_READY in line for line in self._lines()), "starting", _START_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def batches(self) -> list[BatchTime]:
        """All that the log tells of, oldest first."""
        return batches_of(self._lines())

    def until_read(self, rows: int) -> list[BatchTime]:
        """All, as soon as they have read so many rows."""
        self._until(lambda: sum(batch.rows for batch in self.batches()) >= rows, "working a backlog off", _BACKLOG_S)
        return self.batches()

    def raise_if_ended(self) -> None:
        """Error when it runs no more."""
        if self._process.poll() is not None:
            raise Error(f"the job of {self._command[0]} has ended: {' / '.join(self._lines()[-3:])}")

    def _until(self, condition: Callable[[], bool], what: str, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.raise_if_ended()
            if time.monotonic() > deadline:
                raise Error(f"{what} took the job of {self._command[0]} more than {timeout_s:g} s")
            time.sleep(_LOOK_S)

    def _lines(self) -> list[str]:
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()


def batches_of(lines: Sequence[str]) -> list[BatchTime]:
    """The batches that a job's log tells of, one JSON object a line; lines of other kinds are passed over."""
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("event") == "batch":
                found.append(BatchTime(rows=said["events"] + said["controls"], ms={WHOLE: said["trigger_ms"]}))
    return found


@contextmanager
def _receiver(python: str, servers: str, domain: str) -> Iterator[Connection]:
    """A subscriber of an installation, from when it is ready; killed at the end."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [python, "-c", _RECEIVE, str(theirs.fileno()), servers, ",".join(TOPICS), domain]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), env=_environment(), cwd="/")
        theirs.close()
        pipe = Connection(ours.detach())
        try:
            _hear(pipe, READY_TIMEOUT_S)
            yield pipe
        finally:
            process.kill()
            process.wait()
            pipe.close()


def _all_of(pipe: Connection, expected: int) -> Floats:
    pipe.send((expected, _ARRIVAL_S))
    rows: Floats = _hear(pipe, _ARRIVAL_S + _END_S)
    return rows


def _hear(pipe: Connection, timeout_s: float) -> Any:
    try:
        if pipe.poll(timeout_s):
            return pipe.recv()
    except (EOFError, ConnectionError):
        raise Error("a subscriber has ended", remedy="Its own words are above") from None
    raise Error(f"a subscriber said nothing for {timeout_s:g} s")


# --- results ----------------------------------------------------------------------------------------------------------


def summary(measured: Mapping[str, Measured]) -> dict[str, Any]:
    """The JSON; ratios are this installation's to the other's: below 1 of delays and above 1 of speeds is better."""
    rates = {}
    for rate in measured["this"].delays:
        found = {name: percentiles_ms(each.delays[rate]) for name, each in measured.items()}
        rates[str(rate)] = {
            part: _compared({name: both[place] for name, both in found.items()})
            for place, part in enumerate(("p50_ms", "p99_ms"))
        }
    triggers = {name: [batch.ms[WHOLE] for batch in each.small] for name, each in measured.items()}
    return {
        "rates": rates,
        "backlog_events_per_s": _compared({name: events_per_s(each.backlog) for name, each in measured.items()}),
        "trigger_ms": _compared({name: float(median(each)) for name, each in triggers.items()}),
    }


def _compared(found: Mapping[str, float]) -> dict[str, float]:
    return {**found, "ratio": found["this"] / found["other"]}


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The same for a person."""
    rows = {
        **{
            f"{part.removesuffix('_ms')} at {int(rate):,} events/s, ms": at[part]
            for rate, at in data["rates"].items()
            for part in at
        },
        "backlog, events/s": data["backlog_events_per_s"],
        f"trigger at {next(iter(data['rates']))} events/s, ms": data["trigger_ms"],
    }
    return [
        Table(
            title="This installation's job, and the other one's",
            columns=("", "this", "other", "this : other"),
            rows=[
                (what, f"{of['this']:,.0f}", f"{of['other']:,.0f}", f"{of['ratio']:.2f}") for what, of in rows.items()
            ],
        )
    ]
