"""What librdkafka says when something is amiss, in totalorder's terms."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError

from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.streaming.cut.ranges import Range, ReadPlan
from totalorder.streaming.cut.records import removed

_GONE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}
_REFUSED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_LOGIN = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
_NAMED = 5


class Trouble:
    """Remembers what a client said last, for whoever waits in vain."""

    def __init__(self) -> None:
        self._said, self._refusal = "", ""

    def note(self, error: Any) -> None:
        """Takes what is amiss with the client as a whole; most of it passes."""
        self.of_client(error.code(), error.str())

    def of_client(self, code: int, text: str) -> None:
        """The same by its code."""
        self._said = text
        if code in _LOGIN:
            self._refusal = text

    def is_end(self, code: int) -> bool:
        """Whether this is no error: the partition was read to its present end."""
        return code == int(KafkaError._PARTITION_EOF)

    def of_partition(self, code: int, text: str, wanted: Range) -> None:
        """Takes what is amiss with a partition; raises what cannot pass."""
        name = f"{wanted.topic}[{wanted.partition}]"
        if code in _GONE:
            raise removed(wanted, text)
        if code in _REFUSED:
            raise Error(f"The Kafka broker refuses to let {name} be read: {text}", remedy="Grant the job READ on it")
        self._said = f"{name}: {text}"

    def raise_refusal(self, servers: str) -> None:
        """Raises SettingsError where a broker refused the login."""
        if self._refusal:
            refusal, self._refusal = self._refusal, ""
            raise SettingsError(
                f"The Kafka broker at {servers} refused the login: {refusal}", remedy="Correct user and password"
            )

    def silent(self, plan: ReadPlan, missing: Sequence[tuple[Range, int]]) -> BrokerUnavailable:
        """The error for ranges of which nothing came, each with the offset from which on it is missing."""
        named = [f"{part.topic}[{part.partition}] {begin} to {part.end}" for part, begin in sorted(missing, key=_first)]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        said = f"; last it was said: {self._said}" if self._said else ""
        return BrokerUnavailable(
            f"Kafka at {plan.bootstrap_servers} sent nothing for {plan.silence_s:g} s of what is missing: "
            f"{', '.join(named[:_NAMED])}{more}{said}",
            remedy="Check that the brokers run and can be reached",
        )


def _first(part: tuple[Range, int]) -> tuple[str, int]:
    return part[0].topic, part[0].partition
