"""What our Python daemon does with Spark's workers."""

import socket
from collections.abc import Iterator

import pytest

from totalorder.streaming import daemon


@pytest.fixture
def sock() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        yield made


def test_a_worker_that_java_dismisses_ends_quietly(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> None:
    def dismissed(*_: object) -> int:
        raise BrokenPipeError

    monkeypatch.setattr(daemon, "_worker", dismissed)
    assert daemon.worker(sock, True) == 1


def test_what_else_a_worker_does_passes_through(monkeypatch: pytest.MonkeyPatch, sock: socket.socket) -> None:
    def failing(*_: object) -> int:
        raise RuntimeError("lost")

    monkeypatch.setattr(daemon, "_worker", lambda given, known: 7 if (given, known) == (sock, False) else 0)
    assert daemon.worker(sock, False) == 7
    monkeypatch.setattr(daemon, "_worker", failing)
    with pytest.raises(RuntimeError, match="lost"):
        daemon.worker(sock, True)
