"""`totalorder bench` as a command: how it ends."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import wait_until

from totalorder.bench.figures import command as figures
from totalorder.bench.kernel import command as kernel
from totalorder.bench.outcome import Outcome, Request
from totalorder.cli.app import main

_START_S = 240.0
# A benchmark whose clearing up fails, as a call into Java does behind one that was cut short.
_SPOILED = """
import threading
from totalorder.bench.kernel import command as kernel
from totalorder.cli.app import main
def run(request):
    try:
        print("up", flush=True)
        threading.Event().wait()
    finally:
        raise RuntimeError("spoiled")
kernel.run = run
main(["bench", "kernel"])
"""


def test_a_broken_claim_is_named_behind_the_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(_: Request) -> Outcome:
        return Outcome(data={"claims_held": False}, tables=[], broken=["it is 3, and must not exceed 2"])

    monkeypatch.setattr(kernel, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # pytest keeps its own handlers
    with pytest.raises(SystemExit) as ended:
        main(["bench", "kernel", "--json"])
    shown = capsys.readouterr()
    assert ended.value.code == 1
    assert shown.out == '{"claims_held": false}\n'
    assert "bench kernel breaks a claim: it is 3, and must not exceed 2" in shown.err


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_where_results_cannot_go_is_told_before_the_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, place: str
) -> None:
    monkeypatch.setattr(figures, "run", lambda _: pytest.fail("it was run"))
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main(["bench", "figures", "--out", str(tmp_path / place)])
    assert ended.value.code == 2
    assert f"--out: {tmp_path / place} cannot be made" in capsys.readouterr().err


def test_figures_are_shown_though_their_files_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def write() -> list[Path]:
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "a.png"))

    monkeypatch.setattr(figures, "run", lambda _: Outcome(data={"entries": 46}, tables=[], write=write))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "figures", "--json", "--out", str(tmp_path)])
    shown = capsys.readouterr()
    assert (ended.value.code, shown.out) == (1, '{"entries": 46}\n')
    assert f"--out: {tmp_path / 'a.png'} cannot be written: No space left on device" in shown.err


@pytest.mark.broker
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_neither_processes_nor_folders(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    signal.signal(number, signal.SIG_DFL)  # under nohup it would be ignored by what is started, too
    command = [sys.executable, "-m", "totalorder.cli", "bench", "job", "--smoke"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as bench:
        try:
            wait_until(lambda: list(tmp_path.glob("*/kafka/*.lock")) != [], "a broker runs", bound_s=_START_S)
            bench.send_signal(number)
            assert bench.wait(_START_S) == 128 + number
        finally:
            bench.kill()
    assert list(tmp_path.iterdir()) == []


def test_with_nohup_a_closed_terminal_ends_nothing() -> None:
    command = ["/bin/sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, _SPOILED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "up\n"
        bench.send_signal(signal.SIGHUP)
        bench.terminate()
        bench.communicate(timeout=_START_S)
        assert bench.returncode == 128 + signal.SIGTERM


def test_sigterm_is_no_traceback_where_clearing_up_fails() -> None:
    command = [sys.executable, "-c", _SPOILED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as bench:
        assert bench.stdout is not None
        assert bench.stdout.readline() == "up\n"
        bench.terminate()
        assert bench.communicate(timeout=_START_S) == ("", "")
        assert bench.returncode == 128 + signal.SIGTERM
