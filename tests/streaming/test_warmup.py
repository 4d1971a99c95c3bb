"""What is said of a wait for Python workers: that the kernel is compiled, where it is, and else what it is."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder import slow
from totalorder.sequencer import kernel
from totalorder.streaming import warmup


def test_a_kernel_is_kept_where_an_earlier_process_compiled_it(tmp_path: Path) -> None:
    kernel.warm()
    assert warmup.is_kept()
    asked = "from totalorder.streaming import warmup; print(warmup.is_kept())"
    said = subprocess.run(
        [sys.executable, "-c", asked],
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert said == "False\n", "in a folder of its own nobody has compiled it"


class SlowSpark:
    """Workers that do not answer before the word on a long wait has been said."""

    def __init__(self, logs: list[Any]) -> None:
        self._logs = logs
        self.sparkContext, self.defaultParallelism = self, 2

    def range(self, *_: int, numSlices: int) -> "SlowSpark":  # noqa: N803
        assert numSlices == self.defaultParallelism
        return self

    def foreach(self, _: object) -> None:
        wait_until(lambda: bool(self._logs), "a word on the wait")


@pytest.mark.parametrize(("kept", "word"), [(True, warmup.STARTING), (False, warmup.COMPILING)])
def test_compiling_is_said_where_it_is_done(kept: bool, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "LONG_S", 0.01)
    monkeypatch.setattr(warmup, "is_kept", lambda: kept)
    with capture_logs() as logs:
        warmup.warm(SlowSpark(logs))  # type: ignore[arg-type]
    assert [line["event"] for line in logs] == [word]
    assert ("compiling" in word) is not kept
