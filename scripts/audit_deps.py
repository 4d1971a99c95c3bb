"""Asks PyPI's database of advisories about all that constraints.txt pins (`make audit-deps`).

pip-audit takes a package that the database does not know for one without a flaw, and a mirror of packages has no such
database: so whatever could not be asked about is told here, and is a failure. It has a `.venv` of its own, in .cache/.
"""

import json
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_PIP_AUDIT = "pip-audit==2.10.1"
_ASK = (
    "--requirement",
    "constraints.txt",
    "--no-deps",
    "--disable-pip",
    "--progress-spinner",
    "off",
    "--format",
    "json",
)
_WAIT_S = 600


def installed() -> Path:
    """pip-audit, installed where it is not yet."""
    home = ROOT / ".cache" / _PIP_AUDIT.replace("==", "-")
    program = home / "bin" / "pip-audit"
    if not program.exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "python", "-m", "pip", "install", "--quiet", _PIP_AUDIT], check=True)
    return program


def verdict(told: str) -> tuple[int, str]:
    """The exit code, and what to say of pip-audit's JSON."""
    try:
        packages = json.loads(told)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return 2, "audit-deps: the database of advisories could not be reached: nothing was audited"
    skipped = [package["name"] for package in packages if "skip_reason" in package]
    if len(skipped) == len(packages):
        return 2, "audit-deps: there is no database of advisories where packages come from here: nothing was audited"
    flaws = [
        f"{package['name']} {package['version']}: {flaw['id']}, mended in {', '.join(flaw['fix_versions']) or 'none'}"
        for package in packages
        for flaw in package.get("vulns", ())
    ]
    unknown = [f"{name}: not known to the database, not audited" for name in skipped]
    asked = len(packages) - len(skipped)
    return int(bool(flaws or unknown)), "\n".join([*flaws, *unknown, f"audit-deps: asked about {asked} packages"])


def main() -> int:
    """The exit code: 0 where nothing is known against any, 1 where something is, 2 where nobody could be asked."""
    try:
        program = installed()
        done = subprocess.run([program, *_ASK], cwd=ROOT, capture_output=True, text=True, timeout=_WAIT_S, check=False)
    except (subprocess.SubprocessError, OSError) as error:
        print(f"audit-deps: {error}: nothing was audited", file=sys.stderr)
        return 2
    code, words = verdict(done.stdout)
    print(words, file=sys.stderr if code == 2 else sys.stdout)
    return code


if __name__ == "__main__":
    sys.exit(main())
