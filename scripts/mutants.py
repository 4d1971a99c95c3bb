"""Do the tests have teeth? Each small fault of tests/mutants is put into a copy of the tree, and some test must fail.

    python scripts/mutants.py [--jobs N] [--only TEXT]… [--stages N] [--check]

A file of faults names the source that it is about, the stages of tests that should find them (the smallest set first),
and the faults: a name, the text to replace, which the source has exactly once, and what to put there. A fault that no
test can find, since it changes nothing that anybody can see, says so as `equivalent`, with the reason.

Each worker has a copy of its own. A run of tests is a fork of one process that has imported what is slow to import and
not the tree's own; what Hypothesis finds is not made smaller. All stages run without a fault first, which also says how
long each may take: a fault that makes tests run five times as long is found too. Exit 1 when a fault is not found, or
is found though it is said to be equivalent, 2 when the tests fail without a fault or a fault no longer fits its source.
`--check` looks only at that.
"""

import argparse
import ast
import importlib.util
import multiprocessing
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LISTS = ROOT / "tests" / "mutants"
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", ".cache", ".hypothesis", "build", "dist", "*.egg-info", "bench-*")
_LONGEST_S = 1_800.0
_LEAST_S, _TIMES = 60.0, 5.0
_END_S = 10.0
_NO_TESTS, _FOREIGN = 5, 77
"""What a run of tests may tell: pytest's own exit code, and that it would take another tree's sources."""
_SLOW = ("hypothesis", "kafka", "numba", "pandas", "pyarrow", "pyspark.sql", "pytest", "sqlalchemy")
"""What takes most of the time in which tests are imported; of these, what is not installed is passed over."""
_FORKS = multiprocessing.get_context("forkserver")
Stage = tuple[str, ...]


