"""A job that stands still is told with growing pauses, and ends after a bound; one that moves goes on."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import pytest
import structlog
from hypothesis import given, strategies as st
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery
from structlog.testing import capture_logs
from waiting import is_alive, wait_until

from totalorder.errors import Error
from totalorder.streaming import processes, watchdog
from totalorder.streaming.standstill import GOES_ON, REST, STANDS, Sight, Standstill
from totalorder.streaming.watchdog import Status, Watchdog, ask


class Clock:
    """A time that a test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def seen(bound_s: float, sights: list[Sight]) -> tuple[list[tuple[str, float]], list[int]]:
    """One sight a second: what is said and for how long it stood, and at which seconds it must end."""
    clock, ends = Clock(), []
    with capture_logs() as logs:
        standstill = Standstill(structlog.get_logger(), bound_s, clock)
        for second, sight in enumerate(sights):
            clock.now_s = 1000.0 + second
            if standstill.see(sight) is not None:
                ends.append(second)
    return [(line["event"], line["stood_s"]) for line in logs], ends


STANDING = Sight(where="a task", mark=1, waits_for="Python worker 7 is stopped")


def test_it_is_told_with_growing_pauses_and_ends_at_the_bound() -> None:
    said, ends = seen(100, [STANDING] * 102)
    assert said == [(STANDS, 10), (STANDS, 20), (STANDS, 40), (STANDS, 80)]
    assert ends == [100, 101]


def test_with_a_short_bound_it_is_told_before_that() -> None:
    assert seen(8, [STANDING] * 9) == ([(STANDS, 4)], [8])


def test_one_that_heals_is_borne_and_told() -> None:
    moved = Sight(where="a task", mark=2, waits_for="")
    said, ends = seen(20, [STANDING] * 15 + [moved] + [STANDING] * 15)
    assert said == [(STANDS, 10), (GOES_ON, 15), (STANDS, 10)]
    assert not ends


def test_what_has_nothing_to_do_stands_nowhere() -> None:
    assert seen(20, [REST] * 100) == ([], [])


def test_a_time_in_which_nobody_looked_does_not_count() -> None:
    """The machine was asleep, and all of the job with it."""
    clock = Clock()
    with capture_logs():
        standstill = Standstill(structlog.get_logger(), 20, clock)
        for pause_s in (1, 10_000, 1, 12):
            assert standstill.see(STANDING) is None
            clock.now_s += pause_s
        assert standstill.see(STANDING) is None
        clock.now_s += 5
        assert standstill.see(STANDING) is None
        assert standstill.lasts_s == 17
        clock.now_s += 3
        assert standstill.see(STANDING) is not None


def test_where_nobody_can_know_what_moves_it_is_told_and_goes_on() -> None:
    elsewhere = Sight(where="a task", mark=1, waits_for="nothing here moves", may_end=False)
    assert seen(20, [elsewhere] * 50) == ([(STANDS, 10), (STANDS, 20), (STANDS, 40)], [])


def test_the_error_says_what_where_and_what_to_do() -> None:
    clock = Clock()
    standstill = Standstill(structlog.get_logger(), 8, clock)
    with capture_logs():
        standstill.see(STANDING)
        clock.now_s += 4
        standstill.see(STANDING)
        clock.now_s += 4
        error = standstill.see(STANDING)
    assert isinstance(error, Error)
    assert error.what == "the job stood still for 8 s in a task: Python worker 7 is stopped"
    assert "standstill_timeout_s" in str(error)
    assert (standstill.lasts_s, standstill.take_longest_s(), standstill.take_longest_s()) == (8, 8, 0)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40)), max_size=12), st.integers(5, 60))
