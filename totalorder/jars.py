"""The jars that pyspark does not ship: the Kafka source and Delta for Spark, and a Kafka broker.

`data/jars.toml` names every jar with its size and SHA-256. Ivy, which is part of pyspark, fetches what is missing into
a cache folder; nothing that differs from the lock is ever handed out. `scripts/lock_jars.py` writes the lock.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Self
from xml.sax.saxutils import quoteattr

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from totalorder.errors import EnvironmentProblem
from totalorder.java import find_java

JAR_SETS = ("spark", "broker", "fastfs")

_LOCK_FILE = Path(__file__).with_name("data") / "jars.toml"
_ATTEMPTS = 3
_SILENCE_LIMIT_S = 180
_TAIL_LINES = 12
_ARRIVED = re.compile(r"\[SUCCESSFUL \] ([^#\s]+)#([^;\s]+);")

LineSink = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Jar:
    """One line of the lock: Maven coordinates, the file's size in bytes and its SHA-256 in hex."""

    organisation: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


def jar_paths(jar_set: str) -> list[Path]:
    """The files of `jar_set` ("spark", "broker" or "fastfs"), fetched first if need be, each checked against the lock.

    Progress goes to stderr. Raises EnvironmentProblem where a jar cannot be had or is not what the lock says.
    """
    jars = locked_jars(jar_set)
    folder = cache_dir() / "jars" / jar_set
    paths = [folder / jar.file_name for jar in jars]
    if _known_good(folder, jars):
        return paths
    with _exclusive(cache_dir() / "jars"):
        if not _known_good(folder, jars):  # another process may have fetched them while this one waited
            missing = [jar for jar in jars if not (folder / jar.file_name).exists()]
            if missing:
                _fetch(jar_set, missing, folder)
            _verify(folder, jars)
    return paths


def jars_present(jar_set: str) -> bool:
    """Whether all files of the set lie in the cache, unchanged since they were checked."""
    return _known_good(cache_dir() / "jars" / jar_set, locked_jars(jar_set))


def locked_jars(jar_set: str) -> tuple[Jar, ...]:
    """What the lock says about one set."""
    return _read_lock(_LOCK_FILE)[jar_set]


@cache
def _read_lock(path: Path) -> dict[str, tuple[Jar, ...]]:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {jar_set: tuple(Jar(**row) for row in tables[jar_set]) for jar_set in JAR_SETS}


def cache_dir() -> Path:
    """Where downloads are kept: TOTALORDER_CACHE, or `.cache` of a checkout, or the user's cache folder."""
    if chosen := os.environ.get("TOTALORDER_CACHE"):
        return Path(chosen).absolute()
    root = Path(__file__).resolve().parent.parent
    if (root / "pyproject.toml").is_file() and (root / "sequencer").is_dir():
        return root / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "totalorder"


# --- checking ---------------------------------------------------------------------------------------------------------


def _known_good(folder: Path, jars: Sequence[Jar]) -> bool:
    """Whether every file is as it was (size, time of change) when it was checked; saves hashing 50 MB at each start."""
    try:
        checked = json.loads((folder / "checked.json").read_text(encoding="utf-8"))
        return all(checked.get(jar.file_name) == [jar.sha256, *_stat(folder / jar.file_name)] for jar in jars)
    except (OSError, ValueError, AttributeError):
        return False