class Unfit(Exception):
    """A list of faults, or the tree, is not such that faults could be tried."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault; `name` has the name of its list in front."""

    name: str
    file: str
    old: str
    new: str
    stages: tuple[Stage, ...]
    equivalent: str

    def mutated(self, source: str) -> str:
        """The source with the fault; Unfit where it does not fit, or is no Python with it."""
        count = source.count(self.old)
        if count != 1:
            raise Unfit(f"{self.name}: {self.file} has its text {count} times, and must have it once")
        changed = source.replace(self.old, self.new)
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(source))
        except SyntaxError as error:
            raise Unfit(f"{self.name}: {self.file} is no Python with it ({error})") from None
        if same:
            raise Unfit(f"{self.name} changes nothing")
        return changed


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a mutant: the test that found it, "" for none."""

    mutant: Mutant
    killer: str
    took_s: float

    @property
    def is_well(self) -> bool:
        return bool(self.killer) != bool(self.mutant.equivalent)

    def __str__(self) -> str:
        equivalent = f"equivalent: {self.mutant.equivalent}" if self.mutant.equivalent else ""
        if self.killer:
            return f"killed by {self.killer}" + (f", though said to be {equivalent}" if equivalent else "")
        return equivalent or "SURVIVED"


def main() -> int:
    options = _options()
    try:
        mutants = [
            replace(mutant, stages=mutant.stages[: options.stages])
            for mutant in load()
            if any(text in mutant.name for text in options.only or [""])
        ]
        if not mutants:
            raise Unfit(f"no fault has {options.only} in its name")
        for mutant in mutants:
            mutant.mutated((ROOT / mutant.file).read_text(encoding="utf-8"))
        if options.check:
            print(f"{len(mutants)} faults fit")
            return 0
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
        os.environ["PYTHONHASHSEED"] = "0"
        _FORKS.set_forkserver_preload(["__main__", *_SLOW])
        outcomes = run(mutants, options.jobs)
    except Unfit as unfit:
        print(f"mutants: {unfit}", file=sys.stderr)
        return 2
    return _report(outcomes)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Put small faults into a copy of the tree; some test must fail.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time (all cores)")
    parser.add_argument("--only", action="append", help="those with this text in their names; may be given again")
    parser.add_argument("--stages", type=int, help="so many stages at most: the first one is a quick look")
    parser.add_argument("--check", action="store_true", help="see only whether each still fits its source")
    return parser.parse_args()


def load() -> list[Mutant]:
    """All faults; Unfit where a list is not as it should be."""
    found: list[Mutant] = []
    for path in sorted(LISTS.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        stages = tuple(tuple(stage) for stage in content["stages"])
        for one in content["mutants"]:
            if unknown := one.keys() - {"name", "old", "new", "equivalent"}:
                raise Unfit(f"{path.name} has unknown fields: {', '.join(sorted(unknown))}")
            found.append(
                Mutant(
                    name=f"{path.stem}/{one['name']}",
                    file=content["file"],
                    old=one["old"],
                    new=one["new"],
                    stages=stages,
                    equivalent=one.get("equivalent", ""),
                )
            )
    names = [mutant.name for mutant in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Unfit(f"these names are there twice: {', '.join(twice)}")
    return found


def run(mutants: list[Mutant], jobs: int) -> list[Outcome]:
    """Tries each; prints how far it is."""
    jobs = max(1, min(jobs, len(mutants)))
    with tempfile.TemporaryDirectory(prefix="totalorder-mutants-") as folder:
        trees = [Tree(Path(folder) / str(number)) for number in range(jobs)]
        pool: queue.Queue[Tree] = queue.Queue()
        for tree in trees:
            pool.put(tree)
        outcomes: list[Outcome] = []
        counting = threading.Lock()
        limits: dict[Stage, float] = {}

        @contextmanager
        def taken() -> Iterator[Tree]:
            tree = pool.get()
            try:
                yield tree
            finally:
                pool.put(tree)

        def measure(stage: Stage) -> tuple[Stage, float]:
            with taken() as tree:
                return stage, tree.baseline(stage)

        def attempt(mutant: Mutant) -> None:
            with taken() as tree:
                outcome = tree.attempt(mutant, limits)
            with counting:
                outcomes.append(outcome)
                print(f"{len(outcomes)}/{len(mutants)} {mutant.name}: {outcome} ({outcome.took_s:.0f} s)", flush=True)

        with ThreadPoolExecutor(jobs) as workers:
            try:
                limits |= workers.map(measure, _stages(mutants))
                # These go through all stages: one of them would be the last, and alone.
                longest_first = sorted(mutants, key=lambda mutant: not mutant.equivalent)
                for done in [workers.submit(attempt, mutant) for mutant in longest_first]:
                    done.result()
            finally:
                workers.shutdown(wait=False, cancel_futures=True)
                for tree in trees:
                    tree.end()
    return outcomes


def _stages(mutants: Iterable[Mutant]) -> list[Stage]:
    return list(dict.fromkeys(stage for mutant in mutants for stage in mutant.stages))


def _report(outcomes: list[Outcome]) -> int:
    killed = sum(bool(outcome.killer) for outcome in outcomes)
    equivalent = sum(not outcome.killer and outcome.is_well for outcome in outcomes)
    wrong = [outcome for outcome in outcomes if not outcome.is_well]
    print(f"\n{len(outcomes)} faults: {killed} found, {equivalent} equivalent, {len(wrong)} not as they should be")
    for outcome in sorted(wrong, key=lambda outcome: outcome.mutant.name):
        print(f"  {outcome.mutant.name}: {outcome}")
    return 1 if wrong else 0


class Tree:
    """A copy of the tree, in which one fault at a time is tried."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._output = root.with_suffix(".out")
        self._process: ForkServerProcess | None = None
        self._is_over = False
        shutil.copytree(ROOT, root, ignore=_LEFT_OUT, symlinks=True)
        (root / ".cache").symlink_to(ROOT / ".cache")
        subprocess.run([sys.executable, root / "scripts" / "link_tree.py"], check=True)

    def baseline(self, stage: Stage) -> float:
        """How many seconds a stage may take; Unfit where it fails without a fault."""
        print(f"without a fault: {' '.join(stage)}", flush=True)
        began_s = time.monotonic()
        if killer := self._run(stage, _LONGEST_S):
            raise Unfit(f"without a fault {killer} fails")
        return max(_LEAST_S, _TIMES * (time.monotonic() - began_s))

    def attempt(self, mutant: Mutant, limits: dict[Stage, float]) -> Outcome:
        """Runs the stages until a test fails."""
        path, began_s = self._root / mutant.file, time.monotonic()
        source = path.read_text(encoding="utf-8")
        self._write(path, mutant.mutated(source))
        try:
            killers = (self._run(stage, limits[stage]) for stage in mutant.stages)
            killer = next((killer for killer in killers if killer), "")
        finally:
            self._write(path, source)
        return Outcome(mutant=mutant, killer=killer, took_s=time.monotonic() - began_s)

    def _write(self, path: Path, source: str) -> None:
        path.write_text(source, encoding="utf-8")
        # Python tells an old .pyc by seconds and size alone.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def _run(self, stage: Stage, limit_s: float) -> str:
        """The test that fails, "" when none does."""
        told, tells = _FORKS.Pipe(duplex=False)
        self._process = _FORKS.Process(target=_test, args=(self._root, stage, self._output, tells))
        self._process.start()
        tells.close()
        in_time = told.poll(limit_s)
        code = _code(told) if in_time else None
        self._process.join(_END_S if in_time else 0)
        self._kill()
        if self._is_over:
            raise Unfit("it was interrupted")
        if not in_time:
            return f"time: {' '.join(stage)} took more than {limit_s:.0f} s"
        output = self._output.read_text(encoding="utf-8", errors="replace")
        if code == _FOREIGN:
            raise Unfit("a copy takes its sources from another tree")
        if code == _NO_TESTS:
            raise Unfit(f"{' '.join(stage)} has no tests:\n{output}")
        return "" if code == 0 else _killer(output)

    def end(self) -> None:
        """Ends the tests that run, for good."""
        self._is_over = True
        self._kill()

    def _kill(self) -> None:
        """And all that they have started."""
        if self._process is None or not self._process.is_alive():
            return
        try:
            os.killpg(self._process.pid or 0, signal.SIGKILL)
        except ProcessLookupError:  # it has just begun
            self._process.kill()