def test_it_ends_exactly_where_one_mark_lasts_for_the_bound(marks: list[tuple[int, int]], bound_s: int) -> None:
    """Twin: the seconds one after the other, each compared with all before it. Mark 0 is rest."""
    seconds = [mark for mark, lasts in marks for _ in range(lasts)]
    sights = [Sight(where="a task", mark=mark) if mark else REST for mark in seconds]
    expected = []
    for second, mark in enumerate(seconds):
        same = second
        while same > 0 and seconds[same - 1] == mark:
            same -= 1
        if mark and second - same >= bound_s:
            expected.append(second)
    assert seen(bound_s, sights)[1] == expected


@pytest.mark.parametrize(
    ("status", "where"),
    [
        (Status(), None),
        (Status(message="Waiting for next trigger", is_active=False), None),
        (Status(message="Waiting for data to arrive", is_active=True), None),
        (Status(message="Getting offsets from CutStream", is_active=True), "its planning"),
        (Status(message="Writing offsets to log", is_active=True), "its planning"),
        (
            Status(message="Processing new data", is_active=True, stages=((4, 0),)),
            "a task, which reads, stamps and writes",
        ),
        (Status(message="Processing new data", is_active=True), "its plan or its commit"),
        (Status(message="Initializing sources", is_active=True), "the start of the query"),
    ],
)
def test_where_a_batch_is(status: Status, where: str | None) -> None:
    assert status.where == where


# A process that has a daemon, which has a worker, as Spark's Java has them.
_WORKER = "import sys\nwhile sys.stdin.readline(): print('.', flush=True)"
_DAEMON = f"import subprocess, sys; raise SystemExit(subprocess.call([sys.executable, '-c', {_WORKER!r}]))"
_JAVA = f"import subprocess, sys; raise SystemExit(subprocess.call([sys.executable, '-c', {_DAEMON!r}, 'daemon']))"


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """The eldest of three processes; what is written to it the youngest answers."""
    with subprocess.Popen(
        [sys.executable, "-c", _JAVA],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        start_new_session=True,
    ) as java:
        yield java
        with suppress(ProcessLookupError):  # all are gone
            os.killpg(java.pid, signal.SIGKILL)


def speak(java: subprocess.Popen[str]) -> None:
    assert java.stdin is not None
    assert java.stdout is not None
    java.stdin.write("?\n")
    assert java.stdout.readline() == ".\n"


