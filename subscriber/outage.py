"""How long no broker has answered, or none has taken what is written."""

import logging
import time
from typing import NamedTuple

from totalorder.errors import BrokerUnavailable

_LOG = logging.getLogger("totalorder.subscriber")
_ASK_AFTER_S = 5.0


class Words(NamedTuple):
    """What is told of brokers: that none `does` so, or has `done` so, and what is to be looked at."""

    does: str
    done: str
    check: str


ANSWERS = Words("answers", "answered", "that it runs")
TAKES = Words("takes records", "taken a record", "the topic's leader and its min.insync.replicas")


class Outage:
    """Counts from the first question that was asked in vain: an application that does not poll for long is no outage.

    An absent broker looks like an idle one, so somebody has to ask now and then. While nobody does, nobody knows: such
    time counts no longer than it takes until the broker should have been asked again.
    """

    def __init__(self, servers: str, bearable_s: float, words: Words = ANSWERS) -> None:
        self._servers, self._bearable_s, self._words = servers, bearable_s, words
        self._ask_after_s = min(_ASK_AFTER_S, bearable_s / 4)
        self._unasked_s = 2 * self._ask_after_s
        self._since: float | None = None
        self._reason: Exception | str | None = None
        self._told_at = time.monotonic()
        """When something was heard, or asked in vain, for the last time."""

    @property
    def wants_question(self) -> bool:
        """Whether nothing was heard for so long that the broker should be asked something."""
        return time.monotonic() - self._told_at > self._ask_after_s

    @property
    def lasts_s(self) -> float:
        """For how long there has been silence, as far as that is known; 0 while there is none."""
        known_to = min(time.monotonic(), self._told_at + self._unasked_s)
        return 0.0 if self._since is None else known_to - self._since

    @property
    def left_s(self) -> float:
        """How much longer silence is borne; less than 0 when that is over."""
        return self._bearable_s - self.lasts_s

    def heard(self) -> None:
        """The broker answered."""
        lasted_s, self._told_at = self.lasts_s, time.monotonic()
        if self._since is not None:
            _LOG.warning("the Kafka broker at %s %s again, after %.0f s", self._servers, self._words.does, lasted_s)
            self._since = None

    def missed(self, asked_at: float, reason: Exception | str | None) -> None:
        """What was asked then was not answered. Raises BrokerUnavailable when that was borne for long enough."""
        unknown_s = max(0.0, asked_at - self._told_at - self._unasked_s)
        self._told_at, self._reason = time.monotonic(), reason
        if self._since is not None:
            self._since += unknown_s
        else:
            self._since = asked_at
            if self.left_s > 0:  # a question may have taken all of that
                said = "no Kafka broker at %s %s; it is waited for, %.0f s"
                _LOG.warning(said, self._servers, self._words.does, self.left_s)
        self.raise_if_over()

    def raise_if_over(self) -> None:
        """Raises BrokerUnavailable when silence was borne for long enough, and somebody has asked just now."""
        if self._since is not None and self.left_s <= 0 and not self.wants_question:
            reason = f" ({self._reason})" if self._reason is not None else ""
            _, done, check = self._words
            raise BrokerUnavailable(
                f"no Kafka broker at {self._servers} has {done} for {self.lasts_s:.0f} s{reason}",
                remedy=f"Check {check}; a new subscriber goes on after what was acknowledged",
            )
