"""Connections on which constant bytes are asked and bytes are answered, without a client library between.

kafka-python connects, makes TLS and logs in; then its socket is taken over: for a question of some microseconds its
event loop, timers and futures cost several times as much (docs/adr/0014). One question at a time is under way on each.
"""

import math
import select
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kafka.net.connection import KafkaConnection
from kafka.net.selector import NetworkSelector

from totalorder import kafka_connections
from totalorder.errors import BrokerUnavailable, EnvironmentProblem, Error
from totalorder.kafka_settings import check_settings, client_settings
from totalorder.streaming.cut.requests import MAX_ANSWER_BYTES, NAMES, VERSIONS, Address, AnswerError

_NOT_YET = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_FIRST_BUFFER_BYTES = 1 << 16
_LOGIN_SHARE = 0.85
"""Of the time for which a login holds: the connection is made anew before the broker ends it."""


class Wire:
    """A connection that is made and logged in. What goes wrong on it is an Error, and it is of no use afterwards."""

    def __init__(self, sock: socket.socket, address: Address, *, holds_s: float) -> None:
        """`sock` does not block; `holds_s` is for how long the login holds, infinite where it does for ever.

        `asked_s` is when the last question was asked, `took_s` how long the last answer took.
        """
        self.address = address
        self.expires_s = time.monotonic() + holds_s
        self.is_asked = self._is_broken = False
        self.asked_s = 0.0
        self.took_s = math.inf
        self._sock = sock
        self._unsent = memoryview(b"")
        self._buffer = memoryview(bytearray(_FIRST_BUFFER_BYTES))
        self._have = 0

    @property
    def is_usable(self) -> bool:
        """Whether it can be asked: nothing failed on it, and nothing is under way."""
        return not self.is_asked and not self._is_broken

    def is_over(self) -> bool:
        """Whether its login is about to end, or the broker hung up since the last answer."""
        if self._is_broken or time.monotonic() >= self.expires_s:
            return True
        if self.is_asked:
            return False
        try:
            self._sock.recv(1)  # nothing is to come, so whatever comes ends it
        except _NOT_YET:
            return False
        except OSError:
            pass
        return True

    def fileno(self) -> int:
        """For select."""
        return self._sock.fileno()

    @property
    def awaits(self) -> int:
        """What poll() is to wait for."""
        return select.POLLIN | select.POLLOUT if self._unsent else select.POLLIN

    def ask(self, request: bytes) -> None:
        """Begins to send; the answer to the question before must have come. Raises BrokerUnavailable."""
        assert not self.is_asked, "one question at a time"
        self.is_asked, self.asked_s, self._unsent = True, time.monotonic(), memoryview(request)
        self._send()

    def receive(self) -> bytes | None:
        """The whole answer, or None when it is still to come. Raises BrokerUnavailable and AnswerError."""
        if self._unsent:
            self._send()
        if not self._has_come():
            return None
        answer = bytes(self._buffer[4 : self._have])
        self._have, self.is_asked, self.took_s = 0, False, time.monotonic() - self.asked_s
        return answer

    def _send(self) -> None:
        try:
            while self._unsent:
                self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except _NOT_YET:
            pass
        except OSError as error:
            raise self.lost(error) from error

    def _has_come(self) -> bool:
        try:
            while (missing := self._missing()) > 0:
                if not (count := self._sock.recv_into(self._buffer[self._have :])):
                    raise self.lost("it hung up")
                self._have += count
        except _NOT_YET:
            return False
        except OSError as error:
            raise self.lost(error) from error
        if missing < 0:
            raise self._unreadable("it is longer than it says")
        return True

    def _missing(self) -> int:
        """Bytes that are still to come; makes room for them."""
        if self._have < 4:
            return 4
        size: int = struct.unpack_from(">i", self._buffer)[0]
        if not 4 <= size <= MAX_ANSWER_BYTES:
            raise self._unreadable(f"it says that it has {size} bytes")
        if 4 + size > len(self._buffer):
            larger = memoryview(bytearray(4 + size))
            larger[: self._have] = self._buffer[: self._have]
            self._buffer = larger
        return 4 + size - self._have

    def close(self) -> None:
        """Ends the connection; may be called twice."""
        self._sock.close()

    def _unreadable(self, reason: str) -> AnswerError:
        self._is_broken = True
        return AnswerError(reason)

    def lost(self, reason: object) -> BrokerUnavailable:
        self._is_broken = True
        return BrokerUnavailable(
            f"The Kafka broker at {self.address.host}:{self.address.port} did not answer ({reason})",
            remedy="Check that it runs and can be reached.",
        )


