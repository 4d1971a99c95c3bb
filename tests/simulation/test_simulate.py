"""The simulation itself: it finds what is broken, makes it smaller, and says how to repeat it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from sim_run import Case, run, shrink

from totalorder.subscriber.delivery.order import Line

STEPS = 120


def ungated(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stamps do not tell of yet holds nothing back any more."""
    monkeypatch.setattr(Line, "_certain", lambda _self, rows, last: int((rows.g <= last).sum()))


def test_a_broken_promise_is_found_made_smaller_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not run(Case(1, STEPS)).failure
    ungated(monkeypatch)
    found = next(outcome for outcome in (run(Case(seed, STEPS)) for seed in range(20)) if outcome.failure)
    smallest = shrink(found)
    assert smallest.case.steps < STEPS
    assert smallest.case.without
    assert run(smallest.case).failure == smallest.failure
    assert smallest.case.command == (
        f"make simulate FROM={found.case.seed} SEEDS=1 STEPS={smallest.case.steps} "
        f"WITHOUT={','.join(smallest.case.without)}"
    )


@pytest.fixture(scope="module")
def command() -> ModuleType:
    """scripts/simulate.py"""
    path = Path(__file__).resolve().parents[2] / "scripts" / "simulate.py"
    spec = importlib.util.spec_from_file_location("simulate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_command_runs_worlds_and_says_what_they_had(
    command: ModuleType, capsys: pytest.CaptureFixture[str], jobs: int
) -> None:
    assert command.main(["--seeds=2", "--steps=30", f"--jobs={jobs}"]) == 0
    assert "2 of 2 worlds" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["--without=rain", "--seeds=0"])
def test_the_command_refuses_what_it_does_not_know(command: ModuleType, wrong: str) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main([wrong])
    assert ended.value.code == 2


def test_the_command_tells_what_failed_and_how_to_repeat_it(
    command: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "shrink", lambda failed, tell: failed)
    ungated(monkeypatch)
    assert command.main(["--seeds=20", f"--steps={STEPS}", "--jobs=1"]) == 1
    assert "Repeat it: make simulate FROM=" in capsys.readouterr().out
