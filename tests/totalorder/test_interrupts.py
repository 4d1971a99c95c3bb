"""Ctrl-C that waits: it is neither lost nor raised amid what it must not break."""

import signal

import pytest

from totalorder.interrupts import interrupts_kept


def test_an_interrupt_waits_until_it_is_obeyed() -> None:
    before = signal.getsignal(signal.SIGINT)
    with interrupts_kept() as obey:
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        obey()


def test_without_an_interrupt_there_is_nothing_to_obey() -> None:
    with interrupts_kept() as obey:
        pass
    obey()


def test_what_fails_within_leaves_the_handler_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(ZeroDivisionError), interrupts_kept():
        _ = 1 // 0
    assert signal.getsignal(signal.SIGINT) is before
