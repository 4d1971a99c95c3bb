"""Settings of Kafka clients, under the names that the rest of the Kafka world uses, made into kafka-python's.

A user writes one table of `kafka.*` settings, in the Java client's names (or librdkafka's, where those differ); it
goes to Spark as it is and is translated here. Nothing is dropped in silence: a name that no client here knows is an
error, so is one that totalorder decides itself, and so is a value that cannot be meant: kafka-python takes an unknown
`security.protocol` for PLAINTEXT. A name that only one kind of client knows (`fetch.min.bytes`) is left out for the
others."""

import difflib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

from totalorder.errors import SettingsError
from totalorder.kafka_jaas import user_and_password

Role = Literal["consumer", "producer", "admin"]

CLASSES: dict[Role, Any] = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}

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
# Of those the ones by which clients log in and trust: Java takes no notice of them, and would do without.
_JAVAS_NAME = {
    "sasl.mechanisms": "sasl.mechanism",
    **dict.fromkeys(
        ("sasl.username", "sasl.plain.username", "sasl.password", "sasl.plain.password"), "sasl.jaas.config"
    ),
    **dict.fromkeys(("ssl.ca.location", "ssl.cafile"), "ssl.truststore.location"),
    **dict.fromkeys(
        ("ssl.certificate.location", "ssl.certfile", "ssl.key.location", "ssl.keyfile"), "ssl.keystore.location"
    ),
    "ssl.check.hostname": "ssl.endpoint.identification.algorithm",
}
_FILES = {"ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"}
_LOGIN = {"sasl_mechanism", "sasl_plain_username", "sasl_plain_password"}
_BY_PASSWORD = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
# What can be meant. Java takes the protocol in any case, and all else as it is written here.
_VALUES = {
    "security_protocol": ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    "sasl_mechanism": (*_BY_PASSWORD, "GSSAPI", "AWS_MSK_IAM"),
    "compression_type": ("none", "gzip", "snappy", "lz4", "zstd"),
    "client_dns_lookup": ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
}
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


def server_list(bootstrap_servers: str) -> list[str]:
    """`host:port,host:port` as a list. Raises SettingsError for anything else."""
    if not isinstance(bootstrap_servers, str):
        raise SettingsError(
            f"bootstrap_servers is {bootstrap_servers!r}, and no text",
            remedy='Write all of them in one text, like "localhost:9092,localhost:9093".',
        )
    servers = [server.strip() for server in bootstrap_servers.split(",") if server.strip()]
    for server in servers:
        host, sign, port = server.rpartition(":")
        if not sign or not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise SettingsError(
                f"bootstrap_servers: {server!r} is not HOST:PORT", remedy="Write it like localhost:9092."
            )
    if not servers:
        raise SettingsError("bootstrap_servers is empty", remedy="Write it like localhost:9092.")
    return servers


def check_settings(kafka: Mapping[str, str]) -> None:
    """Raises SettingsError for settings with which no client should connect, each by itself or all together."""
    settings = plain_names(kafka)
    arguments = _translated(settings)
    protocol = arguments.get("security_protocol", "PLAINTEXT")
    if "SASL" in protocol:
        _refuse_incomplete_login(arguments)
    else:
        _refuse_idle(settings, _LOGIN, f"kafka.security.protocol={protocol} logs nobody in: add SASL")
    if "SSL" not in protocol:
        _refuse_idle(settings, _FILES, f"kafka.security.protocol={protocol} encrypts nothing: use SSL or SASL_SSL")


def check_for_java(kafka: Mapping[str, str]) -> None:
    """Raises SettingsError for what Java clients (Spark's) must not be given; looks at no file.

    That is a name of other clients for a login or a certificate, or a value that is none of those of its setting.
    """
    for name, value in plain_names(kafka).items():
        if name in _JAVAS_NAME:
            raise SettingsError(
                f"kafka.{name} means nothing to Spark's Kafka client", remedy=f"Give kafka.{_JAVAS_NAME[name]} instead."
            )
        if (argument := _names().get(name)) in _VALUES:
            _one_of(name, value, argument)


def client_settings(kafka: Mapping[str, str], role: Role) -> dict[str, Any]:
    """kafka-python's keyword arguments for a client of this role.

    `kafka`: Java or librdkafka names, with or without `kafka.` in front. Raises SettingsError for an unknown name
    (naming the nearest known one), for one that totalorder decides itself, and for a value that cannot be."""
    known = CLASSES[role].DEFAULT_CONFIG
    return {argument: value for argument, value in _translated(plain_names(kafka)).items() if argument in known}


def plain_names(kafka: Mapping[str, str]) -> dict[str, str]:
    """The settings without `kafka.` in front and blanks around; SettingsError for what is no table."""
    if not isinstance(kafka, Mapping):
        raise SettingsError(
            f"kafka is {kafka!r}, and no table", remedy='Give names and values, like {"security.protocol": "SSL"}.'
        )
    return {str(name).strip().removeprefix("kafka."): str(value).strip() for name, value in kafka.items()}


