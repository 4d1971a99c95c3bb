"""The subscriber library: events of any topics, handed out in the one order that all subscribers share.

    with Subscriber(["orders", "payments"], id="billing", domain="shop") as subscriber:
        for event in subscriber:
            handle(event)
            subscriber.ack(event)

`Subscriber` is the application's side, `session` the work behind it, `transport` the seam to Kafka; the order itself is
decided in totalorder.subscriber.delivery. Everything runs in the caller's thread.
"""

from totalorder.subscriber.batch import EventBatch
from totalorder.subscriber.event import Event, Lost
from totalorder.subscriber.position import Position
from totalorder.subscriber.reader import Reader
from totalorder.subscriber.subscriber import Subscriber

__all__ = ["Event", "EventBatch", "Lost", "Position", "Reader", "Subscriber"]
