"""Small files beside the checkpoint, on a local disk or wherever Spark's Hadoop file systems reach."""

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession


class Store(Protocol):
    """A directory of small text files; names may contain '/'."""

    def read(self, name: str) -> str | None:
        """The file's text, None where there is none."""

    def write(self, name: str, text: str) -> None:
        """Replaces the file at once: a reader sees the old text or the new, also after a crash."""

    def names(self, folder: str) -> list[str]:
        """Names of the files in a folder; none where the folder does not exist."""


class LocalStore:
    """A directory of this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, name: str) -> str | None:
        try:
            return (self._root / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def names(self, folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in (self._root / folder).iterdir())
        return []


class HadoopStore:
    """A directory behind a URI, through the file systems that the Spark session knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._options = jvm.org.apache.hadoop.fs.Options
        self._create_flags = jvm.java.util.EnumSet.of(jvm.org.apache.hadoop.fs.CreateFlag.CREATE)
        self._streams = jvm.org.apache.commons.io.IOUtils
        self._root = root.rstrip("/")
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        self._files = self._path(self._root).getFileSystem(configuration)

    def read(self, name: str) -> str | None:
        path = self._path(f"{self._root}/{name}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._streams.toByteArray(stream)).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Replaces the file by a rename that overwrites, where the store has one."""
        target, aside = self._path(f"{self._root}/{name}"), self._path(f"{self._root}/.{name}.tmp")
        self._write_plain(aside, text)
        # FileSystem.rename refuses to replace a file on some stores: the old one goes first, and `read` is only ever
        # called by the one job that writes.
        if self._files.exists(target):
            self._files.delete(target, False)
        self._files.rename(aside, target)

    def _write_plain(self, path: Any, text: str) -> None:
        stream = self._files.create(path, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()

    def names(self, folder: str) -> list[str]:
        path = self._path(f"{self._root}/{folder}")
        if not self._files.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(path))
