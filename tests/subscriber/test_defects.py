"""An invariant of ours that does not hold, at each face: a defect of totalorder's; what others assert is theirs."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest
from run_faces import BOUND_S, Face, rest, world_with
from sim_small import World, take

from totalorder.cli import app
from totalorder.cli.app import main
from totalorder.defects import defect_in
from totalorder.errors import Defect, Error, HandlerFailed, PayloadError
from totalorder.sequencer.wire import invariants
from totalorder.subscriber import Event, Reader, Retry, SqlitePositions, Subscriber, reader as readers
from totalorder.subscriber.reading.stamps import Batches
from totalorder.subscriber.session import Session

Take = Callable[[Subscriber[Any]], object]
TAKES: dict[str, Take] = {
    "poll": lambda subscriber: subscriber.poll(20),
    "poll_batch": lambda subscriber: subscriber.poll_batch(5, 20),
    "iterator": next,
}
SAID = (
    "an invariant of totalorder does not hold: d.stamps[",
    "] has delivered more rows than waited (totalorder.subscriber.delivery.stamps, line ",
    "This is a defect of totalorder, and none of your application. Nothing more is delivered, and no position is ",
    "Make a new Subscriber: it goes on after what was saved. Report this message, the traceback of its cause",
)


@pytest.fixture(autouse=True)
def only_what_is_always_looked_at() -> Iterator[None]:
    with invariants.looking(0):
        yield


def broken(world: World, subscriber: Subscriber[Any]) -> None:
    """What is published from now on is delivered in more rows than are known to wait."""
    for part in subscriber._session.machine._stamps.parts.values():
        part.waiting -= 100
    for topic in "ab":
        world.publish(topic)


def call_of_ours(error: AssertionError) -> NoReturn:
    """Raised as by a module of the package."""
    ours: dict[str, Any] = {"__name__": "totalorder.told", "error": error}
    exec("def fail():\n    raise error", ours)
    ours["fail"]()
    raise NotImplementedError


def is_told(error: BaseException, *said: str) -> None:
    assert isinstance(error, Defect)
    assert all(words in str(error) for words in said), str(error)
    assert isinstance(error.__cause__, AssertionError)


@pytest.mark.parametrize("name", TAKES)
def test_a_subscriber_tells_it_again_hands_nothing_out_and_writes_nothing(name: str) -> None:
    """Who comes next goes on after what was saved."""
    world = world_with(3)
    transport = world.transport()
    subscriber = world.subscriber("abc", transport=transport, save_interval_s=1_000)
    done = take(subscriber, 2)
    subscriber.save()
    take(subscriber, 1)
    broken(world, subscriber)
    with pytest.raises(Defect) as failed:
        TAKES[name](subscriber)
    is_told(failed.value, *SAID)
    calls: list[Take] = [*TAKES.values(), Subscriber.save, lambda subscriber: subscriber.subscribe(["a"])]
    for call in calls:
        with pytest.raises(Defect) as again:
            call(subscriber)
        assert again.value is failed.value
    assert repr(subscriber).endswith(", ended by Defect>")
    transport.sent.clear()
    subscriber.close()
    assert transport.closed
    assert not transport.sent
    left = rest(world)
    assert [event.value for event in (*done, *left)] == [b"a1", b"b2", b"c3", b"a4", b"b5"]


def test_an_async_subscriber_tells_the_same() -> None:
    world = world_with(0)

    async def take_all() -> None:
        async with world.async_subscriber("abc") as subscriber:
            broken(world, subscriber._started)
            await subscriber.poll(20)

    with pytest.raises(Defect) as failed:
        asyncio.run(asyncio.wait_for(take_all(), BOUND_S))
    is_told(failed.value, *SAID)


@pytest.mark.parametrize("name", ["run", "async run"])
def test_run_ends_with_it_and_the_next_one_goes_on(name: str) -> None:
    world, seen, face = world_with(1), list[bytes | None](), Face(name)

    def handle(subscriber: Any, event: Event) -> None:
        seen.append(event.value)
        assert len(seen) == 1
        broken(world, getattr(subscriber, "_started", subscriber))

    with pytest.raises(Defect) as failed:
        face.run(world, handle, retry=Retry(times=None))
    is_told(failed.value, *SAID)
    assert face.left is failed.value
    assert [*seen, *(event.value for event in rest(world))] == [b"a1", b"a2", b"b3"]


def test_what_does_not_hold_while_a_subscriber_begins_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the assertion has no words of its own, it is its words."""
    read = Session._read_through

    def forgets(session: Session, *arguments: Any) -> None:
        read(session, *arguments)
        session._history = None

    monkeypatch.setattr(Session, "_read_through", forgets)
    world = World()
    transport = world.transport()
    with pytest.raises(Defect) as failed:
        world.subscriber("a", transport=transport)
    is_told(failed.value, "does not hold: assert self._history is not None (totalorder.subscriber.session, line")
    assert transport.closed


