"""Positions in an application's database: each event has its effect once, whatever is rolled back or restored."""

import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from postgres import NotFound, postgres
from sim_receipts import receipts_of
from sim_small import World, await_ready
from waiting import BOUND_S, wait_until

from totalorder.errors import AlreadyDone, Error, Fenced, NotCommitted, SettingsError, StateError, StoreUnavailable
from totalorder.subscriber import (
    Event,
    Lost,
    Position,
    PositionStore,
    SqlitePositions,
    Subscriber,
    sqlalchemy_positions,
)
from totalorder.subscriber.position_store import Holder
from totalorder.subscriber.positions import Positions
from totalorder.subscriber.sqlalchemy_positions import SqlAlchemyPositions
from totalorder.subscriber.stored import Stored
from totalorder.subscriber.transport import Partition

TABLE = "totalorder_positions"


class Shop:
    """An application's database, and its effects: a row for each event. A file of SQLite's, or a server's."""

    def __init__(self, path: Path, kind: str, url: str = "") -> None:
        self.path, self.kind = path, kind
        self.engine = sqlalchemy.create_engine(url or f"sqlite:///{path}")
        number = "SERIAL" if url else "INTEGER"
        self.change(f"CREATE TABLE IF NOT EXISTS effects (number {number} PRIMARY KEY, value TEXT)")

    def store(self, **settings: bool) -> PositionStore:
        if self.kind == "sqlite":
            return SqlitePositions(self.path, **settings)
        return SqlAlchemyPositions(self.engine, **settings)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.path)) as connection, connection:
                yield connection
        else:
            with self.engine.begin() as begun:
                yield begun

    def work(self, connection: Any, *events: Any) -> None:
        """The effects of events."""
        for event in events:
            statement = "INSERT INTO effects (value) VALUES (:value)"
            values = {"value": event.value.decode() if isinstance(event, Event) and event.value else "lost"}
            connection.execute(statement if self.kind == "sqlite" else sqlalchemy.text(statement), values)

    def commit(self, subscriber: Subscriber[Any], *events: Any, fails: bool = False) -> None:
        """The effects of events, and the position behind the last one, in one transaction; one that `fails` is rolled
        back by a ZeroDivisionError.
        """
        with self.transaction() as connection:
            self.work(connection, *events)
            subscriber.ack(events[-1], within=connection)
            if fails:
                raise ZeroDivisionError

    @property
    def effects(self) -> list[str]:
        return [value for (value,) in self._found("SELECT value FROM effects ORDER BY number")]

    def rows(self) -> list[tuple[str, int]]:
        return [(place, generation) for place, generation in self._found(f"SELECT place, generation FROM {TABLE}")]

    def _found(self, statement: str) -> list[Any]:
        with self.engine.begin() as connection:
            return list(connection.execute(sqlalchemy.text(statement)))

    def change(self, statement: str, **values: str) -> None:
        """In a transaction of its own, as by somebody else."""
        with self.engine.begin() as connection:
            connection.execute(sqlalchemy.text(statement), values)


