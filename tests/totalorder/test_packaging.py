"""The package is what the folders are, imports cost what they must, and tools and pins agree with each other."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from fresh_python import needed_by, split_extras

import totalorder

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HEAVY = {"pyspark", "delta", "pandas", "kafka", "pyarrow", "numpy"}


def imported_by(statement: str) -> set[str]:
    """The top-level modules that a fresh Python has loaded after the statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return {name.partition(".")[0] for name in said.stdout.split()}


def test_packages_are_the_folders() -> None:
    settings = PROJECT["tool"]["setuptools"]
    rooms = {package: ROOT / folder for package, folder in settings["package-dir"].items()}
    found = set(rooms)
    for package, folder in rooms.items():
        inner = [path.parent.relative_to(folder) for path in folder.rglob("__init__.py") if path.parent != folder]
        found |= {".".join((package, *path.parts)) for path in inner}
    assert sorted(settings["packages"]) == sorted(found)
    top_level = {path.parent.name for path in ROOT.glob("*/__init__.py")} | {"conf"}
    assert top_level == {folder.name for folder in rooms.values()}


def test_version_is_stated_once_in_effect() -> None:
    assert totalorder.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("totalorder")


def test_every_public_name_is_there() -> None:
    for name in totalorder.__all__:
        assert getattr(totalorder, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = totalorder.nonsense


def test_completion_offers_every_public_name() -> None:
    """Those of extras too, which `import *` must not ask for."""
    assert set(dir(totalorder)) == {*totalorder.__all__, "SqlAlchemyPositions"}


def test_the_door_is_light() -> None:
    assert not imported_by("import totalorder; totalorder.Error") & (HEAVY | {"rich", "typer"})


def test_the_subscriber_needs_no_spark() -> None:
    assert not imported_by("from totalorder import Subscriber") & {"pyspark", "delta", "pandas", "py4j"}


def test_receipts_are_made_without_pandas() -> None:
    """pyarrow imports it on the way where it is installed, which takes half a second of the first acknowledgement."""
    row = "dict.fromkeys(('generation', 'sequence', 'topic', 'source', 'offset', 'n', 'g', 'delivered_ms'), one)"
    made = (
        "import numpy as np; from totalorder.sequencer.wire.receipts import Receipts, encode_receipts\n"
        "from totalorder.sequencer.wire.stamps import Source; one = np.ones(1, dtype=np.int64); no = one == 0\n"
        f"columns = {row} | {{'topic': one * 0, 'source': one * 0, 'redelivered': no, 'lost': no}}\n"
        "receipts = Receipts(domain='d', id='s', nonce='n', topics=('a',), sources=(Source('a', 'i', 0),), **columns)\n"
        "assert encode_receipts(receipts)"
    )
    assert not imported_by(made) & {"pandas"}


def test_the_command_line_loads_nothing_heavy_before_it_knows_the_command() -> None:
    assert not imported_by("from totalorder.cli.app import build_app; build_app()") & HEAVY


def test_constraints_pin_every_installed_package_and_nothing_else() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    pinned = {normal(line.partition("==")[0]) for line in lines}
    needed = needed_by("totalorder[dev]")
    names = {normal(split_extras(requirement)[0]) for requirement in needed} - {"totalorder"}
    assert pinned == names | {"setuptools"}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
