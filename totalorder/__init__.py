"""Total notification ordering on Kafka: any two subscribers deliver their common events in one order.

This module is the door: the public names, loaded at first use, so that `import totalorder` costs nothing and needs
neither Spark nor a Kafka client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from totalorder.broker import LocalBroker as LocalBroker
    from totalorder.errors import (
        AlreadyDone as AlreadyDone,
        BrokerUnavailable as BrokerUnavailable,
        Contradiction as Contradiction,
        Defect as Defect,
        EnvironmentProblem as EnvironmentProblem,
        Error as Error,
        EventsLost as EventsLost,
        Fenced as Fenced,
        HandlerFailed as HandlerFailed,
        LimitExceeded as LimitExceeded,
        NotCommitted as NotCommitted,
        PayloadError as PayloadError,
        PreflightFailed as PreflightFailed,
        Rejected as Rejected,
        SequencerUnavailable as SequencerUnavailable,
        SettingsError as SettingsError,
        StateError as StateError,
        StoreUnavailable as StoreUnavailable,
        SubscriptionEnded as SubscriptionEnded,
        WireError as WireError,
    )
    from totalorder.subscriber import (
        AsyncSubscriber as AsyncSubscriber,
        Event as Event,
        EventBatch as EventBatch,
        Lost as Lost,
        Position as Position,
        Reader as Reader,
        Retry as Retry,
        SqlitePositions as SqlitePositions,
        Subscriber as Subscriber,
        TypedEvent as TypedEvent,
        payloads as payloads,
    )
    from totalorder.subscriber.sqlalchemy_positions import SqlAlchemyPositions as SqlAlchemyPositions

__version__ = "0.1.0"

_ERRORS = (
    "AlreadyDone",
    "BrokerUnavailable",
    "Contradiction",
    "Defect",
    "EnvironmentProblem",
    "Error",
    "EventsLost",
    "Fenced",
    "HandlerFailed",
    "LimitExceeded",
    "NotCommitted",
    "PayloadError",
    "PreflightFailed",
    "Rejected",
    "SequencerUnavailable",
    "SettingsError",
    "StateError",
    "StoreUnavailable",
    "SubscriptionEnded",
    "WireError",
)
_HOMES = {
    "AsyncSubscriber": "totalorder.subscriber",
    "Event": "totalorder.subscriber",
    "EventBatch": "totalorder.subscriber",
    "LocalBroker": "totalorder.broker",
    "Lost": "totalorder.subscriber",
    "Position": "totalorder.subscriber",
    "Retry": "totalorder.subscriber",
    "SqlAlchemyPositions": "totalorder.subscriber.sqlalchemy_positions",
    "SqlitePositions": "totalorder.subscriber",
    "Reader": "totalorder.subscriber",
    "Subscriber": "totalorder.subscriber",
    "TypedEvent": "totalorder.subscriber",
    "payloads": "totalorder.subscriber",
} | dict.fromkeys(_ERRORS, "totalorder.errors")

_OF_EXTRAS = {"SqlAlchemyPositions"}
"""What `from totalorder import *` must not ask for."""

__all__ = ["__version__", *sorted(_HOMES.keys() - _OF_EXTRAS)]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'totalorder' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return ["__version__", *sorted(_HOMES)]
