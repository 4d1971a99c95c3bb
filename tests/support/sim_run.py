"""One world from its seed, and the smallest form of one that fails."""

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from sim_checker import Checker
from sim_lineage import check_lineage
from sim_readers import check_readers
from sim_world import FAULTS, World

from totalorder.sequencer.wire import invariants
from totalorder.subscriber import Lost

STEPS = 400
LINEAGE_EVERY = 10
"""The lineage of each so many-th world is made and judged too."""
READERS_EVERY = 5
"""Readers look at each so many-th."""
WALKS_EVERY = 5
"""Whole states are walked at each so many-th chance (sequencer/wire/invariants.py)."""
LIMIT_S = 100
"""No world takes so much time of a core."""


@dataclass(frozen=True)
class Case:
    """What decides a world."""

    seed: int
    steps: int = STEPS
    without: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """What repeats it."""
        options = f" WITHOUT={','.join(self.without)}" if self.without else ""
        return f"make simulate FROM={self.seed} SEEDS=1 STEPS={self.steps}{options}"


@dataclass(frozen=True)
class Outcome:
    """What came of a world; `failure` is a traceback, empty if all promises held."""

    case: Case
    delivered: int = 0
    lost: int = 0
    redelivered: int = 0
    snapshots: int = 0
    """With which a recovery began."""
    failure: str = ""


def run(case: Case) -> Outcome:
    """Runs a world and judges it."""
    try:
        walks = invariants.looking(WALKS_EVERY)
        with _limited(LIMIT_S), walks, World(case.seed, without=case.without) as world:
            world.run(case.steps)
            world.heal()
            checker = Checker(world)
            delivered = checker.check()
            if case.seed % LINEAGE_EVERY == 0:
                check_lineage(world, checker.truth)
            if case.seed % READERS_EVERY == 0:
                check_readers(world, checker.truth)
    except Exception:
        return Outcome(case, failure=traceback.format_exc())
    events = [event for process in world.by_nonce.values() for event in process.events]
    lost = sum(isinstance(event, Lost) for event in events)
    redelivered = sum(event.tag is not None for event in events)
    return Outcome(case, delivered, lost, redelivered, world.sequencer.begun_behind)


def shrink(failed: Outcome, tell: Callable[[str], None] = lambda _: None) -> Outcome:
    """The fewest steps, and the fewest faults, that still fail: in any way, for one fault shows itself in several."""
    while True:
        before = failed
        for smaller in _smaller(failed.case):
            outcome = run(smaller)
            if outcome.failure:
                tell(f"still fails: {smaller.command}")
                failed = outcome
                break
        if failed is before:
            return failed


def _smaller(case: Case) -> Iterator[Case]:
    part = case.steps // 2
    while part:
        yield Case(case.seed, case.steps - part, case.without)
        part //= 2
    for name in FAULTS:
        if name not in case.without and World(case.seed, without=case.without).has(name):
            yield Case(case.seed, case.steps, (*case.without, name))


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """TimeoutError for what goes on for ever."""

    def over(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"the world is not over after {seconds} s of a core")

    former = signal.signal(signal.SIGVTALRM, over)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)
