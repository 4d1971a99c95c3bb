"""Commands that wait: they say for what, on stderr only, warn of what would be waited for in vain, and end as told."""

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import wait_until

from totalorder import slow
from totalorder.cli.app import main

Run = Callable[..., tuple[str, str]]
WAITS = "waiting for the sequencer of domain shop on b:1 … (Ctrl-C ends)\n"
GRANTED = "subscribed at g 7\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command line that does not fail; its output and errors."""

    def call(*words: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as done:
            main(words)
        assert not done.value.code
        out, errors = capsys.readouterr()
        return out, errors

    return call


def said() -> str:
    return str(sys.stderr.getvalue())  # type: ignore[union-attr]  # it is capsys's


def subscribing(monkeypatch: pytest.MonkeyPatch, during: Callable[[], object], position_g: int = 7) -> list[bool]:
    """A subscriber that is granted at g 7 after `during` and has nothing.

    Returns what `unsubscribe` will have been told of draining.
    """
    drained: list[bool] = []

    class Made:
        stopped, finished, granted_g = False, True, 7

        def __init__(self, *_: Any, **__: Any) -> None:
            during()

        def __enter__(self) -> "Made":
            return self

        def __exit__(self, *_: object) -> None: ...

        def poll(self, _: float) -> None: ...

        def metrics(self) -> SimpleNamespace:
            return SimpleNamespace(g=position_g)

        def unsubscribe(self, *, drain: bool) -> None:
            drained.append(drain)

    monkeypatch.setattr("totalorder.subscriber.Subscriber", Made)
    return drained


SUBSCRIBE = ("subscribe", "--id", "s", "--domain", "shop", "-b", "b:1")


def test_subscribe_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(slow, "LONG_S", 0.01)
    subscribing(monkeypatch, lambda: wait_until(lambda: said() == WAITS, "the word on the wait"))
    assert run(*SUBSCRIBE, "orders") == ("", WAITS + GRANTED)


def test_a_short_wait_is_not_talked_of(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    subscribing(monkeypatch, lambda: None)
    before = set(threading.enumerate())
    assert run(*SUBSCRIBE, "orders") == ("", GRANTED)
    wait_until(
        lambda: set(threading.enumerate()) <= before,
        "the timer is cancelled",
        bound_s=slow.LONG_S / 2,
    )


@pytest.mark.parametrize(("flags", "expected"), [((), []), (("--end",), [False])])
def test_only_end_ends_the_subscription(
    monkeypatch: pytest.MonkeyPatch, run: Run, flags: tuple[str, ...], expected: list[bool]
) -> None:
    drained = subscribing(monkeypatch, lambda: None)
    run(*SUBSCRIBE, *flags, "orders")
    assert drained == expected


@pytest.mark.parametrize(
    ("flags", "says"),
    [((), "subscribed at g 7, going on after g 3\n"), (("--json",), '{"subscribed_at_g": 7, "after_g": 3}\n')],
)
def test_subscribe_says_where_it_was_granted(
    monkeypatch: pytest.MonkeyPatch, run: Run, flags: tuple[str, ...], says: str
) -> None:
    subscribing(monkeypatch, lambda: None, position_g=3)
    assert run(*SUBSCRIBE, *flags, "orders") == ("", says)


@pytest.mark.parametrize(("flags", "expected"), [((), "starting Kafka…\n"), (("--json",), "")])
def test_broker_says_that_it_starts(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path, flags: tuple[str, ...], expected: str
) -> None:
    class AtOnce(threading.Timer):
        def start(self) -> None:
            self.function(*self.args, **self.kwargs)

    monkeypatch.setattr(slow, "Timer", AtOnce)

    class Broker:
        bootstrap_servers, data_dir, log_path, closed = "b:1", tmp_path, tmp_path, False

        def __init__(self, **_: Any) -> None: ...

        def start(self) -> None:
            assert said() == expected

        def wait(self) -> None:
            raise KeyboardInterrupt

        def close(self) -> None:
            Broker.closed = True

    monkeypatch.setattr("totalorder.broker.LocalBroker", Broker)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    out, errors = run("broker", "--port", "0", *flags)
    assert "b:1" in out
    assert errors == expected
    assert Broker.closed
