"""Who takes part in a storm: a publisher, subscribers and commands as processes that are started anew when they end."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Self

import torture_subscriber
from confluent_kafka import KafkaException, Producer
from spark_process import SequencerProcess
from torture_judge import Delivered

from totalorder.bench.live.memory import processes_below

TOPICS = ("a", "b", "c", "d")
PARTITIONS = 2
SUBSCRIBERS = {"s1": {"a", "b"}, "s2": {"b", "c"}, "s3": {"c", "d", "a"}, "s4": set(TOPICS)}
DOMAIN = "storm"
HEALED_S = 1_200.0
"""Bound of every wait for life after a fault: a kill of the job amid its start has taken 315 s on a busy machine."""
OUTAGE_S = 30.0
"""How long a subscriber bears an outage."""
LAST_LINES = 12
_RATE = 50


class Publisher:
    """Events at an even rate, each with the next number as its value; a thread and a client of its own."""

    def __init__(self, servers: str, seed: int) -> None:
        self.number = 0
        """Of the next event."""
        self.clock_off_ms = 0
        self._producer = Producer({"bootstrap.servers": servers, "message.timeout.ms": 0, "log_level": 0})
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stop.wait(1 / _RATE):
            topic, partition = self._random.choice(TOPICS), self._random.randrange(PARTITIONS)
            stamp = int(time.time() * 1_000) + self.clock_off_ms
            with contextlib.suppress(BufferError, KafkaException):
                self._producer.produce(topic, value=str(self.number), partition=partition, timestamp=stamp)
                self.number += 1
            self._producer.poll(0)

    def stop(self) -> None:
        """Publishes no more; what it was about to is on the log."""
        self._stop.set()
        self._thread.join()
        assert not self._producer.flush(HEALED_S), "the broker does not take what was published"


class Subscriber:
    """An application, started anew whenever it has ended; what its processes printed, in order."""

    def __init__(self, name: str, servers: str, folder: Path) -> None:
        self.name = name
        self.events: list[Delivered] = []
        self.ends: Counter[int] = Counter()
        """Exit codes of its processes."""
        self._path = folder / f"{name}.out"
        self._errors = folder / f"{name}.err"
        self._path.touch()
        self._read: IO[bytes] = self._path.open("rb")
        program = Path(torture_subscriber.__file__)
        arguments = [name, DOMAIN, servers, str(HEALED_S), str(OUTAGE_S), *sorted(SUBSCRIBERS[name])]
        self._command = [sys.executable, str(program), *arguments]
        self._process = self._start()
        self._rest = b""
        self._is_over = False

    def _start(self) -> subprocess.Popen[bytes]:
        with self._path.open("ab") as out, self._errors.open("ab") as err:
            return subprocess.Popen(self._command, stdout=out, stderr=err)

    def look(self) -> None:
        """Reads what is new; starts another process where there is none."""
        if self._is_over:
            return
        gone = self._process.poll()
        self._take()
        if gone is not None:
            self.ends[gone] += 1
            assert gone in (-signal.SIGKILL, 1), self._errors.read_text()
            self._rest = b""  # half a line: its process died before it had handed the event out
            self._cut()
            self._process = self._start()

    def _take(self) -> None:
        lines = (self._rest + self._read.read()).split(b"\n")
        self._rest = lines.pop()
        self.events += [Delivered.of(json.loads(line)) for line in lines]

    def _cut(self) -> None:
        """Takes half a line away from the file's end."""
        size = self._read.tell()
        data = self._path.read_bytes()[:size]
        os.truncate(self._path, data.rfind(b"\n") + 1)
        self._read.seek(0, os.SEEK_END)

    def state(self) -> str:
        """How far it is, and what its processes said last."""
        newest = self.events[-1].number if self.events else None
        said = self._errors.read_text().splitlines()[-LAST_LINES:]
        return "\n".join([f"{self.name}: {len(self.events)} events, the last is number {newest}", *said])

    @property
    def granted(self) -> bool:
        """Whether its subscription is in force."""
        return torture_subscriber.SUBSCRIBED in self._errors.read_text()

    @property
    def pid(self) -> int:
        """Of the present process."""
        return self._process.pid

    def end(self) -> None:
        """For good, and in good order where it is subscribed."""
        self._is_over = True
        self._process.terminate()
        self.ends[self._process.wait(HEALED_S)] += 1
        self._take()

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        self._read.close()


class LineageProcess(SequencerProcess):
    """`totalorder lineage` as a process of its own."""

    command = (str(Path(sys.executable).with_name("totalorder")), "lineage")


class Command:
    """A command of totalorder's, started anew whenever it has ended."""

    def __init__(self, kind: type[SequencerProcess], settings: Mapping[str, object]) -> None:
        self._kind, self._settings = kind, settings
        self.ends: Counter[int] = Counter()
        self.said_last: list[str] = []
        """The last words of each process that has ended."""
        self.process = kind(**settings)

    def look(self) -> None:
        """Starts another process where there is none."""
        if not self.process.running:
            code = self.process.wait()
            self.process.kill()
            lines = self.process.lines
            self.ends[code] += 1
            self.said_last.append("".join(lines[-3:]))
            assert code in (-signal.SIGKILL, 1), "".join(lines)
            assert "recover" not in self.said_last[-1], self.said_last[-1]
            self.process = self._kind(**self._settings)

    def below(self, part: str = "") -> list[int]:
        """Its processes with these words in their command, but for the first one."""
        return [pid for pid in processes_below(self.process.pid) if part in _command_of(pid)]

    @property
    def all(self) -> list[int]:
        """All its processes."""
        return [self.process.pid, *self.below()]

    def kill(self) -> None:
        """The end of it, as the end of a machine would be."""
        self.process.kill()


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def signalled(pids: list[int], number: signal.Signals) -> None:
    """Sends a signal to those that are still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Within, they stand still."""
    signalled(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        signalled(pids, signal.SIGCONT)
