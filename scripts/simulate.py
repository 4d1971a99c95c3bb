"""Runs many simulated worlds on all cores; stops at the first that breaks a promise, and says how to repeat it.

    make simulate SEEDS=10000 [FROM=0] [STEPS=600] [WITHOUT=fault,fault] [JOBS=2]

Exit code 0: all promises held; 1: one did not; 2: wrong usage.
"""

import argparse
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from sim_run import STEPS, Case, Outcome, run, shrink
from sim_world import FAULTS

_TELL_S = 10
_WORLDS_EACH = 200
"""A process ends after so many: what stalls in a world when that ends is never freed."""
_PROCESSES = multiprocessing.get_context("spawn")
"""A process that is forked has its parent's handlers of signals and locks that were held, and may never end."""


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    options = _parsed(arguments)
    cases = [Case(seed, options.steps, options.without) for seed in range(options.first, options.first + options.seeds)]
    began = told = time.monotonic()
    done: list[Outcome] = []
    with _outcomes(cases, options.jobs) as outcomes:
        for outcome in outcomes:
            done.append(outcome)
            if outcome.failure:
                break
            if time.monotonic() - told >= _TELL_S:
                told = time.monotonic()
                print(_progress(done, len(cases), told - began), flush=True)
    if done[-1].failure:
        return _fail(done[-1])
    print(_progress(done, len(cases), time.monotonic() - began))
    return 0


@contextmanager
def _outcomes(cases: list[Case], jobs: int) -> Iterator[Iterator[Outcome]]:
    """One job is this process itself."""
    quiet = logging.ERROR  # that a subscriber is fenced or out of its lease is what worlds are for
    if jobs == 1:
        logging.disable(quiet)
        try:
            yield map(run, cases)
        finally:
            logging.disable(logging.NOTSET)
        return
    with _PROCESSES.Pool(jobs, logging.disable, (quiet,), maxtasksperchild=_WORLDS_EACH) as pool:
        yield pool.imap_unordered(run, cases)


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make simulate", description="Faults of that may be left out: " + " ".join(FAULTS)
    )
    parser.add_argument("--from", dest="first", type=int, default=0, help="first seed")
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--steps", type=int, default=STEPS, help="of each world")
    parser.add_argument("--without", default="", help="faults that are left out, with commas between")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    options = parser.parse_args(arguments)
    options.without = tuple(name for name in options.without.split(",") if name)
    if unknown := set(options.without) - FAULTS.keys():
        parser.error(f"unknown faults: {', '.join(sorted(unknown))}; known are {', '.join(FAULTS)}")
    if min(options.seeds, options.steps, options.jobs) < 1:
        parser.error("seeds, steps and jobs are at least 1")
    return options


def _progress(done: list[Outcome], of: int, seconds: float) -> str:
    delivered, lost, redelivered = (
        sum(getattr(outcome, name) for outcome in done) for name in ("delivered", "lost", "redelivered")
    )
    return (
        f"{len(done)} of {of} worlds in {seconds:.0f} s: {delivered} deliveries, "
        f"{redelivered} of them again, {lost} as lost; every promise held"
    )


def _fail(outcome: Outcome) -> int:
    print(f"seed {outcome.case.seed} fails:\n{outcome.failure}\nlooking for a smaller form of it", flush=True)
    smallest = shrink(outcome, lambda text: print(text, flush=True))
    print(f"{smallest.failure}\nRepeat it: {smallest.case.command}", flush=True)
    return 1


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    sys.exit(main())
