"""Kafka clients of kafka-python, made from settings under the names that the rest of the Kafka world uses.

A user writes one table of `kafka.*` settings, in the Java client's names (or librdkafka's, where those differ); it
goes to Spark as it is and is translated here. Nothing is dropped in silence: a name that no client here knows is an
error, and so is one that totalorder decides itself. A name that only one kind of client knows (`fetch.min.bytes`) is
left out for the others."""

import difflib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import (
    BrokerResponseError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
)
from kafka.net.compat import KafkaNetClient

from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.kafka_errors import outages

Role = Literal["consumer", "producer", "admin"]

CONNECT_TIMEOUT_S = 10.0

_CLASSES: dict[Role, Any] = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}

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

# Settings that may not come from outside, and why.
_DECIDED = {
    "bootstrap.servers": "it has a setting of its own, bootstrap_servers",
    "group.id": "a consumer group would hand partitions to other readers; totalorder assigns them itself",
    "group.instance.id": "totalorder uses no consumer groups",
    "enable.auto.commit": "positions are saved only for what was acknowledged",
    "auto.offset.reset": "totalorder decides where it reads on, or a loss would pass in silence",
    "isolation.level": "events of aborted transactions must not be read",
    "transactional.id": "totalorder's own writes are not transactional",
    "acks": "a control record that a broker may forget leaves its subscriber waiting",
    "enable.idempotence": "without it a producer may change the order of records",
    "allow.auto.create.topics": "a mistyped topic must be an error",
}

# kafka-python's names that do not follow from Java's by putting _ for a dot, and librdkafka's names.
_OTHER_NAMES = {
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "socket.receive.buffer.bytes": "receive_buffer_bytes",
    "socket.send.buffer.bytes": "send_buffer_bytes",
    "fetch.wait.max.ms": "fetch_max_wait_ms",
    "fetch.message.max.bytes": "max_partition_fetch_bytes",
    "message.max.bytes": "max_request_size",
    "queue.buffering.max.ms": "linger_ms",
    "compression.codec": "compression_type",
}
_FILES = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"}
# Objects, not text; or parts of kafka-python that are none of a user's settings.
_NOT_SETTINGS = {
    "api_version",
    "consumer_timeout_ms",
    "default_offset_commit_callback",
    "kafka_client",
    "key_deserializer",
    "key_serializer",
    "metric_group_prefix",
    "metric_reporters",
    "partition_assignment_strategy",
    "partitioner",
    "sasl_kerberos_name",
    "sasl_oauth_token_provider",
    "selector",
    "socket_options",
    "socks5_proxy",
    "ssl_context",
    "value_deserializer",
    "value_serializer",
}
_TEXTS_WITHOUT_DEFAULT = re.compile(r"^(ssl|sasl|proxy|client|compression)_")

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
    """A consumer without a group that reads committed records only; assign partitions to it.

    `kafka`: settings by Java name; `arguments`: kafka-python's own, which win. Raises BrokerUnavailable when no broker
    answers within `connect_timeout_s`, SettingsError for settings that are unknown or wrong.
    """
    return _make("consumer", bootstrap_servers, kafka, connect_timeout_s, arguments)


def producer(
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **arguments: object,
) -> KafkaProducer:
    """An idempotent producer that waits for all replicas. Arguments and errors as for `consumer`."""
    return _make("producer", bootstrap_servers, kafka, connect_timeout_s, arguments)


def admin(
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None = None,
    *,
    connect_timeout_s: float = CONNECT_TIMEOUT_S,
    **arguments: object,
) -> KafkaAdminClient:
    """A client for topics and their settings. Arguments and errors as for `consumer`."""
    return _make("admin", bootstrap_servers, kafka, connect_timeout_s, arguments)


def _make(
    role: Role,
    bootstrap_servers: str,
    kafka: Mapping[str, str] | None,
    connect_timeout_s: float,
    arguments: Mapping[str, object],
) -> Any:
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
        made.append(KafkaNetClient(**settings))
        return made[-1]

    with _last_failure() as failure:
        try:
            return _CLASSES[role](**configuration, kafka_client=remember)
        except BaseException as error:
            for client in made:  # a constructor that fails leaves its thread and its sockets behind
                client.close()
                client._net.stop()
            if isinstance(error, KafkaConfigurationError | ValueError | TypeError):
                raise SettingsError(f"The Kafka {role} refused its settings: {error}", remedy="Change them.") from error
            if isinstance(error, KafkaError | OSError):
                raise _unavailable(bootstrap_servers, connect_timeout_s, failure() or error) from error
            raise