def test_an_acknowledgement_within_a_store_tells_it_and_is_the_last(tmp_path: Path) -> None:
    world = World()
    subscriber = world.subscriber("a", positions=SqlitePositions(tmp_path / "shop.db"))
    world.publish("a")
    event = subscriber.poll(20)
    assert event is not None
    assert subscriber._session.stored is not None
    subscriber._session.stored.done = None
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, pytest.raises(Defect) as failed:
        subscriber.ack(event, within=connection)
    with pytest.raises(Defect) as again:
        subscriber.poll(0)
    assert again.value is failed.value
    subscriber.close()


def reader_of(world: World) -> Reader[Any]:
    return Reader(["a"], domain="d", transport=world.transport(), clock=lambda: world.now, wall_clock=lambda: world.now)


def world_to_read() -> World:
    world = World()
    world.tick(0)
    world.publish("a")
    world.tick(1)
    return world


def lose_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Reader counts one row less than it holds."""
    pop = Batches._pop

    def miscount(stamps: Batches, part: Any) -> None:
        part.rows = 0
        pop(stamps, part)

    monkeypatch.setattr(Batches, "_pop", miscount)


READ = (
    "an invariant of totalorder does not hold: stamps partition ",
    " has given more rows than it held (totalorder.subscriber.reading.stamps, line ",
    "Make a new Reader: it begins behind the last position that you have",
)


@pytest.mark.parametrize("take_from", [lambda reader: reader.poll(60), lambda reader: reader.poll_batch(5, 60), next])
def test_a_reader_tells_it(take_from: Callable[[Reader[Any]], object], monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_to_read()
    with reader_of(world) as reader:
        take_from(reader)
        lose_count(monkeypatch)
        world.publish("a")
        for _ in range(2):
            with pytest.raises(Defect) as failed:
                take_from(reader)
            is_told(failed.value, *READ)


def test_a_reader_tells_it_while_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    lose_count(monkeypatch)
    with pytest.raises(Defect) as failed:
        reader_of(world_to_read())
    is_told(failed.value, *READ)


def test_a_command_shows_it_with_the_traceback_that_is_to_be_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lose_count(monkeypatch)
    world = world_to_read()
    monkeypatch.setattr(readers, "transport_of", lambda _: lambda *_, **__: world.transport())
    with pytest.raises(SystemExit) as end:
        main(["read", "a", "--domain", "d"])
    told = capsys.readouterr().err
    assert end.value.code == 1
    assert "Traceback (most recent call last)" in told
    assert 'in _pop\n    assert part.rows >= 0, f"stamps partition' in told
    last = told.splitlines()[-1]
    assert last.startswith("totalorder: an invariant of totalorder does not hold")
    assert all(words in last for words in READ)


def test_a_command_that_has_no_subscriber_shows_it_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(app, "build_app", lambda: call_of_ours(AssertionError("no such command")))
    with pytest.raises(SystemExit) as end:
        main(["topics"])
    told = capsys.readouterr().err
    assert end.value.code == 1
    assert "Traceback (most recent call last)" in told
    assert "totalorder: an invariant of totalorder does not hold: no such command (totalorder.told, line 2" in told


# --- what is not ours -------------------------------------------------------------------------------------------------


def test_what_a_library_or_an_application_asserts_passes_as_it_is() -> None:
    """A transport stands for whatever is called within, as the application's store or a Kafka client."""
    world = World()
    transport = world.transport()
    subscriber = world.subscriber("a", transport=transport)
    theirs = AssertionError("of theirs")

    def fail(_: float) -> None:
        raise theirs

    transport.on_poll = fail
    with pytest.raises(AssertionError) as failed:
        subscriber.poll(20)
    assert failed.value is theirs
    assert theirs.__cause__ is None
    with pytest.raises(Error, match="a call was interrupted by AssertionError"):
        subscriber.poll(20)


def test_a_command_shows_what_a_library_asserts_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("of theirs")

    monkeypatch.setattr(app, "build_app", fail)
    with pytest.raises(AssertionError, match="of theirs"):
        main(["topics"])


def test_a_callbacks_assertion_passes_as_it_is() -> None:
    world = World()

    def fail(_: object) -> None:
        raise AssertionError("of theirs")

    subscriber = world.subscriber("a", on_granted=fail)
    with pytest.raises(AssertionError, match="of theirs"):
        subscriber.poll(20)
    world.publish("a")
    take(subscriber, 1)


@pytest.mark.parametrize("name", ["run", "async run"])
def test_a_handlers_assertion_is_the_handlers_failure(name: str) -> None:
    world, face = world_with(2), Face(name)

    def handle(*_: Any) -> None:
        raise AssertionError("of theirs")

    with pytest.raises(HandlerFailed, match="AssertionError: of theirs"):
        face.run(world, handle)
    assert isinstance(face.left, HandlerFailed)


def test_a_deserializers_assertion_is_the_payloads() -> None:
    def read(_: Event) -> None:
        raise AssertionError("of theirs")

    world = World()
    subscriber = world.subscriber("a", deserializer=read)
    world.publish("a")
    (event,) = take(subscriber, 1)
    with pytest.raises(PayloadError, match="of theirs"):
        event.payload  # type: ignore[attr-defined]  # noqa: B018


def test_what_fails_with_another_error_is_none() -> None:
    for error in (ValueError("no"), AssertionError("never raised"), Error("ours")):
        assert defect_in(error, stopped="") is None
