"""Settings of Kafka clients under the Java client's names, made into those of a librdkafka consumer.

The user's one table of `kafka.*` settings (see kafka_settings) also reaches librdkafka, which reads events for the job.
Nothing is dropped in silence: what means nothing to a consumer is on a list, and any other name is an error.
"""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from totalorder.errors import SettingsError
from totalorder.kafka_jaas import user_and_password
from totalorder.kafka_settings import plain_names, refuse_decided, server_list

Pairs = dict[str, str]

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_MOST_TIMEOUT_MS = 300_000
"""librdkafka refuses a longer socket.timeout.ms."""

SAME = frozenset(
    {
        "check.crcs",
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.wait.max.ms",
        "max.partition.fetch.bytes",
        "metadata.max.age.ms",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.ms",
        "sasl.kerberos.service.name",
        "sasl.password",
        "sasl.username",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "ssl.cipher.suites",
        "ssl.key.password",
    }
)
"""Names that mean the same to both, with the same values."""
OTHER_NAMES = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "sasl.plain.password": "sasl.password",
    "sasl.plain.username": "sasl.username",
    "ssl.ciphers": "ssl.cipher.suites",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.password": "ssl.key.password",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Names for the same thing, with the same values."""
FILES = {
    "ssl.ca.location": "ssl.ca.location",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.certificate.location": "ssl.certificate.location",
    "ssl.crl.location": "ssl.crl.location",
    "ssl.crlfile": "ssl.crl.location",
    "ssl.key.location": "ssl.key.location",
    "ssl.keyfile": "ssl.key.location",
}
"""Names of files, which must be there."""
IGNORED = frozenset(
    {
        "auto.commit.interval.ms",
        "batch.size",
        "bootstrap.timeout.ms",
        "buffer.memory",
        "compression.codec",
        "compression.type",
        "default.api.timeout.ms",
        "delivery.timeout.ms",
        "enable.incremental.fetch.sessions",
        "exclude.internal.topics",
        "heartbeat.interval.ms",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.poll.interval.ms",
        "max.poll.records",
        "max.request.size",
        "message.max.bytes",
        "metrics.enabled",
        "metrics.num.samples",
        "metrics.sample.window.ms",
        "queue.buffering.max.ms",
        "retries",
        "session.timeout.ms",
        "transaction.timeout.ms",
    }
)
"""What means nothing to a consumer without a group: settings of producers, of groups, and of other clients' insides."""
REFUSED = {
    "proxy.url": "librdkafka connects through no proxy",
    "sasl.kerberos.domain.name": "librdkafka takes the broker's host name",
}
"""What librdkafka cannot do, and would have to."""


def consumer_settings(bootstrap_servers: str, kafka: Mapping[str, str]) -> Pairs:
    """librdkafka's settings for a consumer that connects as these settings say.

    `kafka`: Java (or librdkafka) names, with or without `kafka.` in front. Raises SettingsError for an unknown name
    (naming the nearest known one), for one that totalorder decides itself, and for what librdkafka cannot do.
    """
    settings = plain_names(kafka)
    translated: Pairs = {}
    for name in settings:
        refuse_decided(name)
        translated |= _pairs(name, settings)
    return translated | {"bootstrap.servers": ",".join(server_list(bootstrap_servers))}


def _pairs(name: str, settings: Mapping[str, str]) -> Pairs:
    if name in SPECIAL:
        return SPECIAL[name](settings)
    if name in FILES:
        return {FILES[name]: _file(name, settings[name])}
    if name in IGNORED:
        return {}
    if name in REFUSED:
        raise SettingsError(f"kafka.{name} cannot be set: {REFUSED[name]}", remedy="Leave it out.")
    if name in SAME or name in OTHER_NAMES:
        return {OTHER_NAMES.get(name, name): settings[name]}
    near = difflib.get_close_matches(name, known_names(), n=1)
    raise SettingsError(
        f"kafka.{name} is no setting that is known here for reading events",
        remedy=f"Did you mean kafka.{near[0]}?" if near else "See the Java client's documentation for names.",
    )


def known_names() -> list[str]:
    """Every name that is taken, be it to no effect."""
    return sorted({*SAME, *OTHER_NAMES, *FILES, *IGNORED, *SPECIAL})


def _file(name: str, path: str) -> str:
    if not Path(path).is_file():
        raise SettingsError(f"There is no file {path} (for kafka.{name})", remedy="Correct its path.")
    return path


def _protocol(settings: Mapping[str, str]) -> Pairs:
    protocol = settings["security.protocol"].lower()
    if protocol not in PROTOCOLS:
        raise SettingsError(
            f"kafka.security.protocol={settings['security.protocol']!r} is not known here",
            remedy=f"Use one of {', '.join(PROTOCOLS).upper()}.",
        )
    return {"security.protocol": protocol}


