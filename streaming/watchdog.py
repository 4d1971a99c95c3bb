"""The watch over a job that may stand still: threads of its own, since a call of the job's own may never return.

One asks Java each second, and may wait for the answer for ever; the other sees whether anything has moved, and goes by
what the system tells of processes. A job that stood still for too long is ended by steps, the next one where the last
had no effect: what is stopped is killed, so that calls that wait for it fail and the job ends in good order; then the
job's own Java; then the job is given up, as it stands.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.errors import Error
from totalorder.streaming import processes
from totalorder.streaming.processes import Process
from totalorder.streaming.session import is_submitted
from totalorder.streaming.standstill import REST, Sight, Standstill

_PERIOD_S = 1.0
_SILENT_S = 3.0
"""From then on Java counts as one that does not answer."""
_END_S = 60.0
"""How long the job may take to end in good order: the grace of a batch, and Spark's own bound for a stop."""
_BUSY = 0.25
"""Of a processor: Java, or this process, moves when it uses more. Some hundredths go into questions and answers."""
_RESTING = ("Waiting for", "Terminated", "Stopped")
_PLANNING = ("Getting offsets", "Writing offsets")


@dataclass(frozen=True, kw_only=True)
class Status:
    """What Java says of the query: the message that it shows, whether a trigger is under way, the batch that was
    finished last, and how many tasks of which stages are over.
    """

    message: str = ""
    is_active: bool = False
    newest: tuple[int, str] | None = None
    stages: tuple[tuple[int, int], ...] = ()

    @property
    def is_processing(self) -> bool:
        """Whether a batch is planned, and not over."""
        return self.message == "Processing new data"

    @property
    def where(self) -> str | None:
        """The step of a batch that is under way; None where there is none."""
        if not self.is_active or self.message.startswith(_RESTING):
            return None
        if self.message.startswith(_PLANNING):
            return "its planning"
        if self.is_processing:
            return "a task, which reads, stamps and writes" if self.stages else "its plan or its commit"
        return "the start of the query"


def ask(query: StreamingQuery | None) -> Status:
    """Asks Java, whether there is a query or not; it may never answer. A Java that is gone says nothing of a batch, and
    neither does a session that another thread just takes down, whatever that looks like: who asks must go on.
    """
    try:
        return _ask(query)
    except Exception:
        return Status()


def _ask(query: StreamingQuery | None) -> Status:
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    if gateway is not None and (query is None or context is None):
        gateway.jvm.java.lang.System.nanoTime()
    if query is None or context is None:
        return Status()
    status, last, tracker = query.status, query.lastProgress, context.statusTracker()
    stages = [(stage, tracker.getStageInfo(stage)) for stage in sorted(tracker.getActiveStageIds())]
    return Status(
        message=status["message"],
        is_active=status["isTriggerActive"],
        newest=(last.batchId, last.timestamp) if last is not None else None,
        stages=tuple((stage, info.numCompletedTasks) for stage, info in stages if info is not None),
    )


class Watched(Protocol):
    """The job, as its watch knows it."""

    def ask(self) -> Status:
        """Asks Java; it may never return."""

    def step(self, status: Status) -> str | None:
        """What the job is at, where Java said this last; None when it has nothing to do, or bears an outage."""

    def may_end(self, status: Status) -> bool:
        """Whether all that runs for it is on this machine."""

    def abandon(self, error: Error) -> None:
        """The job has failed, and its threads will not return."""


