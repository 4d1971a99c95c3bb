"""Every error that totalorder raises on purpose.

Each says what happened, where, and what to do about it; `totalorder.Error` is the root, so one `except` holds them all.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from totalorder.sequencer.wire.stamps import Source


class Error(Exception):
    """Root of all errors of this package.

    `what` names the thing and the reason, `remedy` says what the reader can do; `str()` gives both.
    """

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}. {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy


class SettingsError(Error):
    """A setting is unknown, missing, of the wrong type or out of its range."""


class EnvironmentProblem(Error):
    """Java, a jar or a package is missing, or of a version that does not fit."""


class BrokerUnavailable(Error):
    """No Kafka broker answered at the given address within the time allowed."""


class PreflightFailed(Error):
    """The topics, the checkpoint or the broker are in a condition that would break the promise; lists every problem."""


class StateError(Error):
    """Stored state (checkpoint, state bytes) is damaged, of an unknown version, or belongs to something else."""


class TopicChanged(StateError):
    """A Kafka topic was deleted, or deleted and created again, before all that was planned of it was read."""


class WireError(Error):
    """A record of the domain's own topics does not have the form that it must have."""


class Contradiction(Error):
    """Two things that must agree do not (two stamps for one event, two digests of one batch, an order run backwards).

    The subscriber stops before anything contradictory reaches the application.
    """


class Defect(Error):
    """An invariant of totalorder itself does not hold, a defect of it: it stops, and nothing is delivered that may be
    wrong. The cause has the place; the message says how to go on, and what to report.
    """


class Rejected(Error):
    """The sequencer refused a control record; the message carries its reason."""


class Fenced(Error):
    """Another process took over this subscriber id; this, the older one, has stopped."""


class SubscriptionEnded(Error):
    """The subscription is over (unsubscribed elsewhere, or its lease expired)."""


class SequencerUnavailable(Error):
    """The sequencer job did not answer a control record within the time allowed."""


class EventsLost(Error):
    """Records that are still needed were removed from Kafka (retention, deletion) before they were read.

    `gone` says for each partition (topic, topic id, number) that can be read on from which offset; what lay before is
    lost.
    """

    def __init__(self, what: str, *, remedy: str = "", gone: "Mapping[Source, int] | None" = None) -> None:
        super().__init__(what, remedy=remedy)
        self.gone = dict(gone or {})


class BatchesMissing(EventsLost):
    """In a stamps partition, of all batches before `batch` some are not there, and it is."""

    def __init__(self, what: str, *, remedy: str, batch: int) -> None:
        super().__init__(what, remedy=remedy)
        self.batch = batch


class HandlerFailed(Error):
    """The handler that was given to `run` failed on an event, which is not acknowledged; the cause has the reason."""


class StoreUnavailable(Error):
    """The database that keeps a subscriber's position is locked, cannot be reached, or refuses what it is asked."""


class AlreadyDone(Error):
    """An event was acknowledged whose effects and position are committed already: roll back what was done again."""


class NotCommitted(Error):
    """An event was acknowledged behind one whose transaction came to nothing: the effects of that one are missing."""


class PayloadError(Error):
    """An event's value is not what the deserializer reads. The event itself is there, with its bytes."""


class LimitExceeded(Error):
    """Something is larger, or there are more of it, than totalorder is willing to carry."""
