"""A Python of its own that has the packages which a requirement needs, and not the project; made without a network."""

import importlib.metadata
import os
import re
import subprocess
import sysconfig
import venv
from pathlib import Path

SCRIPTS = sysconfig.get_path("scripts")


def needed_by(requirement: str) -> set[str]:
    """What an installed package with these extras needs, and that in turn: requirements such as "grpcio" or "a[b]"."""
    needed, queue = set(), [requirement]
    while queue:
        name, extras = split_extras(queue.pop())
        for one in importlib.metadata.requires(name) or []:
            wanted, _, condition = one.partition(";")
            extra = re.search(r"extra == ['\"](.+?)['\"]", condition)
            plain = re.match(r"[\w.-]+(\[[\w.,-]+\])?", wanted.strip())
            assert plain is not None
            if (extra and extra[1] not in extras) or plain[0] in needed or not installed(split_extras(plain[0])[0]):
                continue
            needed.add(plain[0])
            queue.append(plain[0])
    return needed


def split_extras(requirement: str) -> tuple[str, set[str]]:
    """ "a[b,c]" as ("a", {"b", "c"})."""
    name, _, extras = requirement.rstrip("]").partition("[")
    return name, set(extras.split(",")) if extras else set()


def installed(name: str) -> bool:
    """Whether this Python has the package."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


class FreshPython:
    """A virtual environment in `root`/venv that has pip, setuptools and what `requirement` needs, as links."""

    def __init__(self, root: Path, requirement: str) -> None:
        self.root = self.folder = root
        venv.create(root / "venv", with_pip=False)
        self.bin = root / "venv" / "bin"
        self.site = Path(sysconfig.get_path("purelib", vars={"base": str(root / "venv")}))
        for name in {split_extras(one)[0] for one in needed_by(requirement)} - {"totalorder"} | {"pip", "setuptools"}:
            self._link(importlib.metadata.distribution(name))
        pip = self.bin / "pip"
        pip.write_text(f'#!/bin/sh\nexec {self.bin}/python -m pip "$@"\n')
        pip.chmod(0o755)
        self.environment = {
            "HOME": str(root),
            "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
            "PATH": f"{self.bin}:{os.environ['PATH'].replace(SCRIPTS, '')}",
            "PIP_NO_INDEX": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }

    def _link(self, package: importlib.metadata.Distribution) -> None:
        for name in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            link = self.site / name
            if not link.exists():
                link.symlink_to(Path(str(package.locate_file(name))))

    def run(self, *command: str, code: int = 0) -> str:
        """What a command says; it must end with this exit code."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout
