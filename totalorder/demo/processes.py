"""Starts the demo's processes, listens to them, and ends them: none outlives the demo, whichever way that ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from totalorder.errors import Error

_SUPERVISOR = Path(__file__).with_name("supervisor.py")
_TICK_S = 0.2
_TAIL_LINES = 12
_KILLED_S = 30.0


class Process:
    """A process that the demo started. `status` holds what it last said, by name."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path, heard: threading.Condition) -> None:
        self.name = name
        self.status: dict[str, Any] = {}
        self._process = process
        self._log = log
        self._heard = heard
        threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Its process id, also that of its process group."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, None while it runs."""
        return self._process.poll()

    def tell(self, **message: object) -> None:
        """Send it a message; one that has ended hears nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def terminate(self) -> None:
        """Ask it to end by SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and everything that it started, at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within the time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            return True
        return False

    def log_text(self) -> str:
        """Its log."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log_text().splitlines()[-_TAIL_LINES:])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self.status |= json.loads(line)
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()


class Processes:
    """The processes of one run, and the folder that they share. A context manager: at its end all are gone.

    `worker` is the module that plays their roles.
    """

    def __init__(self, worker: str = "totalorder.demo.worker") -> None:
        self._worker = worker
        self.running: list[Process] = []
        self._heard = threading.Condition()

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="totalorder-demo-"))
        self._supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SUPERVISOR), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.running:
            process.kill()
        for process in self.running:
            process.wait(_KILLED_S)
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        self._supervisor.wait()

    def start(self, name: str, role: str, **spec: object) -> Process:
        """Start a process that plays `role` of the worker's module, with its own session, log file and `spec`."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as output:
            popen = subprocess.Popen(
                [sys.executable, "-m", self._worker, role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                # What a killed process leaves among temporary files goes with the folder.
                env={**os.environ, "TMPDIR": str(self.folder), "SPARK_LOCAL_DIRS": str(self.folder)},
                start_new_session=True,
            )
        self._note(f"+{popen.pid}")
        process = Process(name, popen, log, self._heard)
        self.running.append(process)
        process.tell(**spec)
        return process

    def until(
        self, done: Callable[[], bool], *, what: str, timeout_s: float, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Wait until `done()`, calling `tick` about five times a second.

        Error when the time is over (it names `what`), or when a process has ended that should be running.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._heard:
                if done():
                    return
                self._heard.wait(_TICK_S)
            tick()
            self.check()
            if time.monotonic() > deadline and not done():
                raise Error(
                    f"{what} took longer than {timeout_s:g} s", remedy=f"The processes say:\n{self._last_words()}"
                )

    def check(self) -> None:
        """Error when a process has ended that was not dismissed."""
        for process in self.running:
            if process.code is not None:
                raise Error(
                    f"The process {process.name!r} ended with code {process.code}",
                    remedy=f"The end of its log:\n{process.log_tail()}",
                )

    def dismiss(self, processes: Iterable[Process], *, timeout_s: float) -> None:
        """Wait for the end of processes that have been told to end. Error for one that does not, or that failed."""
        for process in processes:
            if not process.wait(timeout_s):
                process.kill()
                raise Error(
                    f"The process {process.name!r} did not end within {timeout_s:g} s",
                    remedy=f"The end of its log:\n{process.log_tail()}",
                )
            if process.code != 0:
                self.check()
            self._forget(process)

    def crash(self, process: Process) -> None:
        """End a process by SIGKILL, on purpose."""
        process.kill()
        process.wait(_KILLED_S)
        self._forget(process)

    def _forget(self, process: Process) -> None:
        process.kill()  # of what it started something may be left
        self.running.remove(process)
        self._note(f"-{process.pid}")

    def _note(self, line: str) -> None:
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(line + "\n")
        self._supervisor.stdin.flush()

    def _last_words(self) -> str:
        return "\n".join(f"{process.name}: {process.status or 'nothing'}" for process in self.running)