class Probe:
    """Asks again and again, in a thread of its own."""

    def __init__(self, ask: Callable[[], Status]) -> None:
        self._ask = ask
        self.answer = Status()
        self.asked_s: float | None = None
        """When the question that has no answer yet was asked."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="totalorder-probe", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends behind the question that is under way."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(_PERIOD_S):
            self.asked_s = time.monotonic()
            self.answer = self._ask()
            self.asked_s = None


class Watchdog:
    """One for each run of a job; `verdict` is the error by which it must end, once it has stood still for too long.

    With `owns_java`, Java is the job's own, and may be killed with it. With `works_here`, Spark calls this process for
    what it does: the job moves when this process is busy too.
    """

    def __init__(
        self, job: Watched, standstill: Standstill, log: Any, *, owns_java: bool, works_here: bool = False
    ) -> None:
        self._job, self._standstill, self._log, self._owns_java = job, standstill, log, owns_java
        self._works_here = works_here
        self.verdict: Error | None = None
        self._probe = Probe(job.ask)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="totalorder-standstill", daemon=True)
        self._paces: dict[int, tuple[int, float, int]] = {}
        """By process its ticks, when they were read, and how often it was found busy."""
        self._end_again_s = 0.0
        self._is_java_killed = self._is_freed = False

    def start(self) -> None:
        """Begins."""
        self._probe.start()
        self._thread.start()

    def stop(self) -> None:
        """Ends; the job has come to its end."""
        self._over.set()
        self._probe.stop()

    def require_movement(self) -> None:
        """Raises the verdict, if there is one."""
        if self.verdict is not None:
            raise self.verdict

    def _run(self) -> None:
        while not self._over.wait(_PERIOD_S):
            if self.verdict is None:
                self.verdict = self._standstill.see(self.sight())
            if self.verdict is not None and time.monotonic() >= self._end_again_s:
                self._end_again_s = time.monotonic() + _END_S
                self._end(self.verdict)

    @property
    def _is_silent(self) -> bool:
        asked_s = self._probe.asked_s
        return asked_s is not None and time.monotonic() - asked_s >= _SILENT_S

    def sight(self) -> Sight:
        """The job now."""
        status, java = self._probe.answer, java_process()
        step = self._job.step(status)
        is_stopped = java is not None and processes.is_stopped(java)
        if self._is_silent or is_stopped:
            silent = f"Spark's Java, process {java}, {'is stopped' if is_stopped else 'does not answer'}"
            return Sight(where=step or "a call to Spark", mark=_SILENT_S, waits_for=silent)
        if step is None or java is None:
            return REST
        found = processes.below(java)
        return Sight(
            where=step,
            mark=(status, tuple((one.pid, one.ran) for one in found), self._moves(java), self._works()),
            waits_for=_waits_for(java, found),
            may_end=self._job.may_end(status),
        )

    def _works(self) -> int:
        return self._moves(os.getpid()) if self._works_here else 0

    def _moves(self, pid: int) -> int:
        """Another number whenever the process was busy since this was asked last."""
        ticks, at_s, times = self._paces.get(pid, (0, 0.0, 0))
        now_s, now = time.monotonic(), processes.cpu_ticks(pid)
        is_busy = now - ticks > _BUSY * (now_s - at_s) * os.sysconf("SC_CLK_TCK")
        self._paces[pid] = now, now_s, times + is_busy
        return self._paces[pid][2]

    def _end(self, verdict: Error) -> None:
        """The next step towards the end."""
        java = java_process()
        if self._owns_java and java is not None and (self._is_silent or self._is_freed) and not self._is_java_killed:
            self._log.error("Java is killed", reason=verdict.what, pid=java)
            self._is_java_killed = True
            _kill([java])
        elif self._is_silent or self._is_freed:
            self._job.abandon(verdict)
            self.stop()
        else:
            self._is_freed = True
            _kill(one.pid for one in (processes.below(java) if java is not None else ()) if one.is_stopped)


def java_process() -> int | None:
    """Spark's Java: this process's own, also while it starts, or spark-submit's; None where there is none yet."""
    if is_submitted():
        return os.getppid()
    started = getattr(SparkContext._gateway, "proc", None)
    return int(started.pid) if started is not None else processes.started_by(os.getpid(), "deploy.SparkSubmit")


def _waits_for(java: int, found: Iterable[Process]) -> str:
    stopped = [f"{one} is stopped" for one in found if one.is_stopped]
    return ", ".join(stopped) or ", ".join([f"nothing moves: Java {java}", *map(str, found)])


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
