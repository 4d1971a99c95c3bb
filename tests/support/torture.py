"""A storm from one seed: a real broker and job, lineage, four subscribers, a publisher that never stops, and faults one
after the other; then calm, and judgement. `python tests/support/torture.py --help`, or `make torture`.
"""

import argparse
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from small_disk import NotMounted, small_disk
from spark_process import SequencerProcess
from torture_faults import EVERY, FAULTS, OF_DISKS, OF_LINEAGE
from torture_judge import logs_of, pairs, violations
from torture_parts import (
    DOMAIN,
    HEALED_S,
    LAST_LINES,
    PARTITIONS,
    SUBSCRIBERS,
    TOPICS,
    Command,
    LineageProcess,
    Publisher,
    Subscriber,
)
from waiting import wait_until

from totalorder.broker import LocalBroker
from totalorder.sinks.runner import READY as LINEAGE_READY

_QUICK = "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1"
_DISK_MB = 1_024
Say = Callable[[str], None]


@dataclass
class Report:
    """What happened: faults by their names, the longest standstill behind each kind, in seconds, and verdicts of SQL
    audits.
    """

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    standstill_s: dict[str, float] = field(default_factory=dict)
    events: int = 0
    deliveries: int = 0
    marked: int = 0
    pairs: int = 0
    ends: dict[str, dict[int, int]] = field(default_factory=dict)
    audits: dict[str, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


class Storm:
    """Everything that takes part; `rage` runs faults, `judge` looks at what came of it."""

    def __init__(self, seed: int, say: Say, *, lineage: bool = True, disks: bool = True) -> None:
        """`lineage` runs beside if wanted; `disks`: checkpoint and broker have small ones of their own, if that can be
        had.
        """
        self.report = Report(seed)
        self.lineage: Command | None = None
        self.disks: dict[str, Path] = {}
        """By what lies on them."""
        self._of_lineage: dict[str, object] = {}
        self._wants_lineage, self._wants_disks = lineage, disks
        self._random, self._say = random.Random(seed), say
        self._left = ExitStack()

    # --- begin and end ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="totalorder-torture-")))
            if self._wants_disks:
                self._mount(folder, stack)
            broker_dir = self.disks["broker"] / "data" if self.disks else None
            self.broker = stack.enter_context(LocalBroker(data_dir=broker_dir))
            servers = self.broker.bootstrap_servers
            self._make_topics(servers)
            self._start_all(folder, servers, stack)
            self.publisher = stack.enter_context(Publisher(servers, self.report.seed))
            self._left = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.close()

    def _mount(self, folder: Path, stack: ExitStack) -> None:
        with ExitStack() as mounted:
            try:
                found = {
                    name: mounted.enter_context(small_disk(folder / name, megabytes=_DISK_MB))
                    for name in ("checkpoint", "broker")
                }
            except NotMounted as error:
                self._say(f"no disk is filled: {error}")
                return
            self.disks = found
            stack.push(mounted.pop_all())

    def _make_topics(self, servers: str) -> None:
        admin = AdminClient({"bootstrap.servers": servers})
        made = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in TOPICS])
        for done in made.values():
            done.result(60)

    def _start_all(self, folder: Path, servers: str, stack: ExitStack) -> None:
        common: dict[str, object] = {"domain": DOMAIN, "bootstrap_servers": servers, "spark": _QUICK}
        own: dict[str, object] = {"topics": ",".join(TOPICS), "stamps_partitions": 2}
        state = self.disks.get("checkpoint", folder) / "state"
        self.job = Command(SequencerProcess, common | own | {"checkpoint_dir": state})
        stack.callback(lambda: self.job.kill())
        self.subscribers = {}
        for name in SUBSCRIBERS:
            self.subscribers[name] = Subscriber(name, servers, folder)
            stack.callback(self.subscribers[name].close)
        self.until("all are subscribed", lambda: all(one.granted for one in self.subscribers.values()))
        if self._wants_lineage:
            self._of_lineage = common | {"tables": folder / "tables"}
            self.lineage = Command(LineageProcess, self._of_lineage | {"interval_s": 2})
            stack.callback(self.lineage.kill)

    # --- the storm ----------------------------------------------------------------------------------------------------

    @property
    def commands(self) -> list[Command]:
        """The job, and lineage where it runs."""
        return [self.job] if self.lineage is None else [self.job, self.lineage]

    @property
    def everybody(self) -> list[int]:
        """All processes but the broker."""
        of_commands = [pid for command in self.commands for pid in command.all]
        return [*of_commands, *(one.pid for one in self.subscribers.values())]

    @property
    def faults(self) -> list[str]:
        """Names of those that can be had."""
        return sorted(FAULTS | (OF_LINEAGE if self.lineage else {}) | (OF_DISKS if self.disks else {}))

    def _look(self) -> None:
        for command in self.commands:
            command.look()
        for one in self.subscribers.values():
            one.look()

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Waits, and starts anew who has ended."""

        def met() -> bool:
            self._look()
            return condition()

        try:
            wait_until(met, what, bound_s=HEALED_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._last_words()}") from error

    def _last_words(self) -> str:
        """What the commands said last, and how far each subscriber is."""
        said = ["".join(command.process.lines[-LAST_LINES:]) for command in self.commands]
        return "\n".join([*said, *(one.state() for one in self.subscribers.values())])

    def rage(self, count: int, names: list[str] | None = None) -> None:
        """So many faults of the seed's choice; after each, all must come to life again."""
        for _ in range(count):
            name = self._random.choice(sorted(names or self.faults))
            self.report.faults[name] += 1
            began = time.monotonic()
            EVERY[name](self)
            self._alive(name)
            took_s = round(time.monotonic() - began, 1)
            self.report.standstill_s[name] = max(took_s, self.report.standstill_s.get(name, 0.0))
            self._say(f"{self.publisher.number} events published; {name}: {took_s} s")

    def _alive(self, name: str) -> None:
        """Waits until each subscriber has an event that was published after the fault was over, and lineage runs."""
        mark = self.publisher.number
        self.until(
            f"each subscriber got what was published after {name} (seed {self.report.seed})",
            lambda: all(one.events and one.events[-1].number >= mark for one in self.subscribers.values()),
        )
        self._until_lineage_runs(name)

    def _until_lineage_runs(self, after: str) -> None:
        if (lineage := self.lineage) is not None:
            self.until(f"lineage runs after {after}", lambda: bool(lineage.process.logged(LINEAGE_READY)))

    def pick(self, low: float, high: float) -> float:
        """A number of the seed's choice."""
        return self._random.uniform(low, high)

    def choose(self, among: list[int]) -> list[int]:
        """One of the processes; none where there are none."""
        return [self._random.choice(sorted(among))] if among else []

    def pass_time(self, seconds: float) -> None:
        """Lets the storm go on for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._look()
            time.sleep(0.02)

    # --- judgement ----------------------------------------------------------------------------------------------------

    def judge(self) -> Report:
        """Calm: nothing more is published, all that is owed comes, and is compared with what Kafka holds."""
        self.publisher.stop()
        report, logs = self.report, logs_of(self.broker.bootstrap_servers, TOPICS)
        owed = {name: sum(place[0] in topics for place in logs) for name, topics in SUBSCRIBERS.items()}
        with contextlib.suppress(AssertionError):  # what is missing then is told by name
            self.until(
                "all that was published is delivered",
                lambda: all(len({e.place for e in one.events}) >= owed[name] for name, one in self.subscribers.items()),
            )
        for one in self.subscribers.values():
            one.end()  # so that all receipts are sent
        told = {name: one.events for name, one in self.subscribers.items()}
        report.violations = violations(logs, told, SUBSCRIBERS)
        report.events, report.pairs = len(logs), pairs(told)
        report.deliveries = sum(map(len, told.values()))
        report.marked = sum(event.marked for events in told.values() for event in events)
        report.ends = {"job": dict(self.job.ends)} | {n: dict(one.ends) for n, one in self.subscribers.items()}
        if self.lineage is not None:
            report.ends["lineage"] = dict(self.lineage.ends)
            self._audit(self.lineage)
        return report

    def _audit(self, lineage: Command) -> None:
        """Asks the tables, when all of Kafka is in them."""
        self._until_lineage_runs("the storm is over")
        assert lineage.process.terminate(signal.SIGTERM) == 0, "".join(lineage.process.lines[-LAST_LINES:])
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in self._of_lineage.items()]
        _run("lineage", "--until-caught-up", *flags)
        lines = _run("audit", "--json", f"--tables={self._of_lineage['tables']}", may_fail=True).splitlines()
        for found in [json.loads(line) for line in lines if '"audit"' in line]:
            self.report.audits[found["audit"]] = found["verdict"]
            if found["verdict"] == "violated":
                self.report.violations.append(f"audit {found['audit']}: {found['rows'][:3]}")
        assert self.report.audits, lines


def _run(*words: str, may_fail: bool = False) -> str:
    """What a command of totalorder's prints."""
    command = [str(Path(sys.executable).with_name("totalorder")), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HEALED_S)
    assert may_fail or done.returncode == 0, done.stderr
    return done.stdout


def say(text: str) -> None:
    """A line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Exit code 1 where the promise was broken, or life did not come back."""
    parser = argparse.ArgumentParser(description="Faults against a real job; a seed repeats their choice.")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--faults", type=int, default=20, help="how many, one after the other")
    parser.add_argument("--only", action="append", choices=sorted(EVERY), help="only such; repeatable")
    parser.add_argument("--no-lineage", action="store_true", help="lineage does not run beside, and no SQL is asked")
    given = parser.parse_args()
    say(f"seed {given.seed}: {given.faults} faults")
    with Storm(given.seed, say, lineage=not given.no_lineage) as storm:
        storm.rage(given.faults, given.only)
        report = storm.judge()
    say(json.dumps(report.__dict__, indent=2))
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
