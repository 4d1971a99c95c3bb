"""A PostgreSQL server of the tests' own, where the machine has its programs."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from waiting import wait_until

_DEBIAN = Path("/usr/lib/postgresql")
_END_S = 30


class NotFound(Exception):
    """There is none, and what is missing."""


def _programs() -> Path:
    """The folder that has initdb and postgres, of the newest version."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    folders = sorted(_DEBIAN.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if not folders:
        raise NotFound("PostgreSQL is not installed")
    return folders[-1].parent


@contextmanager
def postgres() -> Iterator[Path]:
    """Runs one that listens in a folder alone, with the superuser `test`. Raises NotFound."""
    programs = _programs()
    user = "nobody" if os.geteuid() == 0 else None  # it does not run as root
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as made:
        folder = Path(made)
        if user is not None:
            shutil.chown(folder, user)
        data = folder / "data"
        command: list[str | Path] = [
            programs / "initdb",
            "-D",
            data,
            "-U",
            "test",
            "-A",
            "trust",
            "--no-sync",
            "-E",
            "UTF8",
        ]
        subprocess.run(command, check=True, capture_output=True, user=user, cwd=folder)
        run: list[str | Path] = [programs / "postgres", "-D", data, "-k", folder]
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [*run, "-c", "listen_addresses=", "-c", "fsync=off"], stdout=log, stderr=log, user=user, cwd=folder
            )
        try:
            ready: list[str | Path] = [programs / "pg_isready", "-q", "-h", folder]
            wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, "PostgreSQL answers")
            yield folder
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(_END_S)
