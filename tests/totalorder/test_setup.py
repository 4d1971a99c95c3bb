"""The set-up script's decisions; that it works is shown by whoever runs `make`."""

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "setup.py"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, with its environment and stamp in a folder of the test."""
    spec = importlib.util.spec_from_file_location("set_up", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    inputs = (tmp_path / "pyproject.toml", tmp_path / "constraints.txt")
    for path in inputs:
        path.write_text("first")
    monkeypatch.setattr(module, "INPUTS", inputs)
    monkeypatch.setattr(module, "VENV_PYTHON", Path(sys.executable))
    monkeypatch.setattr(module, "STAMP", tmp_path / "stamp")
    return module


def test_packages_are_installed_when_something_changed_and_not_otherwise(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: list[tuple[str, ...]] = []
    monkeypatch.setattr(setup, "pip", lambda *words: installed.append(words))
    setup.install_packages()
    assert [words[0] for words in installed] == ["setuptools", "--no-build-isolation", "--no-build-isolation"]
    setup.install_packages()
    assert len(installed) == 3
    setup.INPUTS[1].write_text("second")
    setup.install_packages()
    assert len(installed) == 6


def test_an_installation_cut_short_is_done_again(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_words: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup, "pip", fail)
    with pytest.raises(KeyboardInterrupt):
        setup.install_packages()
    assert not setup.STAMP.exists()


def test_where_there_is_no_apt_nothing_is_installed(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert setup.apt_install(("openjdk-17-jre-headless",)) is False


def test_the_first_package_that_there_is_is_installed(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncase "$*" in *openjdk-17*) exit 100;; esac\n')
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    assert setup.apt_install(("openjdk-17-jre-headless", "openjdk-21-jre-headless")) is True
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[-1] for line in asked] == ["-q", "openjdk-17-jre-headless", "openjdk-21-jre-headless"]


def test_without_java_and_apt_it_says_what_to_install(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from totalorder import java
    from totalorder.errors import EnvironmentProblem

    def none_found() -> None:
        raise EnvironmentProblem("No Java 17 or 21 found", remedy="Install Java 17 or 21.")

    monkeypatch.setattr(java, "find_java", none_found)
    monkeypatch.setattr(setup, "apt_install", lambda _names: False)
    with pytest.raises(SystemExit, match=r"set-up: Install Java 17 or 21\."):
        setup.ensure_java()