@pytest.fixture(scope="module")
def server() -> Iterator[Callable[[], str]]:
    """Gives the URL of a new database."""
    pytest.importorskip("psycopg")
    try:
        with postgres() as folder:
            urls = (f"postgresql+psycopg://test@/{{}}?host={folder}".format(f"shop{number}") for number in count(1))
            admin = sqlalchemy.create_engine(
                f"postgresql+psycopg://test@/postgres?host={folder}", isolation_level="AUTOCOMMIT"
            )

            def make() -> str:
                url = next(urls)
                with admin.connect() as connection:
                    connection.execute(sqlalchemy.text(f"CREATE DATABASE {sqlalchemy.make_url(url).database}"))
                return url

            yield make
            admin.dispose()
    except NotFound as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["sqlite", "sqlalchemy", "postgresql"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = request.getfixturevalue("server")() if request.param == "postgresql" else ""
    made = Shop(tmp_path / "shop.db", request.param, url)
    yield made
    made.engine.dispose()


@pytest.fixture(params=["sqlite", "sqlalchemy"])
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Shop:
    """One that can be copied, and locked as a whole."""
    return Shop(tmp_path / "shop.db", request.param)


def subscriber(world: World, shop: Shop, **settings: Any) -> Subscriber[Any]:
    return world.subscriber("a", **({"positions": shop.store()} | settings))


def polled(subscriber: Subscriber[Any]) -> Any:
    """The next event."""
    event = subscriber.poll(60)
    assert event is not None
    return event


def handle(shop: Shop, subscriber: Subscriber[Any], count: int) -> list[Any]:
    """Handles some events, each in a transaction."""
    events = []
    for _ in range(count):
        event = polled(subscriber)
        shop.commit(subscriber, event)
        events.append(event)
    return events


def publish(world: World, *values: str) -> None:
    for value in values:
        world.publish("a", value)


def _fail(shop: Shop, connection: Any, subscriber: Subscriber[Any], batch: Any) -> None:
    shop.work(connection, *batch)
    subscriber.ack(batch, within=connection)
    raise ZeroDivisionError


def kill(subscriber: Subscriber[Any]) -> None:
    """As kill -9 does: nothing more is saved."""
    subscriber._transport.close()


def saved_g(world: World) -> int:
    """Where Kafka has the id."""
    from totalorder.sequencer.wire.position import decode_saved

    records = [record for (at, log) in world.kafka.logs.items() if at.topic == "d.positions" for record in log]
    return max(decode_saved(record.value).position.g for record in records if record.value is not None)


def test_a_process_goes_on_behind_what_was_committed_though_kafka_knows_less(shop: Shop) -> None:
    world = World()
    first = subscriber(world, shop, save_interval_s=1_000)
    publish(world, *"123456")
    events = handle(shop, first, 4)
    assert saved_g(world) < events[0].g
    kill(first)
    second = subscriber(world, shop, nonce="second")
    await_ready(second, 2)
    second.save()
    assert saved_g(world) == events[3].g
    assert [event.value for event in handle(shop, second, 2)] == [b"5", b"6"]
    assert shop.effects == [*"123456"]
    metrics = second.metrics()
    assert (metrics.delivered, metrics.already_done) == (2, 4)
    second.close()
    told = [(receipt.n, receipt.redelivered) for receipt in receipts_of(world.kafka, "s") if receipt.nonce == "second"]
    assert [n for n, _ in told] == [1, 2, 3, 4, 5, 6]
    assert all(redelivered for _, redelivered in told[:4])


def test_kafka_follows_what_is_committed_and_never_runs_ahead_of_it(shop: Shop) -> None:
    world = World()
    with subscriber(world, shop) as mine:
        publish(world, *"123")
        one, two = handle(shop, mine, 2)
        world.now += 3
        mine.poll(5)
        assert saved_g(world) == two.g == one.g + 1
        world.now += 3
        assert mine.poll(5) is None
        assert mine.position.g == two.g
    assert saved_g(world) == two.g


def test_what_is_rolled_back_is_not_done_and_what_comes_behind_it_cannot_be_committed(shop: Shop) -> None:
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"123")
    handle(shop, mine, 1)
    event = polled(mine)
    with pytest.raises(ZeroDivisionError):
        shop.commit(mine, event, fails=True)
    later = polled(mine)
    with pytest.raises(NotCommitted, match="rolled back"):
        shop.commit(mine, later)
    assert shop.effects == ["1"]
    for each in (event, later):  # in order, it can be done again
        shop.commit(mine, each)
    assert shop.effects == [*"123"]


def test_what_is_done_and_done_again_is_refused(shop: Shop) -> None:
    """As after a commit whose answer was lost."""
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"12")
    (event,) = handle(shop, mine, 1)
    with pytest.raises(AlreadyDone, match="and its effects are there"):
        shop.commit(mine, event)
    handle(shop, mine, 1)
    assert shop.effects == [*"12"]


