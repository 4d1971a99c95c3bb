"""A disk of its own, in memory, that a test can fill."""

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

_BLOCK = bytes(1 << 20)


class NotMounted(Exception):
    """Nothing can be mounted here, and why: it takes root."""


@contextlib.contextmanager
def small_disk(folder: Path, *, megabytes: int) -> Iterator[Path]:
    """Makes the folder, with a file system of this size in it. Raises NotMounted."""
    folder.mkdir(parents=True)
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotMounted(str(getattr(error, "stderr", error)).strip()) from error
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Full:
    """A context in which the folder's disk is full."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "filler").open("ab", buffering=0)

    def __enter__(self) -> Self:
        self.fill()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.truncate(0)
        self._file.close()

    def fill(self) -> None:
        """Takes the room too that others have left since."""
        try:
            while self._file.write(_BLOCK):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
