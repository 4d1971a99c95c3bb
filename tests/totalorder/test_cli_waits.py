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


READ = ("read", "orders", "--domain", "shop", "-b", "b:1")
PLACE = "shop/0b428b26-2b39-414d-8c3a-ea9f07d8f88a/42"


def reading(monkeypatch: pytest.MonkeyPatch, on_poll: Callable[[], object] = lambda: None) -> None:
    """A reader to which nothing comes; it is finished once `on_poll` gives true."""

    class Made:
        stopped, finished, position = False, False, PLACE.replace("42", "7")

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def __enter__(self) -> "Made":
            return self

        def __exit__(self, *_: object) -> None: ...

        def poll(self, _: float) -> None:
            self.finished = bool(on_poll())

    monkeypatch.setattr("totalorder.subscriber.Reader", Made)


@pytest.mark.parametrize(("flags", "form"), [((), "{}\n"), (("--json",), '{{"level": "info", "said": "{}"}}\n')])
def test_read_says_once_what_end_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, run: Run, flags: tuple[str, ...], form: str
) -> None:
    monkeypatch.setattr(slow, "LONG_S", 0.01)
    polls_behind: list[int] = []

    def on_poll() -> bool:
        polls_behind.extend([1] if "waits until" in said() else [])
        return len(polls_behind) > 5

    reading(monkeypatch, on_poll)
    _, errors = run(*READ, "--until", PLACE, *flags)
    word = form.format(f"waits until the order reaches {PLACE}: that takes events … (Ctrl-C ends)")
    assert errors.count("waits until") == errors.replace("\\u2026", "…").count(word) == 1


@pytest.mark.parametrize(("flags", "code"), [(("--follow",), 0), (("--until", PLACE), 1), ((), 1)])
def test_read_ends_where_nothing_comes_for_as_long_as_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], code: int
) -> None:
    """As subscribe does; where there was an end to reach, that is a failure."""
    reading(monkeypatch)
    with pytest.raises(SystemExit) as done:
        main((*READ, "--timeout", "0.01", *flags))
    assert (done.value.code or 0) == code
    errors = capsys.readouterr().err
    assert f"read through {PLACE.replace('42', '7')}\n" in errors
    where = PLACE if flags else "the end"
    assert (f"no event came for 0.01 s, and {where} is not reached. Go on later" in errors) == bool(code)


def test_read_takes_no_empty_end_for_now(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    reading(monkeypatch)
    with pytest.raises(SystemExit) as done:
        main((*READ, "--timeout", "0.01", "--until", ""))
    assert done.value.code == 2
    assert "--until" in capsys.readouterr().err


@pytest.mark.parametrize("until", ["now", PLACE, "2026-01-01"])
def test_read_does_not_follow_to_an_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], until: str
) -> None:
    reading(monkeypatch)
    with pytest.raises(SystemExit) as done:
        main((*READ, "--timeout", "0.01", "--follow", "--until", until))
    assert done.value.code == 2
    assert capsys.readouterr().err == (
        "totalorder: --follow has no end, and --until gives one. Leave one of them out\n"
    )


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
