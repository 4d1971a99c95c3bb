"""`totalorder sequence` as a process of its own, watched through its JSON log."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from spark_shared import QUICK_JAVA
from waiting import is_alive, wait_until

START_BOUND_S = 200.0


class SequencerProcess:
    """Started when made; killed on exit, if it still runs."""

    command: tuple[str, ...] = (str(Path(sys.executable).with_name("totalorder")), "sequence", "--verbose")

    spark: ClassVar[Mapping[str, object]] = {"spark": "=".join(*QUICK_JAVA.items())}
    """Where nothing else is given: a process of a test is soon over."""

    def __init__(self, **settings: object) -> None:
        flags = [
            text
            for key, value in {**self.spark, **settings}.items()
            for text in (f"--{key.replace('_', '-')}", str(value))
        ]
        self._process = subprocess.Popen(
            [*self.command, "--log-format", "json", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(self._process.stdout)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Log lines of one event."""
        parsed = [json.loads(line) for line in list(self.lines) if line.startswith("{")]
        return [line for line in parsed if line["event"] == event]

    def until_ready(self) -> None:
        """Waits until the first batch may come."""
        self.until("sequencer ready", lambda: bool(self.logged("sequencer ready")))

    def until(self, what: str, condition: Any) -> None:
        """Waits for a condition, and fails at once when the process has ended."""
        wait_until(lambda: condition() or not self.running, what, bound_s=START_BOUND_S)
        assert condition(), "".join(self.lines)

    @property
    def pid(self) -> int:
        """Of Python; under spark-submit of Java."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether Python runs."""
        return self._process.poll() is None

    def java(self) -> list[int]:
        """Processes that it started: Java; under spark-submit, which is one, Python."""
        listed = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], stdout=subprocess.PIPE, text=True
        )
        return [int(pid) for pid in listed.stdout.split() if is_alive(int(pid))]

    def terminate(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signals the process group, as a shell or a supervisor does; the exit code."""
        os.killpg(self._process.pid, number)
        return self._process.wait(START_BOUND_S)

    def wait(self) -> int:
        """The exit code of a process that ends by itself."""
        return self._process.wait(START_BOUND_S)

    def kill(self) -> None:
        """SIGKILL for Python and its Java, as the end of a machine would be; waits until both are gone."""
        children = self.java() if self.running else []
        self._process.kill()
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        self._process.wait(START_BOUND_S)
        wait_until(lambda: not any(is_alive(pid) for pid in children), "Java is gone", bound_s=START_BOUND_S)
        self._reader.join(START_BOUND_S)


def uncommit(checkpoint: Path) -> int:
    """Takes back the newest commit, as if the kill had come just before it; returns its number."""
    commits = checkpoint / "query" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)
    return newest
