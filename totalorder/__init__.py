"""Total notification ordering on Kafka: any two subscribers deliver their common events in one order.

This module is the door: the public names, loaded at first use, so that `import totalorder` costs nothing and needs
neither Spark nor a Kafka client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from totalorder.broker import LocalBroker as LocalBroker
    from totalorder.errors import (
        BrokerUnavailable as BrokerUnavailable,
        Contradiction as Contradiction,
        EnvironmentProblem as EnvironmentProblem,
        Error as Error,
        EventsLost as EventsLost,
        Fenced as Fenced,
        LimitExceeded as LimitExceeded,
        PreflightFailed as PreflightFailed,
        Rejected as Rejected,
        SequencerUnavailable as SequencerUnavailable,
        SettingsError as SettingsError,
        StateError as StateError,
        SubscriptionEnded as SubscriptionEnded,
        WireError as WireError,
    )
    from totalorder.subscriber import (
        Event as Event,
        EventBatch as EventBatch,
        Lost as Lost,
        Position as Position,
        Reader as Reader,
        Subscriber as Subscriber,
    )

__version__ = "0.1.0"

_ERRORS = (
    "BrokerUnavailable",
    "Contradiction",
    "EnvironmentProblem",
    "Error",
    "EventsLost",
    "Fenced",
    "LimitExceeded",
    "PreflightFailed",
    "Rejected",
    "SequencerUnavailable",
    "SettingsError",
    "StateError",
    "SubscriptionEnded",
    "WireError",
)
_HOMES = {
    "Event": "totalorder.subscriber",
    "EventBatch": "totalorder.subscriber",
    "LocalBroker": "totalorder.broker",
    "Lost": "totalorder.subscriber",
    "Position": "totalorder.subscriber",
    "Reader": "totalorder.subscriber",
    "Subscriber": "totalorder.subscriber",
} | dict.fromkeys(_ERRORS, "totalorder.errors")

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'totalorder' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
