"""Brings records to topics of the domain's, and says when they are there: cuts, one a batch, and the job's requests.

librdkafka's producer: an acknowledged record takes it 1 to 1.5 ms and 0.25 ms of processor time where kafka-python's
takes 3 to 5 and 1.4, on a local broker.
"""

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaException, Producer

from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.librdkafka_settings import consumer_settings
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.limits import MAX_ROW_BYTES
from totalorder.streaming.cut.failures import Trouble

_DEFAULTS = {"reconnect.backoff.max.ms": "1000"}
_DECIDED = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "0",
    "message.timeout.ms": "0",  # never given up: how long to wait is the caller's decision
    "compression.type": "none",  # the values are packed
    "message.max.bytes": str(MAX_ROW_BYTES + (1 << 16)),
    "log_level": "0",
}


class Publisher:
    """One process's way to the topic. After an error other than BrokerUnavailable it is of no more use: close it.

    For one thread at a time.
    """

    def __init__(self, bootstrap_servers: str, kafka: Mapping[str, str], topic: str) -> None:
        """`kafka`: settings of the connection by the Java client's names. Raises SettingsError for what cannot be."""
        self._servers, self._topic = bootstrap_servers, topic
        self._trouble = Trouble()
        self._sent = self._acknowledged = 0
        self.reached = 0
        """Behind the last record that all replicas have."""
        self._failure: Error | None = None
        settings = {**_DEFAULTS, **consumer_settings(bootstrap_servers, kafka), **_DECIDED}
        try:
            self._producer = Producer({**settings, "error_cb": self._trouble.note})
        except KafkaException as error:
            raise SettingsError(f"librdkafka refuses its settings: {error}", remedy="Change them") from error

    def send(self, record: WireRecord) -> None:
        """Sends a record behind those before it, and does not wait for anything. Raises what an earlier one met."""
        self._raise_failure()
        try:
            self._producer.produce(
                self._topic, record.value, partition=0, headers=list(record.headers), on_delivery=self._delivered
            )
        except (KafkaException, BufferError) as error:
            raise self._failed(str(error)) from error
        self._sent += 1

    def await_acknowledged(self, timeout_s: float) -> None:
        """Returns when all replicas have everything that was sent.

        BrokerUnavailable when that takes longer than `timeout_s`; it can be awaited again. Error when the broker
        refuses a record, SettingsError when it refuses the login.
        """
        deadline = time.monotonic() + timeout_s
        while self._acknowledged < self._sent and self._failure is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise self._silent(timeout_s)
            self._producer.poll(left_s)
            self._trouble.raise_refusal(self._servers)
        self._raise_failure()

    def close(self) -> None:
        """Ends it; what is not acknowledged yet may or may not be written."""
        self._producer.purge()
        self._producer.poll(0)
        self._producer.flush(0)

    def _delivered(self, error: Any, record: Any) -> None:
        if error is None:
            self._acknowledged += 1
            self.reached = record.offset() + 1
        elif self._failure is None:
            self._failure = self._failed(error.str())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _silent(self, timeout_s: float) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"Kafka at {self._servers} did not acknowledge a record of {self._topic} within {timeout_s:g} s"
            f"{self._trouble.said()}",
            remedy="Check that the brokers run and can be reached",
        )

    def _failed(self, why: str) -> Error:
        return Error(
            f"A record could not be written to {self._topic}: {why}",
            remedy="The job may write there when it has WRITE on the topic, and the topic is as the job made it",
        )
