"""Positions: what an application stores beside its data."""

import pickle

import pytest
from hypothesis import given, strategies as st
from sim_small import World, take

from totalorder.errors import Error, SettingsError
from totalorder.sequencer.wire.limits import MAX_COUNT
from totalorder.subscriber import Position
from totalorder.subscriber.subscriber import Subscriber

LOG = "0b428b26-2b39-414d-8c3a-ea9f07d8f88a"
positions = st.builds(
    Position,
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_-]{0,9}(\.[A-Za-z0-9_-]{1,5}){0,2}", fullmatch=True),
    st.text("abcXYZ019_-", min_size=1, max_size=22),
    st.integers(0, MAX_COUNT),
)


@given(positions)
def test_a_position_is_read_as_it_was_printed(position: Position) -> None:
    assert Position.parse(str(position)) == position
    assert pickle.loads(pickle.dumps(position)) == position


@pytest.mark.parametrize(
    "text",
    ["", "shop", "shop/12", f"shop/{LOG}/", f"shop/{LOG}/-1", f"shop/{LOG}/01", f"shop/{LOG}/1 ", f"shop/{LOG}/1\n",
     f"shop/{LOG}/٣", f"shop//{LOG}/1", f"/{LOG}/1", f"shop/{LOG}/{MAX_COUNT + 1}", f"shop/{LOG}/1/2", f"sh p/{LOG}/1",
     None, 12, b"shop/x/1"],
)  # fmt: skip
def test_what_was_not_printed_by_a_position_is_refused(text: object) -> None:
    with pytest.raises(SettingsError):
        Position.parse(text)  # type: ignore[arg-type]


def test_positions_of_one_order_compare_by_g() -> None:
    nine, ten = Position("shop", LOG, 9), Position("shop", LOG, 10)
    assert [nine < ten, nine <= ten, nine > ten, nine >= ten, nine <= nine, nine < nine] == [1, 1, 0, 0, 1, 0]
    assert sorted([ten, nine]) == [nine, ten]
    assert len({nine, Position.parse(f"shop/{LOG}/9")}) == 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (Position("store", LOG, 1), "is one of domain 'store', and not of 'shop'"),
        (Position("shop", "other", 1), "is of another incarnation of domain 'shop'"),
    ],
)
def test_positions_of_two_orders_do_not_compare(other: Position, why: str) -> None:
    mine = Position("shop", LOG, 1)
    assert mine != other
    for compare in ("__lt__", "__le__", "__gt__", "__ge__"):
        with pytest.raises(SettingsError, match=why):
            getattr(mine, compare)(other)
    with pytest.raises(TypeError):
        mine < 5  # noqa: B015


def test_an_event_and_a_batch_say_where_to_go_on() -> None:
    world = World()
    subscriber = world.subscriber("ab")
    for _ in range(3):
        world.publish("a")
        world.publish("b")
    first, second = take(subscriber, 2)
    log = world.kafka.ids["d.stamps"]
    assert first.position == Position("d", log, first.g) < second.position
    assert subscriber.position == second.position
    batch = subscriber.poll_batch(10, 20)
    assert batch.position == list(batch)[-1].position == Position("d", log, int(batch.g[-1]))
    with pytest.raises(Error, match="an empty batch"):
        subscriber.poll_batch(10).position  # noqa: B018


def test_where_subscribers_do_not_follow_one_order_there_is_no_position() -> None:
    world = World(min_subscriptions=2)
    subscriber: Subscriber = world.subscriber("ab")
    world.publish("a")
    (event,) = take(subscriber, 1)
    for wanted in (event, subscriber):
        with pytest.raises(Error, match="min_subscriptions = 2 has no positions"):
            wanted.position  # noqa: B018
