"""What `repr` says of a Subscriber, an AsyncSubscriber and a Reader, in any state."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from sim_small import World, take

from totalorder.errors import Fenced, SettingsError
from totalorder.subscriber import AsyncSubscriber, Reader, Subscriber


def test_a_subscriber_tells_what_it_is_and_how_far() -> None:
    world = World()
    subscriber = world.subscriber("ab", control_key=f"s:{'7a' * 32}")
    assert repr(subscriber) == "<Subscriber 's' of domain 'd', topics a, b: at g 1>"
    world.publish("a")
    take(subscriber, 1)
    subscriber.pause()
    assert repr(subscriber) == "<Subscriber 's' of domain 'd', topics a, b: at g 2, paused>"
    subscriber.resume()
    subscriber.stop()
    assert repr(subscriber) == "<Subscriber 's' of domain 'd', topics a, b: at g 2, stopped>"
    subscriber.close()
    assert repr(subscriber) == "<Subscriber 's' of domain 'd', topics a, b: at g 2, stopped, closed>"


def test_a_subscriber_tells_why_it_is_of_no_more_use() -> None:
    world = World()
    ends, old, torn = world.subscriber("a", "e"), world.subscriber("a"), world.subscriber("a", "t")
    ends.unsubscribe(drain=False)
    assert repr(ends).endswith(", finished>")
    world.subscriber("a")
    with pytest.raises(Fenced):
        old.poll(5)
    assert repr(old).endswith(", ended by Fenced>")

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    torn._transport.on_poll = interrupt  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        torn.poll(5)
    assert repr(torn).endswith(", ended by Interrupted>")
    torn.close()
    assert repr(torn).endswith(", ended by Interrupted, closed>")


def test_an_async_subscriber_tells_the_like() -> None:
    world = World()

    async def main() -> None:
        subscriber = world.async_subscriber("ab")
        assert repr(subscriber) == "<AsyncSubscriber: not started>"
        async with subscriber:
            assert repr(subscriber) == "<AsyncSubscriber 's' of domain 'd', topics a, b: at g 1>"
            subscriber.stop()
        assert repr(subscriber) == "<AsyncSubscriber 's' of domain 'd', topics a, b: at g 1, stopped, closed>"

    asyncio.run(main())


def test_a_reader_tells_what_it_reads() -> None:
    world = World()
    world.publish("a")
    world.tick(0)
    settings: dict[str, Any] = {"domain": "d", "clock": lambda: world.now, "until": "now"}
    with Reader[Any](["b", "a"], transport=world.transport(), **settings) as reader:
        assert repr(reader) == "<Reader of domain 'd', topics a, b: at g 0>"
        assert [event.topic for event in reader] == ["a"]
        assert repr(reader) == "<Reader of domain 'd', topics a, b: at g 1, finished>"
        reader.stop()
    assert repr(reader) == "<Reader of domain 'd', topics a, b: at g 1, finished, stopped, closed>"
    with Reader[Any](pattern="[ab]", transport=world.transport(), **settings) as reader:
        assert repr(reader) == "<Reader of domain 'd', pattern '[ab]': at g 0>"


@pytest.mark.parametrize("kind", [Subscriber, AsyncSubscriber, Reader])
def test_what_was_never_made_can_be_shown(kind: Any) -> None:
    """As a debugger does it with what stands in a traceback."""
    made: Any = object.__new__(kind)
    assert repr(made).startswith(f"<{kind.__name__}: not ")
    with suppress(SettingsError, TypeError):
        made.__init__([""], domain="d", id="s")
    assert repr(made).startswith(f"<{kind.__name__}: not ")