def _stat(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _verify(folder: Path, jars: Sequence[Jar]) -> None:
    """Hash every file and note the result. Raises EnvironmentProblem at the first that differs from the lock."""
    for jar in jars:
        check_file(folder / jar.file_name, jar)
    checked = {jar.file_name: [jar.sha256, *_stat(folder / jar.file_name)] for jar in jars}
    _write_atomically(folder / "checked.json", json.dumps(checked, indent=1))


def check_file(path: Path, jar: Jar) -> None:
    """Raises EnvironmentProblem unless `path` holds exactly the bytes that the lock promises."""
    actual = sha256_of(path)
    if actual != jar.sha256:
        raise EnvironmentProblem(
            f"{path} is not the file that the lock promises (SHA-256 {actual}, expected {jar.sha256})",
            remedy="Delete it and start again; if it comes back like this, do not use it.",
        )


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_atomically(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(name).replace(path)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """One process at a time; the operating system lets go of the lock when its holder dies."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"Waiting for another process that is fetching jars into {folder}", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --- fetching ---------------------------------------------------------------------------------------------------------


def _fetch(jar_set: str, jars: Sequence[Jar], folder: Path) -> None:
    """Fetch into a folder aside, check, and only then move into place: a half-written jar is never seen."""
    _ivy_jar()  # without it nothing can be fetched: told before anything else is
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="fetch-") as aside_name:
        aside = Path(aside_name)
        coordinates = [(jar.organisation, jar.name, jar.version) for jar in jars]
        home = cache_dir() / "ivy"
        with _Progress(jar_set, jars) as progress:
            run_ivy(coordinates, aside, home=home, on_line=progress.line)
        for jar in jars:
            fetched = aside / jar.file_name
            if not fetched.is_file():
                raise EnvironmentProblem(f"Ivy did not fetch {jar.file_name}", remedy=_network_remedy())
            check_file(fetched, jar)
            fetched.replace(folder / jar.file_name)
        shutil.rmtree(home, ignore_errors=True)


def run_ivy(
    coordinates: Iterable[tuple[str, str, str]],
    into: Path,
    *,
    home: Path,
    transitive: bool = False,
    pattern: str = "[artifact]-[revision].[ext]",
    on_line: LineSink = lambda _line: None,
) -> None:
    """Let Ivy fetch (organisation, name, version) triples from the public repository into `into`.

    Only what is named, unless `transitive`. Raises EnvironmentProblem with Ivy's last words after three attempts;
    `home` is Ivy's own cache, which holds what a failed attempt did fetch.
    """
    java = find_java()
    ivy = _ivy_jar()
    home.mkdir(parents=True, exist_ok=True)
    (home / "settings.xml").write_text(_settings_xml(home / "cache", transitive=transitive), encoding="utf-8")
    (home / "ivy.xml").write_text(_ivy_xml(coordinates, transitive=transitive), encoding="utf-8")
    settings = os.environ.get("TOTALORDER_IVY_SETTINGS") or home / "settings.xml"
    command = [
        *(java.executable, f"-Divy.home={home}", f"-Divy.default.ivy.user.dir={home}", "-jar", ivy),
        *("-settings", settings, "-ivy", home / "ivy.xml", "-retrieve", into / pattern, "-types", "jar", "bundle"),
    ]
    for _ in range(_ATTEMPTS):
        code, tail = _run_watched([str(word) for word in command], on_line)
        if code == 0:
            return
    raise EnvironmentProblem(
        "Ivy could not fetch the jars; its last words:\n" + "\n".join(tail), remedy=_network_remedy()
    )


def _network_remedy() -> str:
    return (
        "The first run needs the network (the public Maven repository, or a mirror for which TOTALORDER_IVY_SETTINGS "
        "names an Ivy settings file). What was fetched is kept: run the same command again."
    )


def _ivy_jar() -> Path:
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "Jars have to be fetched first, by Ivy of pyspark: that needs the extra 'spark', which is not installed",
            remedy="pip install 'totalorder[spark]'.",
        )
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise EnvironmentProblem(f"No ivy-*.jar beside {spec.origin}", remedy="pip install --force-reinstall pyspark.")
    return found[-1]


def _settings_xml(cache: Path, *, transitive: bool) -> str:
    # Without `transitive` no pom is read: the lock already names every jar.
    return f"""<ivysettings>
  <settings defaultResolver="public"/>
  <caches defaultCacheDir={quoteattr(str(cache))}/>
  <resolvers><ibiblio name="public" m2compatible="true" usepoms="{str(transitive).lower()}"/></resolvers>
</ivysettings>
"""


def _ivy_xml(coordinates: Iterable[tuple[str, str, str]], *, transitive: bool) -> str:
    conf = "*->default" if transitive else "*->*"
    rows = "\n".join(
        f'    <dependency org="{organisation}" name="{name}" rev="{version}" conf="{conf}" '
        f'transitive="{str(transitive).lower()}"/>'
        for organisation, name, version in coordinates
    )
    return f"""<ivy-module version="2.0">
  <info organisation="totalorder" module="jars"/>
  <dependencies>
{rows}
  </dependencies>
</ivy-module>
"""


def _run_watched(command: list[str], on_line: LineSink) -> tuple[int, list[str]]:
    """Run `command`, hand on each line it prints, and end it when it has been silent for too long.

    Returns its exit code and its last lines.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(_SILENCE_LIMIT_S, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                watchdog.cancel()
                watchdog = threading.Timer(_SILENCE_LIMIT_S, process.kill)
                watchdog.start()
                tail.append(line.rstrip())
                on_line(line)
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
    return process.returncode, list(tail)


class _Progress:
    """Shows what arrives: a bar on a terminal, else a line for each jar."""

    def __init__(self, jar_set: str, jars: Sequence[Jar]) -> None:
        self._jar_set = jar_set
        self._by_module = {(jar.organisation, jar.name): jar for jar in jars}
        self._arrived: set[str] = set()
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        megabytes = sum(jar.size for jar in self._by_module.values()) / 1e6
        print(
            f"Fetching {len(self._by_module)} jars ({self._jar_set}, {megabytes:.0f} MB)", file=sys.stderr, flush=True
        )
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._jar_set, total=sum(jar.size for jar in self._by_module.values()))
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def line(self, line: str) -> None:
        """Take one line of Ivy's: `[SUCCESSFUL ] org.apache.kafka#kafka_2.13;4.1.1!kafka_2.13.jar (599ms)`."""
        match = _ARRIVED.search(line)
        jar = self._by_module.get((match[1], match[2])) if match else None
        if jar is None or jar.file_name in self._arrived:
            return
        self._arrived.add(jar.file_name)
        if self._bar is not None:
            self._bar.update(self._task, advance=jar.size, description=jar.name)
        else:
            print(f"  {len(self._arrived)}/{len(self._by_module)} {jar.file_name}", file=sys.stderr, flush=True)


def main() -> None:
    """`python -m totalorder.jars SET…`: fetch and check the sets named (default: all)."""
    try:
        for jar_set in sys.argv[1:] or JAR_SETS:
            jar_paths(jar_set)
    except EnvironmentProblem as error:
        sys.exit(f"totalorder: {error}")


if __name__ == "__main__":
    main()
