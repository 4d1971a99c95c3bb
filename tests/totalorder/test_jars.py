"""The jar cache: only what the lock promises is handed out, and a filled cache needs neither Java nor network."""

import hashlib
import re
from dataclasses import replace
from pathlib import Path

import pytest

from totalorder import jars
from totalorder.errors import EnvironmentProblem
from totalorder.jars import Jar
from totalorder.java import JavaHome

CONTENT = b"a jar's bytes"
GOOD = Jar(organisation="org.example", name="good", version="1.0", size=13, sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder of the set "fastfs", which the lock lets consist of one small file, already there."""
    monkeypatch.setenv("TOTALORDER_CACHE", str(tmp_path))
    monkeypatch.setattr(jars, "_read_lock", lambda _path: {"fastfs": (GOOD,)})
    monkeypatch.setattr(jars, "run_ivy", lambda *_args, **_kwargs: pytest.fail("nothing was missing"))
    folder = tmp_path / "jars" / "fastfs"
    folder.mkdir(parents=True)
    (folder / GOOD.file_name).write_bytes(CONTENT)
    return folder


def test_filled_cache_is_checked_and_used(folder: Path) -> None:
    assert jars.jar_paths("fastfs") == [folder / "good-1.0.jar"]
    assert jars.jars_present("fastfs")


def test_second_use_does_not_hash_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.jar_paths("fastfs")
    monkeypatch.setattr(jars, "sha256_of", lambda _path: pytest.fail("hashed again"))
    assert jars.jar_paths("fastfs") == [folder / "good-1.0.jar"]


@pytest.mark.parametrize("checked_before", [False, True])
def test_tampered_file_is_refused(folder: Path, checked_before: bool) -> None:
    if checked_before:
        jars.jar_paths("fastfs")
    (folder / GOOD.file_name).write_bytes(b"other bytes!!")
    assert not jars.jars_present("fastfs")
    with pytest.raises(EnvironmentProblem, match=r"good-1\.0\.jar is not the file that the lock promises"):
        jars.jar_paths("fastfs")


def test_changed_lock_makes_it_check_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars.jar_paths("fastfs")
    monkeypatch.setattr(jars, "_read_lock", lambda _path: {"fastfs": (replace(GOOD, sha256="0" * 64),)})
    with pytest.raises(EnvironmentProblem, match="expected 000"):
        jars.jar_paths("fastfs")


def test_fetched_file_with_other_content_never_gets_into_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / GOOD.file_name).unlink()

    def fetch_something_else(_coordinates: object, into: Path, **_options: object) -> None:
        (into / GOOD.file_name).write_bytes(b"other bytes!!")

    monkeypatch.setattr(jars, "run_ivy", fetch_something_else)
    with pytest.raises(EnvironmentProblem, match="not the file that the lock promises"):
        jars.jar_paths("fastfs")
    assert not (folder / GOOD.file_name).exists()


def test_missing_file_is_fetched_alone(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    present = replace(GOOD, name="present")
    (folder / present.file_name).write_bytes(CONTENT)
    (folder / GOOD.file_name).unlink()
    monkeypatch.setattr(jars, "_read_lock", lambda _path: {"fastfs": (GOOD, present)})

    def fetch(coordinates: list[tuple[str, str, str]], into: Path, **_options: object) -> None:
        asked.extend(coordinates)
        (into / GOOD.file_name).write_bytes(CONTENT)

    monkeypatch.setattr(jars, "run_ivy", fetch)
    assert jars.jar_paths("fastfs") == [folder / "good-1.0.jar", folder / "present-1.0.jar"]
    assert asked == [("org.example", "good", "1.0")]


def test_ivy_that_fails_is_an_error_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'Server access error: no route'\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(jars, "find_java", lambda: JavaHome(path=tmp_path / "java", version=17))
    monkeypatch.setattr(jars, "_ivy_jar", lambda: tmp_path / "ivy.jar")
    with pytest.raises(EnvironmentProblem, match=r"no route(?s:.*)needs the network"):
        jars.run_ivy([("org.example", "good", "1.0")], tmp_path / "into", home=tmp_path / "home")


def test_cache_of_a_checkout_lies_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOTALORDER_CACHE", raising=False)
    assert jars.cache_dir() == Path(__file__).resolve().parents[2] / ".cache"


def test_the_lock_is_well_formed_and_holds_no_second_version_of_what_pyspark_ships() -> None:
    pyspark = pytest.importorskip("pyspark")
    shipped = [path.stem for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")]
    for jar_set in jars.JAR_SETS:
        locked = jars.locked_jars(jar_set)
        assert len({jar.name for jar in locked}) == len(locked) > 0
        assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) and jar.size > 0 for jar in locked)
    for jar in jars.locked_jars("spark"):
        assert not [stem for stem in shipped if re.match(re.escape(jar.name) + r"-\d", stem)]
