"""Small files beside the checkpoint, on a local disk or wherever Spark's Hadoop file systems reach."""

import contextlib
import os
from pathlib import Path
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from totalorder.errors import SettingsError


class Store(Protocol):
    """A directory of small text files; names may contain '/'."""

    def read(self, name: str) -> str | None:
        """The file's text, None where there is none."""

    def write(self, name: str, text: str) -> None:
        """Replaces the file at once: a reader sees the old text or the new, also after a crash."""

    def remove(self, name: str) -> None:
        """Removes the file, where it is there."""

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
        try:
            with open(aside, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            aside.replace(path)
        except OSError:  # on a full disk, half a file would take the room that is left
            aside.unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(path.name for path in (self._root / folder).iterdir())
        return []


class HadoopStore:
    """A directory behind a URI, through the file systems that the Spark session knows."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        gateway: Any = spark.sparkContext._gateway
        hadoop: Any = gateway.jvm.org.apache.hadoop.fs
        self._root = root.rstrip("/")
        self._path = hadoop.Path
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        try:
            location = self._path(self._root)
            self._files = location.getFileSystem(configuration)
            self._context = hadoop.FileContext.getFileContext(location.toUri(), configuration)
        except Py4JJavaError as error:
            raise SettingsError(
                f"checkpoint_dir {self._root} is nothing that Spark reaches: {error.java_exception.getMessage()}",
                remedy="Name a directory, or a URI of a file system of which Spark has the jars (--spark spark.jars=…)",
            ) from None
        self._overwrite = gateway.new_array(hadoop.Options.Rename, 1)
        self._overwrite[0] = hadoop.Options.Rename.OVERWRITE
        self._read_all = gateway.jvm.org.apache.commons.io.IOUtils.toByteArray

    def read(self, name: str) -> str | None:
        path = self._path(f"{self._root}/{name}")
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return bytes(self._read_all(stream)).decode()
        finally:
            stream.close()

    def write(self, name: str, text: str) -> None:
        """Replaces the file by a rename that overwrites: one step on HDFS; an object store copies and deletes."""
        target = self._path(f"{self._root}/{name}")
        aside = self._path(target.getParent(), f"_{target.getName()}.tmp")
        stream = self._files.create(aside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        self._context.rename(aside, target, self._overwrite)

    def remove(self, name: str) -> None:
        self._files.delete(self._path(f"{self._root}/{name}"), False)

    def names(self, folder: str) -> list[str]:
        path = self._path(f"{self._root}/{folder}")
        if not self._files.exists(path):
            return []
        return sorted(str(status.getPath().getName()) for status in self._files.listStatus(path))
