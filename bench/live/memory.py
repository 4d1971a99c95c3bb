"""What a Spark session holds in memory: its Java, and the Python processes below that."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_MB = 1e6
_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Megabytes. `java_mb` is resident, and does not shrink while one Java serves query after query; `heap_mb` is what
    is left of its heap after a full collection; `python_mb` is resident, pages that processes share counted once.
    """

    java_mb: float
    heap_mb: float
    python_mb: float


def memory_of(spark: SparkSession) -> Memory:
    """Of a session whose Java runs on this machine, after a full collection."""
    java: Any = spark.sparkContext._jvm.java.lang  # type: ignore[union-attr]
    java.System.gc()
    runtime = java.Runtime.getRuntime()
    pid = int(java.ProcessHandle.current().pid())
    return Memory(
        java_mb=_kb(_PROC / str(pid) / "smaps_rollup", "Rss") * 1_024 / _MB,
        heap_mb=(runtime.totalMemory() - runtime.freeMemory()) / _MB,
        python_mb=sum(_kb(_PROC / str(below) / "smaps_rollup", "Pss") for below in processes_below(pid)) * 1_024 / _MB,
    )


def descendants(pid: int, parents: Mapping[int, int]) -> set[int]:
    """The processes below `pid`, from the parent of each."""
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def processes_below(pid: int) -> set[int]:
    """Those that run now."""
    parents = {}
    for folder in _PROC.iterdir():
        if folder.name.isdecimal():
            parents[int(folder.name)] = _parent(folder)
    return descendants(pid, parents)


def _parent(folder: Path) -> int:
    """0 for a process that has ended meanwhile."""
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def _kb(path: Path, name: str) -> int:
    """A line of /proc/PID/smaps_rollup; 0 for a process that has ended meanwhile."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), 0)
