"""Kafka clients of kafka-python, made from settings (see kafka_settings), and its errors in totalorder's terms."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    BrokerResponseError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)

from totalorder import kafka_connections
from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.kafka_errors import is_outage, unavailable
from totalorder.kafka_settings import CLASSES, Role, check_settings, client_settings, server_list
from totalorder.kafka_unpacking import bounded

CONNECT_TIMEOUT_S, CLOSE_TIMEOUT_S = 10.0, 30.0
_PLAIN = "PLAINTEXT"

_DEFAULTS: dict[Role, dict[str, object]] = {
    "consumer": {
        "group_id": None,
        "enable_auto_commit": False,
        "isolation_level": "read_committed",
        "allow_auto_create_topics": False,
    },
    "producer": {"acks": "all", "enable_idempotence": True, "allow_auto_create_topics": False},
    "admin": {},
}
# kafka-python's own 30 s would keep a client away from a restarted broker for long.
_RECONNECT_BACKOFF_MAX_MS = 1000
_NEVER_MS = (1 << 31) - 1
"""kafka-python 3.0.12: a producer that gives up a record which it had sent before forgets its id, asks for no other and
sends nothing any more, for ever. So none is given up; how long to wait for one is the caller's decision."""

# Without a handler of its own Python prints a library's warnings to stderr: each attempt to reach an absent broker is
# one.
logging.getLogger("kafka").addHandler(logging.NullHandler())


# --- making clients ---------------------------------------------------------------------------------------------------


def consumer(
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **arguments: object,
) -> KafkaConsumer:
    """A consumer without a group that reads committed records only, and unpacks no more than it should (see
    kafka_unpacking); assign partitions to it.

    `kafka`: settings by Java name; `arguments`: kafka-python's own, which win. Raises BrokerUnavailable when no broker
    answers within `connect_timeout_s`, SettingsError for settings that are unknown or wrong.
    """
    return bounded(_make("consumer", bootstrap_servers, kafka, connect_timeout_s, arguments))


def producer(
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **arguments: object,
) -> KafkaProducer:
    """An idempotent producer that waits for all replicas, and gives no record up before it is closed, which takes no
    longer than CLOSE_TIMEOUT_S or the time that it is given. Arguments and errors as for `consumer`.
    """
    decided = {**arguments, "delivery_timeout_ms": _NEVER_MS}
    return _make("producer", bootstrap_servers, kafka, connect_timeout_s, decided)


def admin(
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **arguments: object,
) -> KafkaAdminClient:
    """A client for topics and their settings. Arguments and errors as for `consumer`."""
    return _make("admin", bootstrap_servers, kafka, connect_timeout_s, arguments)


class _Producer(KafkaProducer):  # type: ignore[misc]
    """A producer that ends in time, at the end of a `with` block too, and gives up what it could not send by then.

    kafka-python 3.0.12 raises then, and leaves its thread and its connections behind; without a time it waits for ever.
    """

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """See KafkaProducer."""
        timeout_s = CLOSE_TIMEOUT_S if timeout is None else timeout
        try:
            super().close(timeout=timeout_s, null_logger=null_logger)
        except KafkaTimeoutError:
            self._sender.force_close()
            with suppress(KafkaTimeoutError):  # its thread waits for a connection, and ends behind that
                super().close(timeout=timeout_s, null_logger=null_logger)


_MADE = CLASSES | {"producer": _Producer}


def _make(
    role: Role,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None,
    connect_timeout_s: float,
    arguments: Mapping[str, object],
) -> Any:
    check_settings(kafka or {})
    configuration = {
        "reconnect_backoff_max_ms": _RECONNECT_BACKOFF_MAX_MS,
        "bootstrap_timeout_ms": max(1, round(connect_timeout_s * 1000)),
        **_DEFAULTS[role],
        **client_settings(kafka or {}, role),
        **arguments,
        "bootstrap_servers": server_list(bootstrap_servers),
    }
    made: list[Any] = []

    def remember(**settings: object) -> Any:
        made.append(kafka_connections.net_client(**settings))
        return made[-1]

    try:
        return _MADE[role](**configuration, kafka_client=remember)
    except BaseException as error:
        for client in made:  # a constructor that fails leaves its thread and its sockets behind
            client.close()
            client._net.stop()
        failure = next((client._manager.failure for client in made), None)
        explained = _explained(role, configuration, failure, error)
        if explained is None:
            raise
        raise explained from error


def _explained(
    role: Role, configuration: Mapping[str, Any], failure: Exception | None, error: BaseException
) -> Error | None:
    """Why a client could not be made; None for what is no error of connections or settings."""
    servers, protocol = ",".join(configuration["bootstrap_servers"]), configuration.get("security_protocol", _PLAIN)
    if failure is not None and kafka_connections.cannot_pass(failure):
        return kafka_connections.refused(servers, protocol, failure)
    if isinstance(error, KafkaConfigurationError | ValueError | TypeError | RuntimeError):
        return SettingsError(f"The Kafka {role} refused its settings: {error}", remedy="Change them.")
    if isinstance(error, KafkaError | OSError):
        reason, timeout_s = failure or error, configuration["bootstrap_timeout_ms"] / 1000
        return BrokerUnavailable(
            f"No Kafka broker at {servers} could be used within {timeout_s:g} s ({str(reason).rstrip('.')})",
            remedy=kafka_connections.hint(protocol, reason)
            or "Check the address and that the broker runs; `totalorder broker` starts one on this machine.",
        )
    return None


@contextmanager
def kafka_errors(bootstrap_servers: str) -> Iterator[None]:
    """Turn errors of kafka-python inside the block into totalorder's, with the address and what the broker said."""
    try:
        yield
    except (UnknownTopicOrPartitionError, UnknownTopicIdError) as error:
        # Asked again, whoever asks for topics by their names hears whether they are gone.
        raise unavailable(bootstrap_servers, error) from error
    except (KafkaError, RuntimeError) as error:
        if not isinstance(error, KafkaError) and not is_outage(error):
            raise
        raise explained(bootstrap_servers, error) from error


def explained(bootstrap_servers: str, error: Exception) -> Error:
    """An error of kafka-python as totalorder's: BrokerUnavailable for what is over when the broker is well again."""
    if is_outage(error):
        return unavailable(bootstrap_servers, error)
    if isinstance(error, BrokerResponseError):
        return Error(f"The Kafka broker at {bootstrap_servers} refused: {_said_by_broker(error)}")
    return Error(f"The Kafka client for {bootstrap_servers} failed: {type(error).__name__}: {error}")


def _said_by_broker(error: BrokerResponseError) -> str:
    """The broker's own words out of kafka-python's exception, which may quote a whole request and its answer."""
    text = str(error.args[0]) if error.args else ""
    words = re.search(r"error_message=(['\"])(.+?)\1[,)]", text)
    said = words[2] if words else "" if text.startswith("Request ") else text
    return f"{type(error).__name__}: {said or error.description}"
