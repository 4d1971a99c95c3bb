"""Connections of kafka-python that remember why they failed: its own errors say only that the time is over."""

import ssl
from collections.abc import Callable
from typing import Any

from kafka.errors import (
    AuthorizationError,
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaProtocolError,
    KafkaTimeoutError,
    RetriableError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector, TaskState

from totalorder.errors import SettingsError

_LOGIN_ERRORS = (
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
    IllegalSaslStateError,
    AuthorizationError,
)
_LOGIN_REMEDY = "Correct kafka.sasl.jaas.config (or kafka.sasl.username and kafka.sasl.password)"


class Connections(KafkaConnectionManager):  # type: ignore[misc]
    """`failure` is why the last connection could not be made, or was lost; a reason that stays wins over later ones.

    Before the first connection such a reason ends the attempts. Later it does not: a broker that is just starting
    refuses logins that it will take a moment later.
    """

    def __init__(self, net: Any, **settings: object) -> None:
        super().__init__(net, **settings)
        # kafka-python lets a request wait for its connection for longer than for its answer.
        for name in ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"):
            self.config[name] = min(self.config[name], self.config["request_timeout_ms"])
        self.failure: Exception | None = None
        self._connected_once = False

    def get_connection(self, node_id: Any, **options: object) -> Any:
        """See KafkaConnectionManager."""
        if self.failure is not None and cannot_pass(self.failure) and not self._connected_once:
            raise self.failure
        known = self._conns.get(node_id)
        connection = super().get_connection(node_id, **options)
        if connection is not known:
            connection.init_future.add_callback(self._made)
            connection.init_future.add_errback(self._failed)
            connection.close_future.add_errback(self._failed)
        return connection

    def _made(self, _: object) -> None:
        self.failure, self._connected_once = None, True

    def _failed(self, error: Exception) -> None:
        if self.failure is None or not cannot_pass(self.failure):
            self.failure = error

    async def _build_transport(self, node: Any, timeout_at: float) -> Any:
        """See KafkaConnectionManager; 3.0.12 waits for a TLS handshake for ever, whatever time it has."""
        timer = self._net.call_at(timeout_at, self._giving_up(self._net._current))
        try:
            transport = await super()._build_transport(node, timeout_at=timeout_at)
        finally:
            self._net.cancel(timer)
        transport._sock_recv = _data_first(transport._sock_recv)
        return transport

    def _giving_up(self, task: Any) -> Callable[[], None]:
        """Ends what a task waits for, as the end of a wait that has a time does."""

        def give_up() -> None:
            if task.state is TaskState.WAIT_IO:
                task.inject_exc(KafkaTimeoutError("it took too long"))
                self._net._add_ready_task(task)

        return give_up


def _data_first(receive: Callable[[], tuple[bytes, object]]) -> Callable[[], tuple[bytes, object]]:
    """A broker that refuses a login says why and hangs up. kafka-python 3.0.12 drops what came with the end."""

    def received() -> tuple[bytes, object]:
        data, error = receive()
        return data, None if data else error

    return received


def net_client(**settings: object) -> KafkaNetClient:
    """What kafka-python's clients take as `kafka_client`."""
    net = NetworkSelector(**settings)
    return KafkaNetClient(net, Connections(net, **settings), **settings)


def failure_of(client: Any) -> Exception | None:
    """Why a consumer or an admin client is without a connection, as far as it is known."""
    failure: Exception | None = client._client._manager.failure
    return failure


def cannot_pass(error: BaseException) -> bool:
    """Whether a connection failed for a reason that stays: login, TLS, a mechanism that cannot be made."""
    if isinstance(error, _LOGIN_ERRORS):
        return True
    if (reason := _tls_error(error)) is not None:
        return not isinstance(reason, ssl.SSLEOFError)  # a broker that goes away in the middle of a handshake
    return not isinstance(error, RetriableError | OSError)


def _tls_error(error: BaseException) -> ssl.SSLError | None:
    """kafka-python wraps what `ssl` says, or only mentions it."""
    inner = (error, error.__context__, error.args[0] if error.args else None)
    return next((part for part in inner if isinstance(part, ssl.SSLError)), None)


def refused(bootstrap_servers: str, protocol: str, error: BaseException) -> SettingsError:
    """What to tell about a failure that `cannot_pass`; `protocol` is the client's `security.protocol`."""
    where = f"the Kafka broker at {bootstrap_servers}"
    if isinstance(error, UnsupportedSaslMechanismError):
        return SettingsError(f"{where} does not offer the kafka.sasl.mechanism", remedy="Use one that it has enabled")
    if isinstance(error, IllegalSaslStateError):
        return SettingsError(
            f"{where} takes no login at this address, and kafka.security.protocol={protocol} asks for one",
            remedy="Use the address of a listener with SASL, or another protocol",
        )
    if isinstance(error, _LOGIN_ERRORS):
        said = str(error).rpartition("Error: ")[2]
        return SettingsError(f"{where} refused the login: {said}", remedy=_LOGIN_REMEDY)
    if _tls_error(error) is not None:
        return SettingsError(
            f"TLS with {where} failed: {error}",
            remedy="Check kafka.ssl.truststore.location, the name in the broker's certificate, and the address",
        )
    if isinstance(error, KafkaProtocolError):
        return SettingsError(
            f"what answers at {bootstrap_servers} does not speak Kafka's protocol without TLS, and "
            f"kafka.security.protocol={protocol}",
            remedy="Use SSL or SASL_SSL where it expects TLS, and check the address",
        )
    return SettingsError(f"{where} could not be used: {type(error).__name__}: {error}", remedy="Change the settings")


def hint(protocol: str, failure: object) -> str:
    """What to look at where a broker only hangs up, as it does when it expects another `security.protocol`."""
    text = str(failure)
    if isinstance(failure, KafkaConnectionError) and ("socket disconnected" in text or "EOF occurred" in text):
        return f"It hangs up: does it expect another kafka.security.protocol than {protocol}?"
    return ""
