"""The faults of tests/mutants still fit their sources; `make mutants` tries them."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "mutants.py"


def check(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, timeout=120, check=False)


def tried(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, "--jobs", "2"], capture_output=True, text=True, timeout=250, check=False
    )


def test_each_fault_fits_its_source() -> None:
    """Where one does not: the source has changed, and so must the fault, in tests/mutants."""
    checked = check(SCRIPT)
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.endswith(" faults fit\n")


@pytest.mark.parametrize(
    ("fault", "source", "why"),
    [
        ('old = "a = 1"\nnew = "a = 2"', "b = 1\n", "has its text 0 times"),
        ('old = "a = 1"\nnew = "a = 2"', "a = 1\na = 1\n", "has its text 2 times"),
        ('old = "a = 1"\nnew = "a = ("', "a = 1\n", "is no Python with it"),
        ('old = "a = 1"\nnew = "a = (1)"', "a = 1\n", "changes nothing"),
        ('old = "a = 1"\nnew = "a = 2"\nwhy = "x"', "a = 1\n", "unknown fields: why"),
        (
            'old = "a = 1"\nnew = "a = 2"\n[[mutants]]\nname = "n"\nold = "a"\nnew = "b"',
            "a = 1\n",
            "there twice: list/n",
        ),
    ],
)
def test_one_that_does_not_fit_is_named(tmp_path: Path, fault: str, source: str, why: str) -> None:
    script = tmp_path / "scripts" / "mutants.py"
    lists = tmp_path / "tests" / "mutants"
    script.parent.mkdir()
    lists.mkdir(parents=True)
    script.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "room.py").write_text(source, encoding="utf-8")
    (lists / "list.toml").write_text(f'file = "room.py"\nstages = [["tests"]]\n[[mutants]]\nname = "n"\n{fault}\n')
    checked = check(script)
    assert checked.returncode == 2
    assert why in checked.stderr
    assert "Traceback" not in checked.stderr


def test_a_fault_that_tests_miss_is_told(tmp_path: Path) -> None:
    """The whole way, in a tree of two files: one fault is found, one is not, one is equivalent."""
    script, lists, room = tmp_path / "scripts" / "mutants.py", tmp_path / "tests" / "mutants", tmp_path / "sequencer"
    for folder in (script.parent, lists, room):
        folder.mkdir(parents=True)
    script.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    (script.parent / "link_tree.py").write_text(
        "from pathlib import Path\nroot = Path(__file__).parents[1] / 'build' / 'typing'\nroot.mkdir(parents=True)\n"
        "(root / 'totalorder').symlink_to(Path(__file__).parents[1])\n"
    )
    for package in (tmp_path, room):
        (package / "__init__.py").write_text("")
    (room / "engine.py").write_text(
        "def double(x):\n    y = x + 0\n    return y + y\n\ndef half(x):\n    return x / 2\n"
    )
    (tmp_path / "tests" / "test_it.py").write_text(
        "from totalorder.sequencer.engine import double\n\ndef test_it():\n    assert double(2) == 4\n"
    )
    (lists / "engine.toml").write_text(
        'file = "sequencer/engine.py"\nstages = [["tests/test_it.py"]]\n'
        '[[mutants]]\nname = "found"\nold = "return y + y"\nnew = "return y"\n'
        '[[mutants]]\nname = "missed"\nold = "x / 2"\nnew = "x / 3"\n'
        '[[mutants]]\nname = "none"\nold = "x + 0"\nnew = "x - 0"\nequivalent = "zero"\n'
    )
    ran = tried(script)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "engine/found: killed by tests/test_it.py::test_it" in ran.stdout
    assert "engine/missed: SURVIVED" in ran.stdout
    assert "engine/none: equivalent: zero" in ran.stdout
    assert "3 faults: 1 found, 1 equivalent, 1 not as they should be\n  engine/missed: SURVIVED\n" in ran.stdout

    (tmp_path / "tests" / "test_it.py").write_text("def test_it():\n    assert False\n")
    ran = tried(script)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "without a fault tests/test_it.py::test_it fails" in ran.stderr
    assert "killed by" not in ran.stdout