def _code(told: Connection) -> int | None:
    """What a run of tests tells last; None where it does not come to that."""
    try:
        return int(told.recv())
    except EOFError:
        return None


def _test(root: Path, stage: Stage, output: Path, tells: Connection) -> None:
    """Runs a stage within a tree, in a process of its own; tells what pytest says of it in the end."""
    os.setsid()
    with output.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(root)
    own = str(root / "build" / "typing")  # before where the rooms are installed
    sys.path[:] = [own, *(path for path in sys.path if path != str(Path(__file__).parent))]
    os.environ.update(PYTHONPATH=own, PYTHONSAFEPATH="1")
    sys.dont_write_bytecode = False  # else each run compiles all tests anew
    found = importlib.util.find_spec("totalorder.sequencer.engine")
    if found is None or not Path(found.origin or "").resolve().is_relative_to(root.resolve()):
        tells.send(_FOREIGN)
        return

    import pytest
    from hypothesis import Phase, settings

    settings.register_profile("mutants", deadline=None, database=None, phases=[Phase.explicit, Phase.generate])
    options = "-x -q --no-header --tb=no -p no:cacheprovider --hypothesis-seed=0 --hypothesis-profile=mutants"
    tells.send(int(pytest.main([*stage, *options.split()])))


def _killer(output: str) -> str:
    for line in output.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" - ")[0].split(" ", 1)[1]
    return "pytest itself: " + " ".join(output.split())[-300:]


if __name__ == "__main__":
    sys.exit(main())
