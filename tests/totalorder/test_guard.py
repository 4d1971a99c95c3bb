"""The guard, with a cheap program in the broker's place: however its owner or itself ends, the program ends too."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from waiting import is_alive, wait_until

import totalorder.broker

GUARD = Path(totalorder.broker.__file__).with_name("_guard.py")
SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)",
]
Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a guard with this process as its owner."""
    guards = []

    def begin(program: list[str], *, grace_s: float = 20, remove: str = "") -> subprocess.Popen[str]:
        words = [sys.executable, "-I", "-S", str(GUARD), str(os.getpid()), str(grace_s), remove, str(tmp_path / "log")]
        guard = subprocess.Popen([*words, *program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        guards.append(guard)
        return guard

    yield begin
    for guard in guards:
        guard.kill()
        guard.communicate()


def pid_of_program(guard: subprocess.Popen[str], log: Path) -> int:
    assert guard.stdout is not None
    pid = int(guard.stdout.readline())
    wait_until(lambda: "up" in log.read_text(), "the program says that it is up")
    return pid


def order(guard: subprocess.Popen[str], letter: str) -> int:
    """Give the order; the program's exit code."""
    answer, _ = guard.communicate(letter, timeout=30)
    return int(answer)


def test_stop_order_terminates(start: Start, tmp_path: Path) -> None:
    guard = start(SLEEPER)
    pid = pid_of_program(guard, tmp_path / "log")
    assert order(guard, "s") == -signal.SIGTERM
    assert not is_alive(pid)


def test_stop_order_kills_what_does_not_stop_in_time(start: Start, tmp_path: Path) -> None:
    guard = start(STUBBORN, grace_s=0.2)
    pid_of_program(guard, tmp_path / "log")
    assert order(guard, "s") == -signal.SIGKILL


def test_kill_order_kills(start: Start, tmp_path: Path) -> None:
    guard = start(SLEEPER)
    pid_of_program(guard, tmp_path / "log")
    assert order(guard, "k") == -signal.SIGKILL


def test_end_of_pipe_kills_and_removes_the_folder(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    guard = start(SLEEPER, remove=str(folder))
    pid_of_program(guard, tmp_path / "log")
    assert order(guard, "") == -signal.SIGKILL
    assert not folder.exists()


def test_an_order_leaves_the_folder(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    guard = start(SLEEPER, remove=str(folder))
    pid_of_program(guard, tmp_path / "log")
    order(guard, "k")
    assert folder.exists()


def test_program_that_ends_by_itself_ends_the_guard(start: Start) -> None:
    guard = start([sys.executable, "-c", "raise SystemExit(3)"])
    answer, _ = guard.communicate(timeout=30) if guard.wait(30) == 0 else ("", "")
    assert answer.split()[1] == "3"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
def test_program_dies_with_the_guard(start: Start, tmp_path: Path) -> None:
    guard = start(SLEEPER)
    pid = pid_of_program(guard, tmp_path / "log")
    guard.kill()
    wait_until(lambda: not is_alive(pid), "the program dies with its guard")


def test_owner_killed_while_a_fork_of_it_holds_the_pipe(tmp_path: Path) -> None:
    """The pipe does not end then; that the parent's pid changes is what tells."""
    owner_code = f"""
import os, subprocess, sys, time
guard = subprocess.Popen([sys.executable, "-I", "-S", {str(GUARD)!r}, str(os.getpid()), "20", "",
                          {str(tmp_path / "log")!r}, *{SLEEPER!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
pid = guard.stdout.readline().decode().strip()
fork = os.fork()
if fork == 0:
    time.sleep(600)
print(pid, fork, flush=True)
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", owner_code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    program, fork = map(int, owner.stdout.readline().split())
    try:
        owner.kill()
        owner.wait()
        wait_until(lambda: not is_alive(program), "the program dies with the guard's owner")
        assert is_alive(fork)
    finally:
        os.kill(fork, signal.SIGKILL)
        owner.stdout.close()