def receive_all(wires: Iterable[Wire], until_s: float) -> dict[Wire, bytes | Error]:
    """What comes from wires that were asked until all have answered or failed, or monotonic time is `until_s`."""
    poll, open_ = select.poll(), {}
    for wire in wires:
        open_[wire.fileno()] = wire
        poll.register(wire.fileno(), wire.awaits)
    outcomes: dict[Wire, bytes | Error] = {}
    while open_:
        left_ms = max(0.0, until_s - time.monotonic()) * 1000
        for number, _ in poll.poll(left_ms):
            outcome = _outcome(open_[number])
            if outcome is not None:
                outcomes[open_.pop(number)] = outcome
                poll.unregister(number)
            else:
                poll.modify(number, open_[number].awaits)
        if left_ms == 0:
            break
    return outcomes


def _outcome(wire: Wire) -> bytes | Error | None:
    try:
        return wire.receive()
    except Error as error:
        return error


# --- connecting -------------------------------------------------------------------------------------------------------


class Connector:
    """Makes wires from settings. Its methods block, and may be called in any thread."""

    def __init__(self, bootstrap_servers: str, kafka: Mapping[str, str]) -> None:
        """`kafka`: settings by Java name. Raises SettingsError."""
        check_settings(kafka)
        self.bootstrap_servers = bootstrap_servers
        self._settings = client_settings(kafka, "admin")

    def open(self, address: Address, timeout_s: float) -> Wire:
        """Connects and logs in. Raises BrokerUnavailable when that takes longer, SettingsError for what cannot pass
        with time, EnvironmentProblem for a broker that is too old or too new.
        """
        settings = self._settings | {
            "bootstrap_servers": [f"{address.host}:{address.port}"],
            "request_timeout_ms": max(1, round(timeout_s * 1000)),
        }
        net = NetworkSelector(**settings)
        try:
            made = net.call_soon_with_future(_connected(net, address, settings, time.monotonic() + timeout_s))
            net.poll(timeout_ms=timeout_s * 1000, future=made)
            if not made.is_done:
                raise self._unavailable(address, f"not within {timeout_s:g} s")
            if made.exception is not None:
                raise self._explained(address, made.exception) from made.exception
            return _taken_over(made.value, address)
        finally:
            net.close()

    def _explained(self, address: Address, error: BaseException) -> BaseException:
        if not isinstance(error, Exception):
            return error
        if kafka_connections.cannot_pass(error):
            return kafka_connections.refused(f"{address.host}:{address.port}", self._protocol, error)
        return self._unavailable(address, error)

    def _unavailable(self, address: Address, reason: object) -> BrokerUnavailable:
        return BrokerUnavailable(
            f"The Kafka broker at {address.host}:{address.port} could not be reached ({str(reason).rstrip('.')})",
            remedy=kafka_connections.hint(self._protocol, reason) or "Check that it runs and can be reached.",
        )

    @property
    def _protocol(self) -> str:
        return str(self._settings.get("security_protocol", "PLAINTEXT"))


async def _connected(net: Any, address: Address, settings: Mapping[str, Any], until_s: float) -> Any:
    """kafka-python's connection after its greeting and login, as KafkaConnectionManager._connect makes it."""
    manager = kafka_connections.Connections(net, **settings)
    connection = KafkaConnection(net, **manager.config)
    connection.connection_made(await manager._build_transport(address, timeout_at=until_s))
    await connection.initialize(timeout_at=until_s)
    await connection.init_future
    return connection


def _taken_over(connection: Any, address: Address) -> Wire:
    """The connection's socket: kafka-python's loop has nothing under way on it, and is closed."""
    transport = connection.transport
    sock, transport._sock = transport._sock, None
    lifetime_ms = connection._reauth.session_lifetime_ms
    wire = Wire(sock, address, holds_s=_LOGIN_SHARE * lifetime_ms / 1000 if lifetime_ms else math.inf)
    spoken = connection.broker_version_data.api_versions
    for key, version in VERSIONS.items():
        lowest, highest = spoken.get(key, (0, -1))
        if not lowest <= version <= highest:
            wire.close()
            raise EnvironmentProblem(
                f"The Kafka broker at {address.host}:{address.port} does not speak version {version} of "
                f"{NAMES[key]} (it does {lowest} to {highest})",
                remedy="Use brokers of Apache Kafka 2.8 or newer.",
            )
    return wire
