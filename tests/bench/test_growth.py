"""The benchmark of growth: exponents, the figures of one point, and what is written."""

import csv
import json
from pathlib import Path

import pytest

from totalorder.bench.growth import command as growth
from totalorder.bench.growth.command import CLAIMS, Scale, exceeded, measure, slope, slopes_of
from totalorder.bench.outcome import Request, Size

AXES = ("topics", "topic_subscriptions")


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


def test_what_does_not_depend_on_the_machine_keeps_its_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "_SETTLE", 2_000)
    monkeypatch.setattr(growth, "_REPEATS", 1)
    scales = {
        "topics": [Scale(topics=count, subscribers=100, size=10) for count in (50, 100, 500, 1_000)],
        "topic_subscriptions": [
            Scale(topics=200, subscribers=count, size=size) for count, size in ((10, 10), (100, 10), (100, 50))
        ],
    }
    for axis in AXES:
        slopes = slopes_of([measure(scale) for scale in scales[axis]], axis)
        for name in ("cold_bytes", "entries_per_event"):
            most = CLAIMS[name]
            assert most is not None
            assert slopes[name] <= most, (axis, name)


def test_a_claim_that_is_exceeded_is_named_with_its_line() -> None:
    kept = dict.fromkeys(CLAIMS, 0.5) | {"recovery_ms": 7.0}
    assert exceeded(dict.fromkeys(AXES, kept)) == []
    (line,) = exceeded({"topics": kept, "topic_subscriptions": kept | {"cold_bytes": 1.01}})
    assert line == "the exponent of cold bytes as topic-subscriptions grow is 1.01, and must not exceed 1"


@pytest.mark.parametrize(("size", "fails"), [(Size.SMOKE, False), (Size.QUICK, True), (Size.FULL, True)])
def test_only_the_smallest_sizes_may_exceed_a_claim(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: Size, fails: bool
) -> None:
    for sizes in ("_QUICK", "_FULL"):
        monkeypatch.setattr(growth, sizes, growth._SMOKE)
    monkeypatch.setattr(growth, "CLAIMS", {**CLAIMS, "cold_bytes": -1.0})
    outcome = growth.run(Request(size=size, say=lambda _: None, out=tmp_path))
    assert outcome.data["claims_held"] is False
    assert any("cold bytes" in line for line in outcome.broken) == fails


def test_it_answers_with_points_and_exponents_and_writes_them(tmp_path: Path) -> None:
    said: list[str] = []
    outcome = growth.run(Request(size=Size.SMOKE, say=said.append, out=tmp_path / "new"))
    data = json.loads(json.dumps(outcome.data))
    assert data.keys() == {*AXES, "claims_held"}
    for axis in AXES:
        line = data[axis]
        sizes = [point[axis] for point in line["points"]]
        assert sizes == sorted(set(sizes))
        assert line["slopes"].keys() == CLAIMS.keys()
    assert data["topic_subscriptions"]["slopes"]["cold_bytes"] > 0.5
    assert not (tmp_path / "new").exists()
    files = outcome.write()
    with (tmp_path / "new" / "growth.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(said)
    assert {path.name for path in files} == {path.name for path in (tmp_path / "new").iterdir()}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in files if path.suffix == ".png")
    assert all(len(row) == len(table.columns) for table in outcome.tables for row in table.rows)
