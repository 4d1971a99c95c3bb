"""The subscriber library: events of any topics, handed out in the one order that all subscribers share.

    with Subscriber(["orders", "payments"], id="billing", domain="shop") as subscriber:
        for event in subscriber:
            handle(event)
            subscriber.ack(event)

`Subscriber` is the application's side, `session` the work behind it, `transport` the seam to Kafka; the order itself is
decided in totalorder.subscriber.delivery. Everything runs in the caller's thread; `AsyncSubscriber` is the same for
asyncio, with a thread of its own as the caller.
"""

from totalorder.subscriber import payloads
from totalorder.subscriber.async_subscriber import AsyncSubscriber
from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.event import Event, Lost, TypedEvent
from totalorder.subscriber.handling import Retry
from totalorder.subscriber.metrics import Metrics
from totalorder.subscriber.position import Position
from totalorder.subscriber.position_store import PositionStore
from totalorder.subscriber.reader import Reader
from totalorder.subscriber.sqlite_positions import SqlitePositions
from totalorder.subscriber.subscriber import Subscriber
from totalorder.subscriber.watch import Changed, Granted, Hold, Stalled, Wait

__all__ = [
    "AsyncSubscriber",
    "Changed",
    "Event",
    "EventBatch",
    "Granted",
    "Hold",
    "Lost",
    "Metrics",
    "Position",
    "PositionStore",
    "Reader",
    "Retry",
    "SqlitePositions",
    "Stalled",
    "Subscriber",
    "TypedEvent",
    "Wait",
    "payloads",
]
