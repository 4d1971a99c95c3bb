"""The image of the job: the steps of its Dockerfile, run in an empty folder instead of a container."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_python import FreshPython

from totalorder.config import load_settings
from totalorder.jars import cache_dir

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "docker" / "job.Dockerfile"
IGNORED = (ROOT / ".dockerignore").read_text().split()
OF_THE_SYSTEM = ("apt-get", "useradd")
"""Steps that begin so want root and another system's package lists."""


def instructions() -> Iterator[tuple[str, str]]:
    """(COPY, what follows) and so on, line by line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", "").splitlines():
        word, _, rest = line.strip().partition(" ")
        if word:
            yield word, rest


class Image(FreshPython):
    """A folder that stands for the image's file system, with a Python in which only the package is missing."""

    def at(self, path: str) -> Path:
        """A path of the image."""
        return self.root / path.lstrip("/") if path.startswith("/") else self.folder / path

    def build(self) -> None:
        """All steps, in order."""
        for word, rest in instructions():
            if word == "WORKDIR":
                self.folder = self.at(rest)
                self.folder.mkdir(parents=True, exist_ok=True)
            elif word == "COPY":
                self.copy(*rest.split())
            elif word == "ENV":
                name, _, value = rest.partition("=")
                self.environment[name] = str(self.at(value))
            elif word == "RUN" and not rest.startswith(OF_THE_SYSTEM):
                self.run("/bin/sh", "-c", rest)

    def copy(self, *words: str) -> None:
        """A folder's content goes into the target, files by their names."""
        *sources, target = words
        for name in sources:
            source, to = ROOT / name, self.at(target)
            if source.is_dir():
                patterns = (pattern.removeprefix("**/") for pattern in IGNORED)
                shutil.copytree(source, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*patterns))
            else:
                to.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, to)


@pytest.mark.spark
def test_the_image_can_be_made_and_runs_the_job(tmp_path: Path) -> None:
    image = Image(tmp_path, "totalorder[spark]")
    image.at("/opt/totalorder").mkdir(parents=True)
    image.at("/opt/totalorder/cache").symlink_to(cache_dir())  # fetched already
    image.build()
    assert "--checkpoint-dir" in image.run("totalorder", "sequence", "--help")
    found = image.run("python", "-c", "import totalorder.sinks.audit as last; print(last.__file__)")
    assert Path(found.strip()).is_relative_to(image.site)


def test_no_step_takes_what_the_build_does_not_see() -> None:
    copied = [name for word, rest in instructions() if word == "COPY" for name in rest.split()[:-1]]
    assert copied
    assert not set(copied) & set(IGNORED)


def test_what_git_ignores_is_not_sent_to_the_build() -> None:
    ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()}
    assert ignored <= {pattern.removeprefix("**/") for pattern in IGNORED}


def test_compose_starts_the_image_with_settings_that_the_job_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docker" / "compose.yaml").read_text()
    given = dict(re.findall(r"^ +(TOTALORDER_\w+): (\S+)$", text, re.MULTILINE))
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(ROOT / "conf" / "local.toml")
    assert [str(getattr(settings, name.removeprefix("TOTALORDER_").lower())) for name in given] == list(given.values())
    assert 'command: ["sequence", "--config", "/etc/totalorder/local.toml"]' in text
    assert "- ../conf:/etc/totalorder:ro" in text
    assert f"dockerfile: {DOCKERFILE.relative_to(ROOT)}" in text
