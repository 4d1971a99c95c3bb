"""The whole system from one seed. A failure tells the command that repeats it; for more seeds: `make simulate`."""

import pytest
from sim_run import Case, run

RARE = (2489, 16355)
"""Worlds that show what few do. 2489: a request to retire a topic, which is not signed as it must be, comes in the
batch that has the first events of that topic, and changes nothing (`_topics_shown` of the engine). 16355: of a
partition that is new to a subscriber with m = 2, one stamps partition names an offset before another one names an
earlier, in the same batch (`ready_batch` of the delivery machine). When a change of the simulation makes another world
of it, look for one: break that rule, and run many.
"""
SEEDS = (*range(200), *RARE)


@pytest.mark.timeout(1200)
def test_promise_holds_in_every_world() -> None:
    delivered = lost = redelivered = snapshots = 0
    for seed in SEEDS:
        outcome = run(Case(seed))
        if outcome.failure:
            pytest.fail(f"{outcome.case.command}\n{outcome.failure}", pytrace=False)
        delivered += outcome.delivered
        lost, redelivered = lost + outcome.lost, redelivered + outcome.redelivered
        snapshots += outcome.snapshots
    assert delivered - lost > 50 * len(SEEDS)
    assert lost > len(SEEDS)
    assert redelivered > len(SEEDS)
    assert snapshots > 0.1 * len(SEEDS)
