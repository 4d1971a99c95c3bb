"""The benchmark of growth: exponents, the figures of one point, and what is written."""

import csv
import json
from pathlib import Path

import pytest

from totalorder.bench import growth
from totalorder.bench.growth import Scale, measure, slope
from totalorder.bench.outcome import Request, Size


def test_the_exponent_is_that_of_a_power() -> None:
    x = [10.0, 100.0, 1_000.0]
    assert slope(x, [3 * value**2 for value in x]) == pytest.approx(2)
    assert slope(x, [7.0, 7.0, 7.0]) == pytest.approx(0)
    assert slope(x, [5 / value for value in x]) == pytest.approx(-1)


def test_a_point_tells_what_the_domain_holds() -> None:
    small = measure(Scale(topics=20, subscribers=50, size=5))
    large = measure(Scale(topics=20, subscribers=50, size=10))
    assert small.topic_subscriptions == 250
    assert large.topic_subscriptions == 500
    assert 1 < small.mean_group < large.mean_group <= 20
    assert small.cold_bytes < large.cold_bytes
    assert 0 < small.hot_bytes == pytest.approx(large.hot_bytes, rel=0.2)
    seconds = small.topic_subscriptions * small.topic_subscription_us / 1e6
    assert small.subscriptions_per_s == pytest.approx(50 / seconds, rel=0.02)
    assert 0 < small.entries_per_event < large.entries_per_event <= 19
    assert min(small.batch_ms, small.save_ms, small.recovery_ms, small.first_batch_ms) > 0


def test_it_answers_with_points_and_exponents_and_writes_them(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = growth.run(Request(size=Size.SMOKE, say=said.append, out=tmp_path / "new"))
    data = json.loads(json.dumps(outcome.data))
    assert data.keys() == {"topics", "topic_subscriptions"}
    for axis, line in data.items():
        sizes = [point[axis] for point in line["points"]]
        assert sizes == sorted(set(sizes))
        assert line["slopes"].keys() == {*growth.MEASURES, "recovery_ms by bytes"}
    assert data["topic_subscriptions"]["slopes"]["cold_bytes"] > 0.5
    with (tmp_path / "new" / "growth.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(said)
    assert {path.name for path in outcome.files} == {path.name for path in (tmp_path / "new").iterdir()}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in outcome.files if path.suffix == ".png")
    assert all(len(row) == len(table.columns) for table in outcome.tables for row in table.rows)
