"""A process that starts one program and sees to its end: by order, or when the process that asked for it is gone.

`python -I -S _guard.py OWNER_PID GRACE_S REMOVE LOG PROGRAM…`. Standard input is a pipe held by the owner: the byte `s`
stops the program (SIGTERM, after GRACE_S seconds SIGKILL), `k` kills it, and the pipe's end (the owner is gone,
however it died) kills it too. The pipe alone is not enough: a forked child of the owner may hold a copy, so the
parent's pid is watched as well. On Linux the program also dies with this process, should this be the one that is
killed. REMOVE, if not empty, is a folder to delete when the owner is gone. The program's output is appended to LOG;
its pid, and at its end its exit code, are the two lines on standard output. Standard library only.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

_PARENT_CHECK_S = 0.5
_PR_SET_PDEATHSIG = 1


def main() -> int:
    owner, grace_s, remove, log = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], sys.argv[4]
    # Ctrl-C and SIGTERM are for the owner, who then tells this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with open(log, "ab") as output:
        child = subprocess.Popen(
            sys.argv[5:], stdin=subprocess.DEVNULL, stdout=output, stderr=output, preexec_fn=_before_exec(os.getpid())
        )
    _say(child.pid)
    owner_gone = False
    try:
        owner_gone = _watch(child, owner, grace_s)
    finally:
        child.kill()
        code = child.wait()
        if remove and owner_gone:
            shutil.rmtree(remove, ignore_errors=True)
        _say(code)
    return 0


def _before_exec(guard: int) -> Callable[[], None]:
    """What the child does before it becomes the program: default signals again, and on Linux: die with the guard."""
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != guard:  # it died before the call above
                os._exit(1)

    return prepare


def _watch(child: subprocess.Popen[bytes], owner: int, grace_s: float) -> bool:
    """Returns when the child has ended or has to; True if the reason is that the owner is gone."""
    ended, notice = os.pipe()
    os.set_blocking(notice, False)
    signal.set_wakeup_fd(notice)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    while child.poll() is None:
        if os.getppid() != owner:
            return True
        ready, _, _ = select.select([0, ended], [], [], _PARENT_CHECK_S)
        if ended in ready:
            os.read(ended, 64)
        if 0 in ready:
            order = os.read(0, 1)
            if order == b"s":
                child.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(grace_s)
            return not order
    return False


def _say(number: int) -> None:
    with contextlib.suppress(OSError):  # nobody may be left to listen
        os.write(1, f"{number}\n".encode())


if __name__ == "__main__":
    sys.exit(main())
