"""A handler that is run by a Subscriber, and by an AsyncSubscriber, over Kafka in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

from sim_small import World

from totalorder.errors import Error
from totalorder.subscriber import Event

Handle = Callable[[Any, Any], None]
"""What an application does with an event: it has the subscriber, to stop it."""
BOUND_S = 60


class Face:
    """Runs a handler within a subscriber's life."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.left: BaseException | None = None
        """What the subscriber says behind the end of run()."""

    def run(self, world: World, handle: Handle, *, settings: dict[str, Any] | None = None, **options: Any) -> None:
        if self.name == "run":
            with world.subscriber("abc", **settings or {}) as subscriber:
                try:
                    subscriber.run(lambda event: handle(subscriber, event), **options)
                finally:
                    try:
                        subscriber.poll(0)
                    except Error as error:
                        self.left = error
        else:
            asyncio.run(asyncio.wait_for(self._run(world, handle, settings or {}, options), BOUND_S))

    async def _run(self, world: World, handle: Handle, settings: dict[str, Any], options: dict[str, Any]) -> None:
        async with world.async_subscriber("abc", **settings) as subscriber:

            async def handler(event: Event) -> None:
                await asyncio.sleep(0)
                handle(subscriber, event)

            try:
                await subscriber.run(handler, **options)
            finally:
                try:
                    await subscriber.poll(0)
                except Error as error:
                    self.left = error


def world_with(count: int, **domain: object) -> World:
    world = World(**domain)
    world.subscriber("abc").close()
    for at in range(count):
        world.publish("abc"[at % 3])
    return world


def rest(world: World) -> list[Event]:
    """What the next subscriber of the id is given."""
    events: list[Event] = []
    with world.subscriber("abc") as subscriber:
        while (event := subscriber.poll(20)) is not None:
            events.append(event)
    return events
