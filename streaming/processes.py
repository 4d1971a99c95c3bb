"""The processes below Spark's Java on this machine, as Linux tells of them: which are stopped, and which have run."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_SOURCE, _DAEMON = "python_streaming_source_runner", "daemon"
_DAEMON_TICKS = 20
"""A daemon that imports what its workers need takes so many in a moment, one that waits in hours."""
_SWITCHES = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process at one moment. `ran` is another one whenever its main thread has run since."""

    pid: int
    name: str
    is_stopped: bool
    ran: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.pid}"


def below(java: int) -> list[Process]:
    """All that Java has started, and what those have; none where this system does not tell.

    Daemons are among them, which fork workers, and look for something to do each second: that alone is no movement.
    """
    found = []
    for child in _children(java):
        is_daemon = _DAEMON in _command(child)
        found += [one for one in (_seen(child, is_daemon=is_daemon),) if one is not None]
        found += [one for pid in _children(child) if (one := _seen(pid)) is not None]
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal, or a debugger, has stopped it."""
    fields = _stat(pid)
    return bool(fields) and fields[0] in ("T", "t")


def cpu_ticks(pid: int) -> int:
    """What all of its threads have used of processors, in ticks of the system; 0 for one that is gone."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else 0


def started_by(parent: int, command: str) -> int | None:
    """A process that `parent` has started, with this in its command."""
    return next((pid for pid in _children(parent) if command in _command(pid)), None)


def _seen(pid: int, *, is_daemon: bool = False) -> Process | None:
    ran = _ran(pid)
    if ran is None:
        return None
    if is_daemon:
        ran = (sum(ran[:2]) // _DAEMON_TICKS,)
    name = "the source's process" if _SOURCE in _command(pid) else "Spark's daemon" if is_daemon else "Python worker"
    return Process(pid=pid, name=name, is_stopped=is_stopped(pid), ran=ran)


def _ran(pid: int) -> tuple[int, ...] | None:
    """Ticks and switches of its main thread: what computes has the ones, what waits again and again the others."""
    try:
        status = (_PROC / f"{pid}/status").read_text()
    except OSError:
        return None
    switches = [int(line.split()[1]) for line in status.splitlines() if line.startswith(_SWITCHES)]
    fields = _stat(pid, f"/task/{pid}")
    return (int(fields[11]), int(fields[12]), *switches) if fields else None


def _stat(pid: int, task: str = "") -> list[str]:
    """The fields from the state on; none of a process that is gone."""
    try:
        return (_PROC / f"{pid}{task}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in (_PROC / f"{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())


def _command(pid: int) -> str:
    try:
        return (_PROC / f"{pid}/cmdline").read_text(errors="replace")
    except OSError:
        return ""
