"""Make build/typing/totalorder: the rooms as links, under the names that they are imported by.

mypy follows folders, not setuptools' package-dir, so it has to see `totalorder/sequencer` where there is `sequencer`.
"""

import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "build" / "typing"


def main() -> None:
    shutil.rmtree(TREE, ignore_errors=True)
    door = TREE / "totalorder"
    door.mkdir(parents=True)
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
    for package, folder in folders.items():
        if package == "totalorder":
            for entry in (ROOT / folder).iterdir():
                (door / entry.name).symlink_to(entry)
        else:
            (door / package.removeprefix("totalorder.")).symlink_to(ROOT / folder)


if __name__ == "__main__":
    main()
