"""Which Java is taken, with small scripts that answer as one."""

from pathlib import Path

import pytest

from totalorder import java
from totalorder.errors import EnvironmentProblem


def fake_java(home: Path, specification: str, *, exit_code: int = 0) -> Path:
    """A `java` that says it is this version; its home."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\ncat >&2 <<END\nProperty settings:\n    java.home = {home}\n"
        f'    java.specification.version = {specification}\n\nopenjdk version "{specification}.0.1"\nEND\n'
        f"exit {exit_code}\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def _no_java_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(java, "_usual_places", lambda _version: iter(()))
    monkeypatch.setattr("shutil.which", lambda _name: None)


@pytest.mark.parametrize("version", ["17", "21"])
def test_java_home_that_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java.find_java()
    assert (found.path, found.version, found.executable) == (home, int(version), home / "bin" / "java")


@pytest.mark.parametrize(("version", "named"), [("1.8", "Java 8"), ("11", "Java 11"), ("25", "Java 25")])
def test_other_versions_are_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, named: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))
    with pytest.raises(EnvironmentProblem, match=f"JAVA_HOME has {named} .*Install Java 17 or 21"):
        java.find_java()


def test_java_on_the_path_is_taken_where_java_home_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    good = fake_java(tmp_path / "good", "21")
    monkeypatch.setattr("shutil.which", lambda _name: str(good / "bin" / "java"))
    assert java.find_java().path == good


def test_options_that_keep_every_java_from_running_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "17", exit_code=1)))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseG1GC")
    monkeypatch.setenv("_JAVA_OPTIONS", "-XX:+UseSerialGC")
    says = r"no Java that runs.*unset .* given: JAVA_TOOL_OPTIONS=-XX:\+UseG1GC _JAVA_OPTIONS=-XX:\+UseSerialGC"
    with pytest.raises(EnvironmentProblem, match=says):
        java.find_java()


def test_no_java_at_all() -> None:
    with pytest.raises(EnvironmentProblem, match="neither JAVA_HOME nor PATH"):
        java.find_java()


def test_java_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "stub", "17", exit_code=1)))
    with pytest.raises(EnvironmentProblem, match="JAVA_HOME has no Java that runs"):
        java.find_java()


def test_java_home_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(EnvironmentProblem, match="JAVA_HOME has no Java that runs"):
        java.find_java()
