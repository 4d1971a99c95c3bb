"""The whole system from one seed. A failure names the seed: `World(seed)` repeats it exactly."""

import os
import traceback

import pytest
from sim_checker import Checker
from sim_world import World

SEEDS = range(int(os.environ.get("TOTALORDER_SIM_FROM", "0")), int(os.environ.get("TOTALORDER_SIM_TO", "25")))
STEPS = 80


def simulate(seed: int) -> int:
    world = World(seed)
    world.run(STEPS)
    world.heal()
    return Checker(world).check()


def test_promise_holds_in_every_world() -> None:
    delivered = 0
    for seed in SEEDS:
        try:
            delivered += simulate(seed)
        except BaseException:
            pytest.fail(f"seed {seed}:\n{traceback.format_exc()}", pytrace=False)
    assert delivered > 20 * len(SEEDS)
