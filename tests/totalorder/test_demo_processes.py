"""No process of the demo outlives it, and no file: not after an error, and not after kill -9."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import is_alive, wait_until

from totalorder.demo.processes import Processes
from totalorder.errors import Error

_PATIENCE_S = 30
# A stand-in for the demo: it starts a worker that waits for orders, and then waits itself.
_DEMO = """
import threading
from totalorder.demo.processes import Processes
with Processes() as processes:
    process = processes.start("idle", "produce")
    print(process.pid, processes.folder, flush=True)
    threading.Event().wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_outlives_the_demo(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _DEMO], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as demo:
        assert demo.stdout is not None
        pid, folder = demo.stdout.readline().decode().split(maxsplit=1)
        assert is_alive(int(pid))
        demo.send_signal(number)
    wait_until(
        lambda: not is_alive(int(pid)) and not Path(folder.strip()).exists(),
        "worker and folder gone",
        bound_s=_PATIENCE_S,
    )


def test_a_process_that_dies_is_an_error_with_the_end_of_its_log() -> None:
    with Processes() as processes:
        process = processes.start("broken", "no-such-role")
        with pytest.raises(Error, match=r"'broken' ended with code 1[\s\S]*KeyError"):
            processes.until(lambda: False, what="Nothing", timeout_s=_PATIENCE_S)
        folder = processes.folder
    assert process.code == 1
    assert not folder.exists()


def test_waiting_has_an_end_that_names_what_was_awaited() -> None:
    with Processes() as processes, pytest.raises(Error, match=r"The tide took longer than 0.1 s"):
        processes.until(lambda: False, what="The tide", timeout_s=0.1)


def test_a_process_that_is_crashed_on_purpose_is_no_error() -> None:
    with Processes() as processes:
        process = processes.start("idle", "produce")
        processes.crash(process)
        assert process.code == -signal.SIGKILL
        processes.check()
        assert not processes.running
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
