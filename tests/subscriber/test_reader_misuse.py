"""A Reader is for one thread of one process, and says so as a Subscriber does."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from forked import in_a_fork
from sim_kafka import SimTransport
from sim_small import World
from two_threads import within

from totalorder.errors import Error
from totalorder.subscriber import Reader

CALLS: list[Callable[[Reader[Any]], object]] = [
    lambda reader: reader.poll(60),
    lambda reader: reader.poll_batch(10, 60),
    next,
    lambda reader: reader.close(),
]


def begun() -> tuple[World, SimTransport, Reader[Any]]:
    """A Reader that is about to read the only event there is."""
    world = World()
    world.tick(0)
    world.publish("a")
    world.tick(1)
    transport = world.transport()
    reader: Reader[Any] = Reader(
        ["a"], domain="d", transport=transport, clock=lambda: world.now, wall_clock=lambda: world.now
    )
    return world, transport, reader


def is_whole(world: World, transport: SimTransport, reader: Reader[Any]) -> None:
    """Nothing was torn."""
    transport.on_poll = world.tick
    event = reader.poll(60)
    assert event is not None
    assert event.value == b"a1"
    reader.close()
    assert transport.closed


@pytest.mark.parametrize("call", CALLS)
def test_a_second_thread_is_told_which_rule_it_breaks(call: Callable[[Reader[Any]], object]) -> None:
    world, transport, reader = begun()
    with within(reader.poll, transport), pytest.raises(Error, match=r"two threads call one Reader at once.*only stop"):
        call(reader)
    is_whole(world, transport, reader)


@pytest.mark.parametrize("call", CALLS)
def test_a_signal_handler_is_told_which_rule_it_breaks(call: Callable[[Reader[Any]], object]) -> None:
    world, transport, reader = begun()

    def break_in(_: float) -> None:
        call(reader)

    transport.on_poll = break_in
    with pytest.raises(Error, match=r"a Reader was called in the middle of another call.*only stop"):
        reader.poll(0)
    is_whole(world, transport, reader)


def test_in_a_fork_of_its_process_a_reader_is_refused_and_close_leaves_kafka_alone() -> None:
    world, transport, reader = begun()

    def tried() -> str:
        said = []
        calls: list[Callable[[], object]] = [reader.poll, reader.poll_batch, lambda: next(reader)]
        for call in calls:
            try:
                call()
            except Error as error:
                said.append(error.what)
        reader.close()
        assert not transport.closed
        return " ".join(said)

    said = in_a_fork(tried)
    assert said.count(f"a Reader of process {os.getpid()} was called in process ") == 3
    is_whole(world, transport, reader)


def test_what_ends_a_with_block_is_not_hidden_by_its_close() -> None:
    _, transport, reader = begun()

    def leave(_: float) -> None:
        with reader:
            raise ValueError

    transport.on_poll = leave
    with pytest.raises(ValueError, match=r"^$"):
        reader.poll(0)
