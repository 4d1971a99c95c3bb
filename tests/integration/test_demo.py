"""The demo as a person starts it: its verdict, and that it leaves nothing behind, whichever way it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]

_COMMAND = [sys.executable, "-c", "from totalorder.cli.app import main; main()", "demo", "--quick", "--json"]
_PATIENCE_S = 600
_HERE = "here"


def _start(temporary: Path) -> subprocess.Popen[bytes]:
    """The demo with a temporary folder of its own, by which its processes and files are known, started in another."""
    (temporary / _HERE).mkdir()
    return subprocess.Popen(
        _COMMAND,
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=temporary / _HERE,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def _processes(temporary: Path) -> list[str]:
    """Command lines of every process whose temporary files go there (a zombie has none)."""
    mark = f"TMPDIR={temporary}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if any(each.startswith(mark) for each in (folder / "environ").read_bytes().split(b"\0")):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:  # it has ended meanwhile, or is another user's
            continue
    return found


def _left_behind(temporary: Path) -> list[str]:
    # Java keeps a file for each of its processes, which it removes when it starts the next time.
    folders = (*temporary.iterdir(), *(temporary / _HERE).iterdir())
    files = [path.name for path in folders if path.name != _HERE and not path.name.startswith("hsperfdata")]
    return _processes(temporary) + files


def test_a_quick_run_keeps_every_promise_and_plain_consumers_do_not(tmp_path: Path) -> None:
    with _start(tmp_path) as demo:
        out, log = demo.communicate(timeout=_PATIENCE_S)
    assert demo.returncode == 0, log.decode()
    found = json.loads(out)
    assert found["ok"]
    assert found["events"] == found["stamps"] == 2_000
    ours = found["ours"]
    assert ours["agreement"]["subscriber_pairs"] == 21
    assert ours["agreement"]["event_pairs"] > 1_000_000
    assert ours["agreement"]["disagreements"] == ours["missing"] == ours["repeated"] == ours["foreign"] == 0
    assert found["plain"]["agreement"]["disagreements"] > 0
    assert found["stamps_bytes_per_event"] > 0
    proof = found["proof"]
    assert proof["events"] == 2_000
    # Of what a killed board wrote down last, and got again, there may be no receipt.
    assert ours["deliveries"] - ours["again"] <= proof["deliveries"] <= ours["deliveries"]
    assert {audit["verdict"] for audit in proof["audits"]} == {"holds", "information"}
    assert len(proof["audits"]) > 10
    assert "publishing" in log.decode()
    assert _left_behind(tmp_path) == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_nothing_is_left_of_a_run_that_is_broken_off(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with _start(tmp_path) as demo:
        # Spark's Java lives: it is the process that is hardest to get rid of.
        wait_until(
            lambda: any("pyspark-shell" in command for command in _processes(tmp_path)),
            "Spark to start",
            bound_s=_PATIENCE_S,
        )
        demo.send_signal(number)
        demo.communicate(timeout=_PATIENCE_S)
    assert demo.returncode == code
    wait_until(lambda: not _left_behind(tmp_path), f"the end of {_left_behind(tmp_path)}", bound_s=_PATIENCE_S)
