"""Finding a Java that fits: Spark 4.2 and Kafka 4.1 are only run here on Java 17 and 21."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from totalorder.errors import EnvironmentProblem

SUPPORTED_VERSIONS = (17, 21)
SHORT_RUN = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java that is soon over: it compiles less, and takes half the processor time of the first minutes."""
OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Variables of the environment whose options every Java takes."""
_PROBE_TIMEOUT_S = 30
_REMEDY = (
    "Install Java 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install "
    "java-21-openjdk-headless; macOS: brew install openjdk@21) and let JAVA_HOME or PATH lead to it"
)


@dataclass(frozen=True, kw_only=True)
class JavaHome:
    """A Java installation: its folder, as for JAVA_HOME, and its major version."""

    path: Path
    version: int

    @property
    def executable(self) -> Path:
        """The `java` program."""
        return self.path / "bin" / "java"


def find_java() -> JavaHome:
    """The first Java 17 or 21 among JAVA_HOME, PATH and the usual places of the system.

    Raises EnvironmentProblem, naming what was found instead.
    """
    refused = []
    for source, executable in _candidates():
        found = _probe(executable)
        if found is not None and found.version in SUPPORTED_VERSIONS:
            return found
        refused.append(f"{source} has {f'Java {found.version}' if found else 'no Java that runs'} ({executable})")
    seen = "; ".join(refused) or "neither JAVA_HOME nor PATH leads to one"
    raise EnvironmentProblem(f"No Java 17 or 21 found: {seen}", remedy=f"{_REMEDY}.{_given_options()}")


def _given_options() -> str:
    """A word on options that every Java takes from the environment: a wrong one keeps each from running."""
    given = " ".join(f"{name}={os.environ[name]}" for name in OPTIONS if os.environ.get(name))
    return f" Or unset what every Java is given: {given}" if given else ""


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield "PATH", Path(on_path)
    for version in SUPPORTED_VERSIONS:
        for folder, pattern in _usual_places(version):
            for executable in sorted(Path(folder).glob(pattern)):
                yield folder, executable


def _usual_places(version: int) -> Iterator[tuple[str, str]]:
    yield "/usr/lib/jvm", f"*{version}*/bin/java"
    yield "/Library/Java/JavaVirtualMachines", f"*{version}*/Contents/Home/bin/java"
    yield "/opt/homebrew/opt", f"openjdk@{version}/bin/java"


def _probe(executable: Path) -> JavaHome | None:
    """Ask the program itself: PATH may hold a shim whose folder says nothing about the Java that it starts."""
    try:
        answer = subprocess.run(
            [executable, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = answer.stderr + answer.stdout
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    if answer.returncode != 0 or home is None or version is None:
        return None
    return JavaHome(path=Path(home[1]), version=int(version[1]))
