"""Everything that the make targets need: `.venv` from constraints.txt, a Java, and the jars. Standard library only.

Run by `make`; needs Python 3.11 or newer, and the network the first time. A second run finds that nothing has changed
(by a stamp in .venv) and is over at once.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
STAMP = VENV / "set-up.stamp"
CONSTRAINTS = ROOT / "constraints.txt"
INPUTS = (ROOT / "pyproject.toml", CONSTRAINTS)
OLDEST_PYTHON = (3, 11)
NEWER_NAMES = ("python3.13", "python3.12", "python3.11")
JAVA_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")


def main() -> None:
    use_a_python_that_fits()
    sys.path.insert(0, str(ROOT))  # the folder totalorder/ is importable from here without an installation
    install_packages()
    ensure_java()
    fetch_jars()


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def fail(text: str) -> NoReturn:
    sys.exit(f"set-up: {text}")


# --- Python -----------------------------------------------------------------------------------------------------------


def use_a_python_that_fits() -> None:
    """Go on under a newer Python of this machine where the one that `make` took is too old."""
    if sys.version_info >= OLDEST_PYTHON:
        return
    for name in NEWER_NAMES:
        newer = shutil.which(name)
        if newer:
            os.execv(newer, [newer, *sys.argv])
    fail(
        f"this is Python {platform.python_version()}; install Python 3.11 or newer, "
        "or name one that is not on PATH: make PYTHON=/path/to/python3"
    )


def install_packages() -> None:
    """Bring .venv up to what pyproject.toml and constraints.txt say."""
    wanted = fingerprint()
    if VENV_PYTHON.exists() and STAMP.exists() and STAMP.read_text() == wanted:
        return
    if not runs(VENV_PYTHON):
        make_venv()
    STAMP.unlink(missing_ok=True)
    say("installing Python packages (the first time: some 500 MB)")
    # The build tools first, and no isolated builds: those would take whatever versions are newest today.
    pip("setuptools")
    # No dependencies: all are pinned, and one of them is newer than another one's bound (docs/adr/0026).
    pip("--no-build-isolation", "--no-deps", "-r", str(CONSTRAINTS))
    pip("--no-build-isolation", "--no-deps", "-e", str(ROOT))
    say("compiling what stamps and what reads")
    for module in ("sequencer import kernel", "streaming.cut import messages as kernel"):
        subprocess.run([str(VENV_PYTHON), "-c", f"from totalorder.{module}; kernel.warm()"], check=True)
    STAMP.write_text(wanted)


def fingerprint() -> str:
    """Changes with whatever the installed packages depend on; the folder too, since the installation points into it."""
    digest = hashlib.sha256(f"{sys.version_info[:3]} {ROOT}".encode())
    for path in INPUTS:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def runs(python: Path) -> bool:
    """Whether this interpreter works, is new enough and has pip; a .venv that was cut short or moved does not."""
    command = [str(python), "-c", f"import pip, sys; sys.exit(sys.version_info < {OLDEST_PYTHON})"]
    return python.exists() and subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_venv() -> None:
    say(f"making {VENV} with Python {platform.python_version()}")
    if VENV.exists():
        shutil.rmtree(VENV)
    if not has_ensurepip():
        name = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        if not apt_install((name, "python3-venv")):
            fail(f"this Python cannot make virtual environments; install its venv module (Debian, Ubuntu: {name})")
    subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)


def has_ensurepip() -> bool:
    """Debian splits it off into a package of its own."""
    return subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0


def pip(*words: str) -> None:
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(CONSTRAINTS)]
    quiet = [] if sys.stdout.isatty() else ["-q"]  # on a terminal pip shows its progress
    if subprocess.run([*command, *quiet, *words], check=False).returncode != 0:
        fail("pip failed (see above). The first run needs the network; run the same command again to go on.")


# --- Java and jars ----------------------------------------------------------------------------------------------------


def ensure_java() -> None:
    """Find Java 17 or 21, or install it where that can be done without asking."""
    from totalorder.errors import EnvironmentProblem
    from totalorder.java import find_java

    try:
        find_java()
    except EnvironmentProblem as problem:
        say(problem.what)
        if not apt_install(JAVA_PACKAGES):
            fail(problem.remedy)
        find_java()


def apt_install(names: "tuple[str, ...]") -> bool:
    """Install the first of these Debian packages that there is.

    False where this is no Debian, where root's rights cannot be had without asking, or where none can be installed.
    """
    apt = shutil.which("apt-get")
    if apt is None:
        return False
    become_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if become_root and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode != 0:
        return False
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update", "-q"], *(["install", "-q", "-y", "--no-install-recommends", name] for name in names)):
        say(f"apt-get {' '.join(arguments)}")
        done = subprocess.run([*become_root, apt, *arguments], env=environment, stdout=sys.stderr, check=False)
        if arguments[0] == "install" and done.returncode == 0:
            return True
    return False


def fetch_jars() -> None:
    """Under the new environment's Python: Ivy, which fetches them, comes with its pyspark."""
    if subprocess.run([str(VENV_PYTHON), "-m", "totalorder.jars"], check=False).returncode != 0:
        fail("the jars could not be fetched (see above)")


if __name__ == "__main__":
    main()
