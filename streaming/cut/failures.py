"""What librdkafka says when something is amiss, in totalorder's terms."""

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError

from totalorder.errors import BrokerUnavailable, Error, SettingsError, StateError
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.records import OnQuiet, removed
from totalorder.words import few

_END = int(KafkaError._PARTITION_EOF)
_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
_REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
_ALL_DOWN = int(KafkaError._ALL_BROKERS_DOWN)
_DAMAGED = {
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError.MSG_SIZE_TOO_LARGE,
}
"""After these librdkafka goes on behind what it could not read, and would leave a gap."""
_NAMED = 5
QUIET_S = 0.5
"""For so long nothing has come before `Silence` asks why."""


class Silence:
    """How long nothing has come of what is missing; it begins when it is made."""

    def __init__(self, plan: ReadPlan, on_quiet: OnQuiet) -> None:
        self._bound_s, self._on_quiet = plan.silence_s, on_quiet
        self.begin()

    def begin(self) -> None:
        """Something came."""
        now_s = time.monotonic()
        self._deadline_s, self._ask_s = now_s + self._bound_s, now_s + QUIET_S

    def is_over(self) -> bool:
        """Whether it has lasted for the plan's `silence_s`. Asks why, each time that it has lasted `QUIET_S` longer."""
        now_s = time.monotonic()
        if now_s >= self._deadline_s:
            return True
        if now_s >= self._ask_s:
            self._on_quiet()
            self._ask_s = time.monotonic() + QUIET_S
        return False  # while it was asked, something may have come


class Trouble:
    """Remembers what a client said last, for whoever waits in vain."""

    def __init__(self) -> None:
        self._said, self._refusal = "", ""

    def note(self, error: Any) -> None:
        """Takes what is amiss with the client as a whole; most of it passes."""
        self.of_client(error.code(), str(error.str()))

    def of_client(self, code: int, text: str) -> None:
        """The same by its code."""
        if not (code == _ALL_DOWN and self._said):  # that only counts what was said of each broker before
            self._said = text
        if code in _LOGIN:
            self._refusal = text

    def is_final(self, code: int) -> bool:
        """Whether librdkafka does not come further in the partition, or only with a gap."""
        return code in _GONE or code in _DAMAGED

    def of_partition(self, code: int, text: str, offset: int, wanted: Range, at: int) -> int:
        """Takes what is amiss with a partition at an offset, of which all before `at` was seen; before which offset all
        is seen now. Raises what cannot pass.
        """
        name = f"{wanted.topic}[{wanted.partition}]"
        if code == _END:
            return max(at, offset)
        if self.is_final(code):
            if offset >= wanted.end:  # what is behind it was looked for ahead
                return offset
            if code in _GONE:
                return self._gone(text, offset, wanted, at)
            raise StateError(
                f"{name}: a record between offsets {wanted.begin} and {wanted.end} cannot be read: {text}",
                remedy="Look at the broker's log and disk; a replica may have it whole",
            )
        if code in _REFUSED:
            raise Error(f"The Kafka broker refuses to let {name} be read: {text}", remedy="Grant the job READ on it")
        self._said = f"{name}: {text}"
        return at

    def _gone(self, text: str, offset: int, wanted: Range, at: int) -> int:
        """librdkafka may tell this once more of where it read before."""
        if offset < at:
            return at
        raise removed(wanted, text)

    def raise_refusal(self, servers: str) -> None:
        """Raises SettingsError where a broker refused the login."""
        if self._refusal:
            refusal, self._refusal = self._refusal, ""
            raise SettingsError(
                f"The Kafka broker at {servers} refused the login: {refusal}", remedy="Correct user and password"
            )

    def said(self) -> str:
        """The end of a message about a broker that is silent: what the client said last, or nothing."""
        return f"; last it was said: {self._said}" if self._said else ""

    def silent(self, plan: ReadPlan, missing: Sequence[tuple[Range, int]]) -> BrokerUnavailable:
        """The error for ranges of which nothing came, each with the offset from which on it is missing."""
        named = [f"{part.topic}[{part.partition}] {begin} to {part.end}" for part, begin in sorted(missing, key=_first)]
        return BrokerUnavailable(
            f"Kafka at {plan.bootstrap_servers} sent nothing for {plan.silence_s:g} s of what is missing: "
            f"{few(named, _NAMED)}{self.said()}",
            remedy="Check that the brokers run and can be reached",
        )


def _first(part: tuple[Range, int]) -> tuple[str, int]:
    return part[0].topic, part[0].partition
