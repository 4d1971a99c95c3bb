"""What is said where Kafka has something no longer, and nobody was told to go on without it."""

from totalorder.errors import EventsLost
from totalorder.subscriber.delivery.effects import DeliverLost
from totalorder.subscriber.delivery.events import GONE, place

GO_ON_WITHOUT = (
    'on_lost="skip" (--on-lost skip) goes on, and tells in its place what is lost, unless min_subscriptions = 2; '
    'start="now" (--start now) gives up all that is owed'
)
"""A Subscriber."""
READ_ON_WITHOUT = (
    'on_lost="skip" (--on-lost skip) goes on, and tells in its place what is lost; start="earliest" begins behind it'
)
"""A Reader."""


def not_skipped(loss: DeliverLost, go_on: str) -> EventsLost:
    """The error that stands in the place of a loss; `go_on` says how to go on without it."""
    source, remedy = loss.source, "Raise the retention of the topic"
    what = (
        f"{place(source, loss.begin)} to {loss.end - 1} were removed from Kafka before they were stamped (g {loss.g})"
    )
    if loss.n:
        why = f"reading went on at {loss.found}"
        if loss.found == GONE:
            why = f"the Kafka topic {source.topic} with id {source.topic_id} was deleted, or created again"
            remedy = "Delete a topic once all subscribers have what was stamped of it"
        stamped = f"{place(source, loss.begin)} of topic {loss.topic!r} is stamped (g {loss.g}, n {loss.n})"
        what = f"{stamped}, but Kafka has it no longer: {why}"
    return EventsLost(what, remedy=f"{remedy}. {go_on}")
