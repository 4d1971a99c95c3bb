"""Which Spark, Python and Java a session is begun with, whatever the environment says of others.

Spark is started by scripts that follow a dozen environment variables, which are often left over from another
installation. With a local master nothing but this environment's own is needed: those variables are left out, with a
word. On a cluster they are the operator's: what cannot be is refused by its name, before anything is made.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import structlog

from totalorder.errors import EnvironmentProblem
from totalorder.java import OPTIONS

SPARK_VERSION = "4.2"
_LEAKS = f"{SPARK_VERSION}.0"
"""It leaves a socket of Java's open for each task with state (docs/adr/0026): the job would end within hours."""
"""The Spark that this package is made for; the exact version is pinned where it is installed."""
LEFT_OUT = (
    *("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_PUBLIC_DNS", "SPARK_REMOTE"),
    *("SPARK_API_MODE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_DIST_CLASSPATH", "SPARK_PREPEND_CLASSES"),
    *("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS", "SPARK_TESTING", "PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON"),
    *("PYSPARK_DRIVER_PYTHON", "PYSPARK_DRIVER_PYTHON_OPTS", "PYSPARK_PIN_THREAD"),
    *OPTIONS,
)
"""What the start of a local session leaves out of the environment, of this process and so of its Java."""
_INSTALL = "pip install --no-deps pyspark==4.2.1 (delta-spark asks for 4.2.0 at most, and does with 4.2.1)"
_PROBE_S = 60.0
_PROBE = "import sys; print(*sys.version_info[:2], sep='.')"


def check_pyspark() -> None:
    """EnvironmentProblem where the pyspark that Python finds is not of Spark 4.2, from 4.2.1 on; imports nothing."""
    spec = find_spec("pyspark")
    version = _version(spec) if spec is not None else None
    leaks = version is not None and version.startswith(_LEAKS)
    if spec is None or version is None or (version.startswith(f"{SPARK_VERSION}.") and not leaks):
        return
    home = str(Path(spec.origin or "").parent)
    leads = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and home.startswith(path)]
    remedy = f"PYTHONPATH leads there: take {leads[0]} out of it" if leads else _INSTALL
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        remedy = "Use the spark-submit of Spark 4.2.1"
    needed = f"{SPARK_VERSION}.1, since {_LEAKS} leaves a file open for each batch" if leaks else SPARK_VERSION
    raise EnvironmentProblem(f"the pyspark in {home} is {version}, and totalorder needs {needed}", remedy=remedy)


def _version(spec: ModuleSpec) -> str | None:
    """As its file says, which may lie in a zip."""
    if spec.origin is None:
        return None
    loader: Any = spec.loader
    try:
        text = loader.get_data(str(Path(spec.origin).with_name("version.py"))).decode()
    except (OSError, AttributeError):
        return None
    found = re.search(r"""__version__[^=]*=\s*["'](.+?)["']""", text)
    return found[1] if found else None


def prepare(*, local: bool) -> None:
    """Makes the environment fit for a session whose Java this process starts; to be called before anything is made.

    `local`: whether that Java is all of Spark. Raises EnvironmentProblem, which names the variable that cannot be.
    """
    if local:
        leave_out(LEFT_OUT)
    else:
        _check_cluster()
    os.environ.setdefault("SPARK_HOME", str(own_spark()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def leave_out(names: Iterable[str]) -> None:
    """Takes variables out of the environment; those that led elsewhere than to our own are named in the log."""
    home = str(own_spark())
    own = {"SPARK_HOME": home, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    left_out = {name: os.environ.pop(name) for name in names if name in os.environ}
    foreign = sorted(name for name, value in left_out.items() if value and value != own.get(name))
    if foreign:
        structlog.get_logger().warning("left out of the environment", variables=", ".join(foreign), spark=home)


def _check_cluster() -> None:
    for name, fault in _FAULTS.items():
        value = os.environ.get(name)
        reason = fault(value) if value else None
        if reason:
            raise EnvironmentProblem(f"{name}={value}: {reason}", remedy=f"Correct {name}, or unset it")


def in_effect() -> str:
    """The variables that may be why Spark does not start, for an error's text; empty where there is none."""
    own = {str(own_spark()), sys.executable}
    given = [f"{name}={os.environ[name]}" for name in LEFT_OUT if os.environ.get(name) and os.environ[name] not in own]
    return ", ".join(given)


def own_spark() -> Path:
    """Where the Spark is that belongs to this Python's pyspark. Raises EnvironmentProblem where it has none."""
    spec = find_spec("pyspark")
    module = Path(spec.origin).parent if spec is not None and spec.origin is not None else Path()
    # Installed by pip, the python/ of a distribution, or the archive in either that spark-submit puts on the path.
    for home in (module, *list(module.parents)[1:4]):
        if (home / "bin" / "spark-submit").is_file() and (home / "jars").is_dir():
            return home
    raise EnvironmentProblem(f"the pyspark in {module} comes without Spark", remedy=_INSTALL)


def _fault_of_home(value: str) -> str | None:
    if not (Path(value) / "bin" / "spark-submit").is_file():
        return "there is no bin/spark-submit"
    jars = [path.stem for path in (Path(value) / "jars").glob("spark-core_*.jar")]
    own = _version(find_spec("pyspark"))  # type: ignore[arg-type]
    if jars and not any(jar.endswith(f"-{own}") for jar in jars):
        return f"its Spark is {jars[0].rpartition('-')[2]}, and pyspark is {own}"
    return None


def _fault_of_conf(value: str) -> str | None:
    return None if Path(value).is_dir() else "there is no such directory"


def _fault_of_arguments(value: str) -> str | None:
    try:
        words = shlex.split(value)
    except ValueError as error:
        return str(error)
    return None if words[-1:] == ["pyspark-shell"] else "it does not end with pyspark-shell"


def _fault_of_python(value: str) -> str | None:
    program = shutil.which(value)
    if program is None:
        return "there is no such program, and the driver starts Python workers too"
    try:
        said = subprocess.run([program, "-c", _PROBE], capture_output=True, text=True, timeout=_PROBE_S).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not run: {error}"
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return None if said == own else f"it is Python {said or 'that does not run'}, and the driver is {own}"


_FAULTS: dict[str, Callable[[str], str | None]] = {
    "SPARK_HOME": _fault_of_home,
    "SPARK_CONF_DIR": _fault_of_conf,
    "PYSPARK_SUBMIT_ARGS": _fault_of_arguments,
    "PYSPARK_PYTHON": _fault_of_python,
}