def _unavailable(bootstrap_servers: str, timeout_s: float, reason: object) -> BrokerUnavailable:
    return BrokerUnavailable(
        f"No Kafka broker at {bootstrap_servers} could be used within {timeout_s:g} s ({str(reason).rstrip('.')})",
        remedy="Check the address and that the broker runs; `totalorder broker` starts one on this machine.",
    )


@contextmanager
def _last_failure() -> Iterator[Callable[[], object]]:
    """What kafka-python logs about failed connections: its exception only says that the time is over."""
    reasons: list[object] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if isinstance(record.args, tuple):
                reasons.extend(part for part in record.args if isinstance(part, Exception))

    logger, handler = logging.getLogger("kafka.net.manager"), Keep(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield lambda: next((reason for reason in reversed(reasons) if not isinstance(reason, KafkaTimeoutError)), None)
    finally:
        logger.removeHandler(handler)


@contextmanager
def kafka_errors(bootstrap_servers: str) -> Iterator[None]:
    """Turn errors of kafka-python inside the block into totalorder's, with the address and what the broker said."""
    try:
        with outages(bootstrap_servers):
            yield
    except BrokerResponseError as error:
        raise Error(f"The Kafka broker at {bootstrap_servers} refused: {_said_by_broker(error)}") from error
    except KafkaError as error:
        raise Error(f"The Kafka client for {bootstrap_servers} failed: {type(error).__name__}: {error}") from error


def _said_by_broker(error: BrokerResponseError) -> str:
    """The broker's own words out of kafka-python's exception, which may quote a whole request and its answer."""
    text = str(error.args[0]) if error.args else ""
    words = re.search(r"error_message=(['\"])(.+?)\1[,)]", text)
    said = words[2] if words else "" if text.startswith("Request ") else text
    return f"{type(error).__name__}: {said or error.description}"


def server_list(bootstrap_servers: str) -> list[str]:
    """`host:port,host:port` as a list. Raises SettingsError for anything else."""
    servers = [server.strip() for server in bootstrap_servers.split(",") if server.strip()]
    for server in servers:
        host, sign, port = server.rpartition(":")
        if not sign or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise SettingsError(
                f"bootstrap_servers: {server!r} is not HOST:PORT", remedy="Write it like localhost:9092."
            )
    if not servers:
        raise SettingsError("bootstrap_servers is empty", remedy="Write it like localhost:9092.")
    return servers


# --- translating settings ---------------------------------------------------------------------------------------------


def client_settings(kafka: Mapping[str, str], role: Role) -> dict[str, Any]:
    """kafka-python's keyword arguments for a client of this role.

    `kafka`: Java or librdkafka names, with or without `kafka.` in front. Raises SettingsError for an unknown name
    (naming the nearest known one), for one that totalorder decides itself, and for a value that cannot be."""
    settings = {name.strip().removeprefix("kafka."): str(value).strip() for name, value in kafka.items()}
    translated: dict[str, Any] = {}
    for name, value in settings.items():
        _refuse_decided(name)
        special = _SPECIAL.get(name)
        translated |= special(settings) if special else {_argument(name): _parse(name, value)}
    for argument in sorted(_FILES & translated.keys()):
        if not Path(translated[argument]).is_file():
            raise SettingsError(f"There is no file {translated[argument]} (for {argument})", remedy="Correct its path.")
    known = _CLASSES[role].DEFAULT_CONFIG
    return {argument: value for argument, value in translated.items() if argument in known}


def _refuse_decided(name: str) -> None:
    reason = _DECIDED.get(name)
    if reason:
        raise SettingsError(f"kafka.{name} cannot be set: {reason}", remedy="Leave it out.")


def _argument(name: str) -> str:
    argument = _names().get(name)
    if argument is None:
        near = difflib.get_close_matches(name, [*_names(), *_SPECIAL], n=1)
        hint = f"Did you mean kafka.{near[0]}?" if near else "See the Java client's documentation for names."
        raise SettingsError(f"kafka.{name} is no Kafka client setting that is known here", remedy=hint)
    return argument


@cache
def _names() -> dict[str, str]:
    """Java and librdkafka names -> kafka-python's."""
    arguments = {name for client in _CLASSES.values() for name in client.DEFAULT_CONFIG} - _NOT_SETTINGS
    by_rule = {argument.replace("_", "."): argument for argument in arguments}
    return {name: argument for name, argument in (by_rule | _OTHER_NAMES).items() if name not in _DECIDED}


def _parse(name: str, value: str) -> object:
    """The text as the type that kafka-python's default for this argument has."""
    argument = _argument(name)
    defaults = [client.DEFAULT_CONFIG[argument] for client in _CLASSES.values() if argument in client.DEFAULT_CONFIG]
    default = next((default for default in defaults if default is not None), None)
    try:
        if argument == "security_protocol":
            return value.upper()
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        if isinstance(default, str) or (default is None and _TEXTS_WITHOUT_DEFAULT.match(argument)):
            return None if (argument, value) == ("compression_type", "none") else value
        return int(value)
    except (ValueError, KeyError):
        kind = "true or false" if isinstance(default, bool) else "a whole number"
        raise SettingsError(f"kafka.{name}={value!r} is not {kind}", remedy="Correct the value.") from None


def _store(settings: Mapping[str, str], kind: str, argument: str) -> dict[str, object]:
    """A Java trust store or key store: only PEM files can be read by Python, which they may well be (KIP-651)."""
    location = settings.get(f"ssl.{kind}.location")
    if location is None:
        return {}
    if settings.get(f"ssl.{kind}.type", "").upper() != "PEM" and Path(location).suffix not in (".pem", ".crt", ".cer"):
        raise SettingsError(
            f"kafka.ssl.{kind}.location={location} is not said to be a PEM file, and Python reads no other key store",
            remedy=f"Export it as PEM (keytool -exportcert -rfc, openssl pkcs12) and set kafka.ssl.{kind}.type=PEM.",
        )
    return {argument: location}


def _host_check(settings: Mapping[str, str]) -> dict[str, object]:
    algorithm = settings["ssl.endpoint.identification.algorithm"].lower()
    if algorithm not in ("https", "", "none"):
        raise SettingsError(
            f"kafka.ssl.endpoint.identification.algorithm={algorithm!r} is unknown",
            remedy="Use https, or leave it empty.",
        )
    return {"ssl_check_hostname": algorithm == "https"}


def _jaas(settings: Mapping[str, str]) -> dict[str, object]:
    """User and password out of `…PlainLoginModule required username="u" password="p";` (or ScramLoginModule)."""
    line = settings["sasl.jaas.config"]
    module = re.match(r"\s*[\w.]*\b(Plain|Scram)LoginModule\s", line)
    options = {
        key: quoted or bare for key, quoted, bare in re.findall(r'(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]+))', line)
    }
    if module is None or not {"username", "password"} <= options.keys():
        raise SettingsError(
            "kafka.sasl.jaas.config is not understood",
            remedy='Give PlainLoginModule or ScramLoginModule with username="…" and password="…" and a semicolon.',
        )
    unescaped = {key: re.sub(r"\\(.)", r"\1", value) for key, value in options.items()}
    return {"sasl_plain_username": unescaped["username"], "sasl_plain_password": unescaped["password"]}


_SPECIAL: dict[str, Callable[[Mapping[str, str]], dict[str, object]]] = {
    "ssl.truststore.location": lambda settings: _store(settings, "truststore", "ssl_cafile"),
    "ssl.truststore.type": lambda settings: _store(settings, "truststore", "ssl_cafile"),
    "ssl.keystore.location": lambda settings: _store(settings, "keystore", "ssl_certfile"),
    "ssl.keystore.type": lambda settings: _store(settings, "keystore", "ssl_certfile"),
    "ssl.endpoint.identification.algorithm": _host_check,
    "sasl.jaas.config": _jaas,
}