def test_many_events_in_one_transaction_are_one_step(shop: Shop) -> None:
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"1234567")
    await_ready(mine, 7)
    one = polled(mine)
    with shop.transaction() as connection:
        for event in (one, polled(mine)):
            shop.work(connection, event)
            mine.ack(event, within=connection)
    batch = mine.poll_batch(3, 60)
    with pytest.raises(ZeroDivisionError), shop.transaction() as connection:
        _fail(shop, connection, mine, batch)
    kill(mine)
    with subscriber(world, shop) as other:
        await_ready(other, 5)
        batch = other.poll_batch(3, 60)
        with shop.transaction() as connection:
            shop.work(connection, *batch)
            other.ack(batch, within=connection)
        handle(shop, other, 5 - len(batch))
    assert shop.effects == [*"1234567"]


def test_an_old_process_that_wakes_commits_nothing(shop: Shop) -> None:
    world = World()
    old = subscriber(world, shop)
    publish(world, *"123")
    handle(shop, old, 1)
    event = polled(old)
    new = subscriber(world, shop)
    with pytest.raises(Fenced, match="with generation 2; this one, of generation 1, commits nothing"):
        shop.commit(old, event)
    assert shop.effects == ["1"]
    handle(shop, new, 2)
    assert shop.effects == [*"123"]
    with pytest.raises(Fenced):
        old.poll(0)


HELD = {"id": "s", "domain": "d"}
ORDER = Position("d", "log", 0)


def stored(shop: Shop, generation: int, nonce: str = "n") -> Stored:
    """The store of a process by itself, which begins at the beginning of an order."""
    made = Stored(shop.store(), nonce=nonce, **HELD)
    made.begin(generation=generation, kafka=ORDER, handed_g=0, granted_g=100, anew=False)
    return made


def test_who_claims_late_takes_nothing_from_a_later_generation(shop: Shop) -> None:
    later = stored(shop, 2)
    with pytest.raises(Fenced, match="with generation 2; this one, of generation 1"):
        stored(shop, 1, "late")
    with pytest.raises(Fenced, match="with generation 2; this one, of generation 2"):
        stored(shop, 2, "odd")
    with shop.transaction() as connection:
        later.write(connection, 1, ORDER.at(1))
    assert later.committed() == 1
    stored(shop, 4, "another")
    with pytest.raises(Fenced, match="with generation 4; this one, of generation 3"):  # whose topics change meanwhile
        later.begin(generation=3, kafka=ORDER.at(1), handed_g=0, granted_g=100, anew=False)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("generation", [1, 3])
