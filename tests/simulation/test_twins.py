"""Processes of one id that overlap, however their calls interleave: nothing twice without a flag, no false flags.

More seeds: TOTALORDER_SIM_FROM=1000 TOTALORDER_SIM_TO=9000 pytest tests/simulation/test_twins.py
"""

import os
import traceback

import pytest
from sim_twins import TwinWorld

SEEDS = range(int(os.environ.get("TOTALORDER_SIM_FROM", "0")), int(os.environ.get("TOTALORDER_SIM_TO", "60")))
STEPS = 800


@pytest.mark.timeout(1200)
def test_overlapping_processes_of_an_id_never_deliver_twice_without_a_flag() -> None:
    delivered, failed = 0, []
    for seed in SEEDS:
        try:
            world = TwinWorld(seed)
            world.run(STEPS)
            world.heal()
            delivered += world.check()
        except Exception:
            failed.append((seed, traceback.format_exc()))
    if failed:
        seed, trace = failed[0]
        pytest.fail(f"{len(failed)} of {len(SEEDS)} worlds, first seed {seed}:\n{trace}", pytrace=False)
    assert delivered > 10 * len(SEEDS)
