"""The scripts of docs/cookbook say how they are called. What they do, tests/integration/test_cookbook.py shows."""

import runpy
from pathlib import Path

import pytest

COOKBOOK = Path(__file__).parents[2] / "docs/cookbook"


@pytest.mark.parametrize("script", [path.name for path in sorted(COOKBOOK.glob("*.py"))])
def test_a_wrong_number_of_arguments_is_told(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(COOKBOOK)
    monkeypatch.setattr("sys.argv", [script, "one"])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(COOKBOOK / script), run_name="__main__")
    assert done.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith(f"usage: {script} [-h] ")
    assert error.endswith("servers")
