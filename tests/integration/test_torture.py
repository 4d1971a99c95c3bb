"""A short storm on real processes; `make torture` has long ones."""

import pytest
from torture import Storm


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_a_short_storm_breaks_no_promise() -> None:
    with Storm(1, print, lineage=False, disks=False) as storm:
        for name in ("kill a subscriber", "kill Java", "kill the broker"):
            storm.rage(1, [name])
        report = storm.judge()
    assert not report.violations, report
    assert report.events > 100
    assert report.pairs > 10_000