def _mechanism(name: str) -> Callable[[Mapping[str, str]], Pairs]:
    def translate(settings: Mapping[str, str]) -> Pairs:
        if settings[name] not in MECHANISMS:
            raise SettingsError(
                f"kafka.{name}={settings[name]!r} is no login that librdkafka can do here",
                remedy=f"Use one of {', '.join(MECHANISMS)}.",
            )
        return {"sasl.mechanism": settings[name]}

    return translate


def _jaas(settings: Mapping[str, str]) -> Pairs:
    user, password = user_and_password(settings["sasl.jaas.config"])
    return {"sasl.username": user, "sasl.password": password}


def _trust_store(settings: Mapping[str, str]) -> Pairs:
    kind = _kind("truststore", settings)
    if kind != "PEM":
        raise SettingsError(
            f"kafka.ssl.truststore.type is {kind}, and librdkafka reads trusted certificates as PEM only",
            remedy="Export it as PEM (keytool -exportcert -rfc) and set kafka.ssl.truststore.type=PEM.",
        )
    location = settings.get("ssl.truststore.location")
    return {"ssl.ca.location": _file("ssl.truststore.location", location)} if location else {}


def _key_store(settings: Mapping[str, str]) -> Pairs:
    kind, location = _kind("keystore", settings), settings.get("ssl.keystore.location")
    if kind not in ("PEM", "PKCS12"):
        raise SettingsError(
            f"kafka.ssl.keystore.type is {kind}, and librdkafka reads PEM and PKCS12",
            remedy="Convert it (keytool -importkeystore -deststoretype PKCS12) and set kafka.ssl.keystore.type.",
        )
    if location is None:
        return {}
    path = _file("ssl.keystore.location", location)
    if kind == "PEM":
        return {"ssl.certificate.location": path, "ssl.key.location": path}
    password = settings.get("ssl.keystore.password")
    return {"ssl.keystore.location": path} | ({"ssl.keystore.password": password} if password else {})


def _kind(store: str, settings: Mapping[str, str]) -> str:
    """The stated type of a store, or the one that its name ends in; Java's default is JKS."""
    stated, location = settings.get(f"ssl.{store}.type"), settings.get(f"ssl.{store}.location", "")
    if stated is not None:
        return stated.upper()
    endings = {".pem": "PEM", ".crt": "PEM", ".cer": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12"}
    return endings.get(Path(location).suffix, "JKS")


def _host_check(settings: Mapping[str, str]) -> Pairs:
    algorithm = settings["ssl.endpoint.identification.algorithm"].lower()
    if algorithm not in ("https", "", "none"):
        raise SettingsError(
            f"kafka.ssl.endpoint.identification.algorithm={algorithm!r} is unknown",
            remedy="Use https, or leave it empty.",
        )
    return {"ssl.endpoint.identification.algorithm": algorithm or "none"}


def _checks_host(settings: Mapping[str, str]) -> Pairs:
    value = settings["ssl.check.hostname"].lower()
    if value not in ("true", "false"):
        raise SettingsError(f"kafka.ssl.check.hostname={value!r} is not true or false", remedy="Correct the value.")
    return {"ssl.endpoint.identification.algorithm": "https" if value == "true" else "none"}


def _timeout(settings: Mapping[str, str]) -> Pairs:
    value = settings["request.timeout.ms"]
    if not value.isdecimal():
        raise SettingsError(f"kafka.request.timeout.ms={value!r} is not a whole number", remedy="Correct the value.")
    return {"socket.timeout.ms": str(min(int(value), _MOST_TIMEOUT_MS))}


def _buffer(direction: str) -> Callable[[Mapping[str, str]], Pairs]:
    """Java's -1 leaves a socket's buffer to the system, as librdkafka's 0 does."""

    def translate(settings: Mapping[str, str]) -> Pairs:
        value = settings[f"{direction}.buffer.bytes"]
        return {f"socket.{direction}.buffer.bytes": "0" if value == "-1" else value}

    return translate


SPECIAL: Mapping[str, Callable[[Mapping[str, str]], Pairs]] = {
    "receive.buffer.bytes": _buffer("receive"),
    "request.timeout.ms": _timeout,
    "sasl.jaas.config": _jaas,
    "sasl.mechanism": _mechanism("sasl.mechanism"),
    "sasl.mechanisms": _mechanism("sasl.mechanisms"),
    "security.protocol": _protocol,
    "send.buffer.bytes": _buffer("send"),
    "ssl.check.hostname": _checks_host,
    "ssl.endpoint.identification.algorithm": _host_check,
    "ssl.keystore.location": _key_store,
    "ssl.keystore.password": _key_store,
    "ssl.keystore.type": _key_store,
    "ssl.truststore.location": _trust_store,
    "ssl.truststore.password": _trust_store,
    "ssl.truststore.type": _trust_store,
}
"""What takes more than another name: all settings in, librdkafka's pairs out."""