def test_a_session_that_is_just_taken_down_says_nothing_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts go one after the other, in another thread; who asks goes on."""
    monkeypatch.setattr(SparkContext, "_active_spark_context", object())
    assert ask(cast(StreamingQuery, object())) == Status()


def test_a_worker_that_works_has_run_and_one_that_waits_or_is_stopped_has_not(family: subprocess.Popen[str]) -> None:
    speak(family)
    daemon, worker = processes.below(family.pid)
    assert (daemon.name, worker.name) == ("Spark's daemon", "Python worker")
    wait_until(lambda: _at(family, worker.pid).ran == _at(family, worker.pid).ran, "the worker waits")
    waits = _at(family, worker.pid)
    assert not waits.is_stopped
    speak(family)
    assert _at(family, worker.pid).ran != waits.ran
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: _at(family, worker.pid).is_stopped, "it is stopped")
    assert _at(family, worker.pid).ran == _at(family, worker.pid).ran
    assert _at(family, daemon.pid).ran == daemon.ran


def _at(java: subprocess.Popen[str], pid: int) -> processes.Process:
    return next(one for one in processes.below(java.pid) if one.pid == pid)


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert (processes.below(gone.pid), processes.is_stopped(gone.pid), processes.cpu_ticks(gone.pid)) == ([], False, 0)


class Job:
    """A job as its watch sees it, that waits for a worker."""

    def __init__(self) -> None:
        self.abandoned: list[Error] = []
        self.is_resting = False

    def ask(self) -> Status:
        return Status(message="Processing new data", is_active=True, stages=((1, 0),))

    def step(self, status: Status) -> str | None:
        return None if self.is_resting else status.where or "the start of Spark"

    def may_end(self, status: Status) -> bool:
        return True

    def abandon(self, error: Error) -> None:
        self.abandoned.append(error)


def watchdog_of(
    job: Job,
    java: subprocess.Popen[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    owns_java: bool,
    works_here: bool = False,
) -> Watchdog:
    monkeypatch.setattr(watchdog, "java_process", lambda: java.pid if java.poll() is None else None)
    log = structlog.get_logger()
    return Watchdog(job, Standstill(log, 8), log, owns_java=owns_java, works_here=works_here)


@pytest.mark.parametrize("works_here", [True, False])
def test_a_job_that_works_in_this_process_moves_when_that_is_busy(
    works_here: bool, family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(family)
    watch, ticks, now = watchdog_of(Job(), family, monkeypatch, owns_java=True, works_here=works_here), [0], [0.0]
    used = {os.getpid(): lambda: ticks[0]}
    monkeypatch.setattr(processes, "cpu_ticks", lambda pid: used.get(pid, lambda: 0)())
    monkeypatch.setattr("totalorder.streaming.watchdog.time.monotonic", lambda: now[0])
    wait_until(lambda: all(processes._stat(one.pid)[0] == "S" for one in processes.below(family.pid)), "all wait")
    waits = watch.sight()
    now[0] += 1
    ticks[0] += os.sysconf("SC_CLK_TCK") // 10
    assert watch.sight() == waits, "to look takes a little too"
    now[0] += 1
    ticks[0] += os.sysconf("SC_CLK_TCK") // 2
    assert (watch.sight() != waits) == works_here


def test_what_is_stopped_is_killed_then_java_then_the_job_is_given_up(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(family)
    job, verdict = Job(), Error("it stood still")
    watch = watchdog_of(job, family, monkeypatch, owns_java=True)
    daemon, worker = processes.below(family.pid)
    os.kill(worker.pid, signal.SIGSTOP)
    wait_until(lambda: _at(family, worker.pid).is_stopped, "it is stopped")
    assert "Python worker" in watch.sight().waits_for
    with capture_logs() as logs:
        watch._end(verdict)
        wait_until(lambda: not (is_alive(worker.pid) and is_alive(daemon.pid)), "one of them ends")
        assert not is_alive(worker.pid), "what waits for it ends behind it"
        if family.poll() is None:
            watch._end(verdict)
        assert family.wait(30)
        watch._end(verdict)
    assert job.abandoned == [verdict]
    assert {line["event"] for line in logs} <= {"Java is killed"}


def test_a_java_that_does_not_answer_is_named_and_killed_if_it_is_the_jobs_own(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for owns_java in (False, True):
        job = Job()
        job.is_resting = True
        watch = watchdog_of(job, family, monkeypatch, owns_java=owns_java)
        watch._probe.asked_s = 0.0
        sight = watch.sight()
        assert (sight.where, sight.waits_for) == (
            "a call to Spark",
            f"Spark's Java, process {family.pid}, does not answer",
        )
        assert watch.sight() == sight
        with capture_logs():
            watch._end(Error("it stood still"))
        assert len(job.abandoned) == (not owns_java)
    assert family.wait(30) == -signal.SIGKILL


def test_a_worker_that_works_and_a_busy_java_move(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    speak(family)
    watch = watchdog_of(Job(), family, monkeypatch, owns_java=True)
    wait_until(lambda: watch.sight() == watch.sight(), "all wait")
    waits = watch.sight()
    speak(family)
    assert watch.sight().mark != waits.mark
    wait_until(lambda: watch.sight() == watch.sight(), "all wait again")
    waits = watch.sight()
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        monkeypatch.setattr(processes, "cpu_ticks", lambda _, ticks=processes.cpu_ticks: ticks(busy.pid))
        wait_until(lambda: watch.sight().mark != waits.mark, "a busy Java moves")
        busy.kill()


def test_an_outage_that_is_borne_and_a_job_at_rest_are_no_standstill(
    family: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    job.is_resting = True
    assert watchdog_of(job, family, monkeypatch, owns_java=True).sight() == REST
