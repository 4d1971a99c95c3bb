"""Which failures of connections stay, and that what a broker says before it hangs up is heard."""

import ssl

import pytest
from kafka.errors import (
    IllegalSaslStateError,
    KafkaConnectionError,
    KafkaProtocolError,
    KafkaTimeoutError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from totalorder.kafka_connections import _data_first, cannot_pass


@pytest.mark.parametrize("said", [b"", b"why"])
@pytest.mark.parametrize("end", [None, KafkaConnectionError("socket disconnected")])
def test_what_came_with_the_end_is_read_first(said: bytes, end: Exception | None) -> None:
    assert _data_first(lambda: (said, end))() == (said, None if said else end)


def wrapped(error: ssl.SSLError) -> Exception:
    """As kafka-python does it: raised while that one was handled."""
    outer = KafkaConnectionError(f"Handshake failed: {error}")
    outer.__context__ = error
    assert isinstance(outer, Exception)
    return outer


@pytest.mark.parametrize(
    "error",
    [
        SaslAuthenticationFailedError("wrong"),
        UnsupportedSaslMechanismError(),
        IllegalSaslStateError(),
        TopicAuthorizationFailedError({"a"}),
        KafkaProtocolError("Invalid frame length"),
        ssl.SSLError(1, "no certificate"),
        KafkaConnectionError(ssl.SSLError(1, "bad certificate")),
        wrapped(ssl.SSLCertVerificationError(1, "self-signed")),
        KeyError("OTHER"),
    ],
    ids=repr,
)
def test_what_no_attempt_can_change(error: Exception) -> None:
    assert cannot_pass(error)


@pytest.mark.parametrize(
    "error",
    [
        KafkaConnectionError("111 ECONNREFUSED"),
        KafkaTimeoutError(),
        RequestTimedOutError(),
        ConnectionResetError(),
        wrapped(ssl.SSLEOFError(8, "EOF occurred")),
    ],
    ids=repr,
)
def test_what_may_pass(error: Exception) -> None:
    assert not cannot_pass(error)