def _translated(settings: Mapping[str, str]) -> dict[str, Any]:
    """All of kafka-python's arguments that the settings make, whichever client takes them."""
    translated: dict[str, Any] = {}
    for name in settings:
        translated |= _arguments(name, settings)
    for argument in sorted(_FILES & translated.keys()):
        if not Path(translated[argument]).is_file():
            raise SettingsError(f"There is no file {translated[argument]} (for {argument})", remedy="Correct its path.")
    return translated


def _arguments(name: str, settings: Mapping[str, str]) -> dict[str, Any]:
    refuse_decided(name)
    special = _SPECIAL.get(name)
    return special(settings) if special else {_argument(name): _parse(name, settings[name])}


# --- settings together ------------------------------------------------------------------------------------------------


def _refuse_incomplete_login(arguments: Mapping[str, Any]) -> None:
    mechanism = arguments.get("sasl_mechanism")
    if mechanism is None:
        raise SettingsError(
            "kafka.security.protocol asks for a login, and there is no kafka.sasl.mechanism",
            remedy=f"Set it to one of {', '.join(_VALUES['sasl_mechanism'])}.",
        )
    if mechanism in _BY_PASSWORD and not {"sasl_plain_username", "sasl_plain_password"} <= arguments.keys():
        raise SettingsError(
            f"kafka.sasl.mechanism={mechanism} needs a user and a password",
            remedy="Give kafka.sasl.jaas.config, or kafka.sasl.username and kafka.sasl.password.",
        )


def _refuse_idle(settings: Mapping[str, str], arguments: set[str], reason: str) -> None:
    """Settings that would do nothing, though whoever wrote them counts on them."""
    for name in settings:
        if arguments & _arguments(name, settings).keys():
            raise SettingsError(
                f"kafka.{name} is given, and {reason}", remedy="Correct the one, or leave the other out."
            )


# --- one setting ------------------------------------------------------------------------------------------------------


def refuse_decided(name: str) -> None:
    """Raises SettingsError for a setting that may not come from outside."""
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
    arguments = {name for client in CLASSES.values() for name in client.DEFAULT_CONFIG} - _NOT_SETTINGS
    by_rule = {argument.replace("_", "."): argument for argument in arguments}
    return {name: argument for name, argument in (by_rule | _OTHER_NAMES).items() if name not in _DECIDED}


def _parse(name: str, value: str) -> object:
    """The text as the type that kafka-python's default for this argument has."""
    argument = _argument(name)
    if argument in _VALUES:
        return _one_of(name, value, argument)
    defaults = [client.DEFAULT_CONFIG[argument] for client in CLASSES.values() if argument in client.DEFAULT_CONFIG]
    default = next((default for default in defaults if default is not None), None)
    try:
        if isinstance(default, bool):
            return {"true": True, "false": False}[value.lower()]
        if isinstance(default, str) or (default is None and _TEXTS_WITHOUT_DEFAULT.match(argument)):
            return value
        return int(value)
    except (ValueError, KeyError):
        kind = "true or false" if isinstance(default, bool) else "a whole number"
        raise SettingsError(f"kafka.{name}={value!r} is not {kind}", remedy="Correct the value.") from None


def _one_of(name: str, value: str, argument: str) -> str | None:
    found = value.upper() if argument == "security_protocol" else value
    if found not in _VALUES[argument]:
        raise SettingsError(
            f"kafka.{name}={value!r} is not known here", remedy=f"Use one of {', '.join(_VALUES[argument])}."
        )
    return None if (argument, found) == ("compression_type", "none") else found


def _store(settings: Mapping[str, str], kind: str, argument: str) -> dict[str, object]:
    """A Java trust store or key store: only PEM files can be read by Python, which they may well be (KIP-651)."""
    stated, location = settings.get(f"ssl.{kind}.type"), settings.get(f"ssl.{kind}.location")
    if stated is not None and stated.upper() != "PEM":
        raise SettingsError(
            f"kafka.ssl.{kind}.type={stated!r} is not PEM, and Python reads no other key store",
            remedy="Export it as PEM (keytool -exportcert -rfc, openssl pkcs12).",
        )
    if location is None:
        return {}
    if stated is None and Path(location).suffix not in (".pem", ".crt", ".cer"):
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
    user, password = user_and_password(settings["sasl.jaas.config"])
    return {"sasl_plain_username": user, "sasl_plain_password": password}


_SPECIAL: dict[str, Callable[[Mapping[str, str]], dict[str, object]]] = {
    "ssl.truststore.location": lambda settings: _store(settings, "truststore", "ssl_cafile"),
    "ssl.truststore.type": lambda settings: _store(settings, "truststore", "ssl_cafile"),
    "ssl.keystore.location": lambda settings: _store(settings, "keystore", "ssl_certfile"),
    "ssl.keystore.type": lambda settings: _store(settings, "keystore", "ssl_certfile"),
    "ssl.endpoint.identification.algorithm": _host_check,
    "sasl.jaas.config": _jaas,
}