def test_of_two_that_begin_an_id_in_the_same_moment_the_later_goes_on(
    shop: Shop, generation: int, anew: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have found no row, and the other one, of generation 2, makes it."""
    begin, others = PositionStore.begin, list[Stored]()

    def other_begins(store: PositionStore, holder: Holder, position: Position) -> bool:
        monkeypatch.setattr(PositionStore, "begin", begin)
        others.append(stored(shop, 2, "other"))
        with shop.transaction() as connection:
            others[0].write(connection, 1, ORDER.at(200))  # farther than the order went when this one was granted
        return begin(store, holder, position)

    monkeypatch.setattr(PositionStore, "begin", other_begins)
    made = Stored(shop.store(), nonce="n", **HELD)

    def starts() -> None:
        made.begin(generation=generation, kafka=ORDER, handed_g=0, granted_g=300, anew=anew)

    if generation == 1:
        with pytest.raises(Fenced, match="with generation 2; this one, of generation 1"):
            starts()
        assert shop.rows() == [(str(ORDER.at(200)), 2)]
        return
    starts()
    assert made.done == (ORDER if anew else ORDER.at(200))
    assert shop.rows() == [(str(made.done), 3)]
    with shop.transaction() as connection, pytest.raises(Fenced):
        others[0].write(connection, 2, ORDER.at(201))


def test_who_was_fenced_is_told_so_however_far_the_order_went_since(shop: Shop) -> None:
    later = stored(shop, 2)
    with shop.transaction() as connection:
        later.write(connection, 1, ORDER.at(200))
    with pytest.raises(Fenced, match="with generation 2; this one, of generation 1"):
        stored(shop, 1, "late")


def test_a_process_of_another_cluster_takes_nothing_away_unless_it_begins_anew(shop: Shop) -> None:
    mine, other = stored(shop, 2), Stored(shop.store(), nonce="other", **HELD)
    elsewhere: dict[str, Any] = {"kafka": Position("d", "elsewhere", 9), "handed_g": 0, "granted_g": 100}
    with pytest.raises(StateError, match="of another incarnation of domain 'd'"):
        other.begin(generation=3, anew=False, **elsewhere)
    with shop.transaction() as connection:
        mine.write(connection, 1, ORDER.at(1))
    other.begin(generation=1, anew=True, **elsewhere)
    with pytest.raises(Fenced), shop.transaction() as connection:
        mine.write(connection, 2, ORDER.at(2))
    assert shop.rows() == [("d/elsewhere/9", 1)]


def test_kafka_is_told_nothing_of_a_transaction_that_is_open_or_came_to_nothing(shop: Shop) -> None:
    mine = stored(shop, 1)
    assert mine.covers(ORDER)
    assert mine.covers(ORDER.at(3))
    assert shop.rows() == [("d/log/3", 1)]

    def roll_back() -> None:
        with shop.transaction() as connection:
            mine.write(connection, 1, ORDER.at(4))
            mine.write(connection, 2, ORDER.at(5))
            assert mine.committed() == 0
            assert not mine.covers(ORDER.at(4))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        roll_back()
    assert mine.committed() == 0
    assert not mine.covers(ORDER.at(4))
    for sequence in (1, 2):
        with shop.transaction() as connection:
            mine.write(connection, sequence, ORDER.at(3 + sequence))
    assert mine.committed() == 2
    assert mine.done == ORDER.at(5)
    assert mine.covers(ORDER.at(6))


def test_it_goes_on_through_changes_and_ends_of_the_subscription(shop: Shop) -> None:
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"12")
    handle(shop, mine, 1)
    mine.subscribe(["a", "b"])
    world.publish("b", "3")
    handle(shop, mine, 2)
    mine.close()
    for _ in range(3):  # the position passes grants without an event
        subscriber(world, shop).close()
    mine = subscriber(world, shop)
    publish(world, "4")
    handle(shop, mine, 1)
    mine.unsubscribe(drain=False)
    mine.close()
    publish(world, "nobody's")
    world.tick(0)
    mine = subscriber(world, shop)
    publish(world, "5")
    handle(shop, mine, 1)
    assert shop.effects == [*"12345"]


def test_topics_do_not_change_while_a_transaction_is_open(shop: Shop) -> None:
    """The change claims the row, which that transaction has locked: in the same thread nobody would ever give way."""
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"12")
    one = polled(mine)
    asked = world.kafka.end(Partition("d.control", 0))
    with shop.transaction() as connection:
        shop.work(connection, one)
        mine.ack(one, within=connection)
        with pytest.raises(SettingsError, match="transaction is open"):
            mine.subscribe(["a", "b"])
    assert world.kafka.end(Partition("d.control", 0)) == asked
    two = polled(mine)
    with pytest.raises(ZeroDivisionError):
        shop.commit(mine, two, fails=True)
    with pytest.raises(SettingsError, match="or do its events again"):
        mine.subscribe(["a", "b"])
    shop.commit(mine, two)
    mine.subscribe(["a", "b"])
    world.publish("b", "3")
    handle(shop, mine, 1)
    assert shop.effects == [*"123"]


def test_what_is_given_up_is_given_up_though_its_transaction_came_to_nothing(shop: Shop) -> None:
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"12")
    handle(shop, mine, 1)
    with pytest.raises(ZeroDivisionError):
        shop.commit(mine, polled(mine), fails=True)
    mine.unsubscribe(drain=False)
    mine.close()
    with subscriber(world, shop) as mine:
        publish(world, "3")
        handle(shop, mine, 1)
    assert shop.effects == [*"13"]


def test_a_restored_database_is_refused_with_what_it_lacks(file: Shop, tmp_path: Path) -> None:
    world = World()
    mine = subscriber(world, file)
    publish(world, *"123")
    (one,) = handle(file, mine, 1)
    shutil.copy(file.path, tmp_path / "backup.db")
    _, three = handle(file, mine, 2)
    mine.close()
    shutil.copy(tmp_path / "backup.db", file.path)
    with pytest.raises(StateError) as told:
        subscriber(world, file)
    assert f"{one.position}, and it had been at {three.position}: the database is older" in str(told.value)
    assert "Reader" in told.value.remedy
    store = file.store()
    with file.transaction() as connection:  # as with a Reader
        file.work(connection, *[three._replace(value=value) for value in (b"2", b"3")])
        store.repair(connection, id="s", before=one.position, position=three.position)
    mine = subscriber(world, file)
    publish(world, "4")
    handle(file, mine, 1)
    assert file.effects == [*"1234"]
    with pytest.raises(NotCommitted), file.transaction() as connection:
        store.repair(connection, id="s", before=one.position, position=three.position)


def test_a_database_restored_while_kafka_knew_no_more_than_it_goes_on(file: Shop, tmp_path: Path) -> None:
    world = World()
    mine = subscriber(world, file, save_interval_s=1_000)
    publish(world, *"123")
    handle(file, mine, 1)
    shutil.copy(file.path, tmp_path / "backup.db")
    handle(file, mine, 2)
    kill(mine)
    shutil.copy(tmp_path / "backup.db", file.path)
    handle(file, subscriber(world, file), 2)
    assert file.effects == [*"123"]


def test_a_restart_with_nothing_owed_does_not_hide_that_a_database_was_restored(file: Shop, tmp_path: Path) -> None:
    """Kafka's position passes the grant, and the database's with it: an older copy is behind both."""
    world = World()
    subscriber(world, file).close()
    publish(world, "1")
    world.tick(0)
    mine = subscriber(world, file)
    shutil.copy(file.path, tmp_path / "backup.db")
    handle(file, mine, 1)
    mine.poll(5)
    mine.close()
    shutil.copy(tmp_path / "backup.db", file.path)
    with pytest.raises(StateError, match="the database is older"):
        subscriber(world, file)


def test_an_id_without_a_row_that_was_handed_events_is_refused_or_adopted(shop: Shop) -> None:
    world = World()
    mine = world.subscriber("a")
    publish(world, *"123")
    mine.ack(polled(mine))
    mine.close()
    with pytest.raises(StateError, match=r"has no position of subscriber 's', which may have been handed events"):
        subscriber(world, shop)
    with subscriber(world, shop, positions=shop.store(adopt=True)) as mine:
        handle(shop, mine, 2)
    assert shop.effects == [*"23"]


def half_done(shop: Shop) -> World:
    """One in which a process has done one of two events, and was killed."""
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"12")
    handle(shop, mine, 1)
    kill(mine)
    return world


def test_who_begins_anew_gives_up_what_was_owed_in_the_database_too(shop: Shop) -> None:
    world = half_done(shop)
    mine = subscriber(world, shop, start="now")
    publish(world, "3")
    handle(shop, mine, 1)
    assert shop.effects == [*"13"]


class Killed(BaseException):
    """As kill -9 does: nobody handles it."""


@pytest.mark.parametrize("has_row", [False, True])
@pytest.mark.parametrize("after", [False, True])
def test_who_is_killed_while_it_begins_anew_leaves_nothing_that_looks_done(
    shop: Shop, after: bool, has_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before or after its row is where it begins: nobody has had what was given up, and no receipt says so."""
    world = half_done(shop)
    if not has_row:
        shop.change(f"DELETE FROM {TABLE}")
    step = "reset" if has_row else "begin"
    original = getattr(PositionStore, step)

    def killed(store: PositionStore, holder: Holder, position: Position) -> bool:
        if after:
            original(store, holder, position)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(PositionStore, step, killed)
        with pytest.raises(Killed):
            subscriber(world, shop, start="now")
    with subscriber(world, shop) as mine:
        publish(world, "3")
        (three,) = handle(shop, mine, 1)
    assert shop.effects == [*"13"]
    assert [receipt.n for receipt in receipts_of(world.kafka, "s")] == [3]  # 1 was done, and untold when it was killed
    assert shop.rows()[0][0] == str(three.position)
    with subscriber(world, shop) as mine:  # which is not to begin anew any more
        publish(world, "4")
        handle(shop, mine, 1)
    assert shop.effects == [*"134"]


def test_who_is_taken_over_while_it_begins_anew_leaves_the_database_to_the_other(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has looked for positions before that of the beginning was there, and goes on with what is owed."""
    world = half_done(shop)
    save, claim = Positions.save, PositionStore.claim
    has_looked, may_claim = threading.Event(), threading.Event()
    others: list[Subscriber[Any]] = []
    other = threading.Thread(target=lambda: others.append(subscriber(world, shop)))

    def overtaken(positions: Positions, *given: Any, anew: bool = False, **named: Any) -> None:
        if anew:
            other.start()
            assert has_looked.wait(BOUND_S)
        save(positions, *given, anew=anew, **named)

    def claims(store: PositionStore, holder: Holder, order: Position) -> Any:
        has_looked.set()
        assert may_claim.wait(BOUND_S)
        return claim(store, holder, order)

    monkeypatch.setattr(Positions, "save", overtaken)
    monkeypatch.setattr(PositionStore, "claim", claims)
    with pytest.raises(Fenced):
        subscriber(world, shop, start="now")
    may_claim.set()
    other.join(BOUND_S)
    handle(shop, others[0], 1)
    others[0].close()
    assert shop.effects == [*"12"]
    assert [receipt.n for receipt in receipts_of(world.kafka, "s")] == [1, 2]


def test_a_position_of_a_domain_that_was_begun_anew_or_of_another_is_refused(shop: Shop) -> None:
    world = World()
    with subscriber(world, shop) as mine:
        publish(world, "1")
        handle(shop, mine, 1)
    ((place, _),) = shop.rows()
    for other in (place.replace("/id", "/other"), place.replace("d/", "e/"), f"{place.rpartition('/')[0]}/99"):
        shop.change(f"UPDATE {TABLE} SET place = :other", other=other)
        with pytest.raises(StateError, match=r"does not fit|order ends at g") as told:
            subscriber(world, shop)
        assert 'start="now"' in told.value.remedy
    shop.change(f"UPDATE {TABLE} SET place = 'x'")
    with pytest.raises(SettingsError, match="is no position"):
        subscriber(world, shop)


def test_a_store_that_is_locked_or_fails_says_so_and_nothing_is_torn(file: Shop) -> None:
    world = World()
    mine = subscriber(world, file)
    publish(world, *"12")
    event = polled(mine)
    with closing(sqlite3.connect(file.path)) as other, closing(sqlite3.connect(file.path, timeout=0)) as own:
        other.execute("BEGIN IMMEDIATE")
        connection = own if file.kind == "sqlite" else None
        if connection is not None:
            with pytest.raises(StoreUnavailable, match=r"cannot take a position: database is locked"):
                mine.ack(event, within=connection)
        other.execute("DROP TABLE totalorder_positions")
        other.commit()
    with pytest.raises(StoreUnavailable, match="no such table") as told, file.transaction() as connection:
        mine.ack(event, within=connection)
    assert "another database" in told.value.remedy
    assert mine.poll(60) is not None


def test_who_writes_to_the_file_for_a_moment_stops_no_change_of_topics(
    file: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is claimed, and then moved on: another service's transaction of the same file comes between."""
    world = World()
    mine = subscriber(world, file)
    publish(world, "1")
    handle(file, mine, 1)
    world.publish("b")
    assert mine.poll(1) is None
    claim, move = PositionStore.claim, PositionStore.move
    is_moved, waits = threading.Event(), list[bool]()

    def claims(*given: Any) -> Any:
        row = claim(*given)
        other.execute("BEGIN IMMEDIATE")
        return row

    def moves(*given: Any, **named: Any) -> None:
        waits.append(named["waits"])  # the other may have committed by the time it asks
        is_moved.set()
        move(*given, **named)

    def commit() -> None:
        assert is_moved.wait(BOUND_S)
        other.commit()

    monkeypatch.setattr(PositionStore, "claim", claims)
    monkeypatch.setattr(PositionStore, "move", moves)
    with closing(sqlite3.connect(file.path, check_same_thread=False)) as other:
        thread = threading.Thread(target=commit)
        thread.start()
        mine.subscribe(["a", "c"])
        thread.join(BOUND_S)
    assert waits[0]
    world.publish("c", "2")
    handle(file, mine, 1)
    assert file.effects == [*"12"]


def test_a_row_that_is_locked_is_waited_for_with_a_bound(
    server: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process of the id that is stopped amid a transaction: who takes over must not stand still for ever."""
    monkeypatch.setattr(sqlalchemy_positions, "_WAIT_S", 0.2)
    shop = Shop(tmp_path, "postgresql", server())
    held = stored(shop, 1)
    with shop.transaction() as connection:
        held.write(connection, 1, ORDER.at(1))
        with pytest.raises(StoreUnavailable, match=r"cannot be claimed: .*lock timeout") as told:
            stored(shop, 2, "later")
    assert "One that is locked has another transaction open" in told.value.remedy
    stored(shop, 2, "later")
    assert shop.rows() == [("d/log/1", 2)]


def test_two_that_make_the_table_at_once_both_begin(server: Callable[[], str], tmp_path: Path) -> None:
    shop = Shop(tmp_path, "postgresql", server())
    begun: list[Stored] = []
    thread = threading.Thread(target=lambda: begun.append(stored(shop, 1)))
    with shop.engine.begin() as connection:
        sqlalchemy_positions.METADATA.create_all(connection)
        thread.start()
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        wait_until(lambda: shop._found(waiting)[0][0] == 1, "the other one waits for this one's table")
    thread.join(BOUND_S)
    assert begun[0].done == ORDER


def test_an_id_that_has_a_store_is_not_opened_without_it(shop: Shop) -> None:
    """As by a colleague who looks on: what is committed would come again, and Kafka's position pass the store's."""
    world = World()
    first = subscriber(world, shop, save_interval_s=1_000)
    publish(world, *"123")
    handle(shop, first, 2)
    kill(first)
    with pytest.raises(SettingsError, match=r"keeps its position in a store .*Give the store; or another id") as told:
        world.subscriber("a")
    assert 'start="now"' in told.value.remedy
    with subscriber(world, shop) as again:
        assert [event.value for event in handle(shop, again, 1)] == [b"3"]
    ((place, _),) = shop.rows()
    publish(world, "4")
    with world.subscriber("a", start=Position.parse(place)) as without:
        event = polled(without)
        assert event.value == b"4"
        without.ack(event)
    with world.subscriber("a") as without:
        assert without.poll(20) is None


def test_a_connection_to_another_file_is_told_as_that(file: Shop, tmp_path: Path) -> None:
    """A relative path, and a process that was started elsewhere."""
    world = World()
    mine = subscriber(world, file)
    publish(world, "1")
    event = polled(mine)
    other = Shop(tmp_path / "other.db", file.kind)
    with pytest.raises(StoreUnavailable, match="the connection is to another database"):
        other.commit(mine, event)
    assert other.effects == []
    file.commit(mine, event)
    assert file.effects == ["1"]


def test_a_row_that_is_gone_ends_the_subscriber(shop: Shop) -> None:
    world = World()
    mine = subscriber(world, shop)
    publish(world, "1")
    event = polled(mine)
    shop.change(f"DELETE FROM {TABLE}")
    with pytest.raises(StateError, match="is gone from its store"), shop.transaction() as connection:
        mine.ack(event, within=connection)
    with pytest.raises(StateError):
        mine.poll(0)


def test_losses_take_their_place_like_events(shop: Shop) -> None:
    world = World()
    mine = subscriber(world, shop, on_lost="skip")
    publish(world, *"1234")
    world.tick(0)
    world.kafka.trim(Partition("a", 0), 1)
    handle(shop, mine, 2)
    kill(mine)
    events = handle(shop, subscriber(world, shop, on_lost="skip"), 2)
    assert sorted(shop.effects) == sorted([*"134", "lost"]) or sorted(shop.effects) == sorted([*"124", "lost"])
    assert not any(isinstance(event, Lost) for event in events[1:])


def test_what_is_done_and_lost_since_stops_nobody(shop: Shop) -> None:
    """Kafka's position follows the store's, so a process may be owed by the one what the other says is done."""
    world = World()
    mine = subscriber(world, shop)
    publish(world, *"1234")
    handle(shop, mine, 2)
    kill(mine)
    for number in range(2):
        world.kafka.trim(Partition("a", number), 1)
    handle(shop, subscriber(world, shop), 2)
    assert shop.effects == list("1234")


def test_what_is_called_wrongly_is_told(file: Shop, tmp_path: Path) -> None:
    world = World()
    plain, mine = world.subscriber("a", id="plain"), subscriber(world, file)
    publish(world, "1")
    event, other = polled(mine), polled(plain)
    wrong: list[tuple[Subscriber[Any], Any, Any, str]] = [
        (mine, event, None, "ack.event, within=connection"),
        (mine, event, "x", "is no sqlite3.Connection|is no sqlalchemy.Connection"),
        (plain, other, "x", "Give it a store"),
    ]
    for which, what, within, said in wrong:
        with pytest.raises(SettingsError, match=said):
            which.ack(what, within=within)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as connection:
        if file.kind == "sqlite":
            with pytest.raises(SettingsError, match="commits each statement"):
                mine.ack(event, within=connection)
            connection.execute("BEGIN")
            mine.ack(event, within=connection)
            connection.execute("ROLLBACK")
    handled: Callable[[], AbstractContextManager[Any]] = file.transaction
    with handled() as connection:
        mine.ack(event, within=connection)
    with pytest.raises(SettingsError, match="is no file"):
        SqlitePositions(":memory:")
    with pytest.raises(SettingsError, match="in memory"):
        SqlAlchemyPositions(sqlalchemy.create_engine("sqlite://"))
    with pytest.raises(SettingsError, match=r"is no sqlalchemy\.Engine"):
        SqlAlchemyPositions("sqlite://")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [{"isolation_level": "AUTOCOMMIT"}, {"connect_args": {"isolation_level": None}}],
)
def test_an_engine_that_commits_each_statement_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    """What is rolled back would have its position moved on all the same."""
    world, path = World(), tmp_path / "shop.db"
    engine = sqlalchemy.create_engine(f"sqlite:///{path}", **settings)
    mine = world.subscriber("a", positions=SqlAlchemyPositions(engine))
    publish(world, "a1")
    first = polled(mine)
    with engine.begin() as connection, pytest.raises(SettingsError, match="commits each statement"):
        mine.ack(first, within=connection)
    mine.close()
    assert polled(world.subscriber("a", positions=SqlAlchemyPositions(engine))).value == b"a1"


def test_an_engine_of_one_connection_is_refused(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/shop.db", poolclass=sqlalchemy.StaticPool)
    with pytest.raises(SettingsError, match="one connection for all"):
        SqlAlchemyPositions(engine)


def test_an_application_may_have_its_rows_made_into_anything(tmp_path: Path) -> None:
    world, shop = World(), Shop(tmp_path / "shop.db", "sqlite")
    mine = subscriber(world, shop)
    publish(world, "a1", "a2")
    first = polled(mine)
    with closing(sqlite3.connect(shop.path)) as connection:
        connection.row_factory = lambda cursor, row: dict(
            zip([name for name, *_ in cursor.description], row, strict=True)
        )
        with connection:
            mine.ack(first, within=connection)
        with pytest.raises(AlreadyDone), connection:
            mine.ack(first, within=connection)
    assert polled(mine).value == b"a2"


def test_handlers_are_not_run_where_each_event_needs_a_transaction(shop: Shop) -> None:
    """They would have their effects before the acknowledgement fails."""
    world = World()
    mine = subscriber(world, shop)
    publish(world, "a1")
    given: list[Event | Lost] = []
    with pytest.raises(SettingsError, match="outside of transactions"):
        mine.run(given.append)
    assert given == []
    handle(shop, mine, 1)
    assert shop.effects == ["a1"]


def test_the_pairwise_mode_has_no_positions(shop: Shop) -> None:
    with pytest.raises(Error, match="min_subscriptions = 2 has no positions"):
        subscriber(World(min_subscriptions=2), shop)
    assert Position.parse("d/x/1").g == 1
