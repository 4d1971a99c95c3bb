"""Parked events: what is written to a dead-letter topic in the place of an event that its handler cannot take.

The record's key names event and subscriber, so that parking again what was parked before a crash replaces it, also for
compaction; a record without a value takes back what stands under its key. docs/formats.md has every byte.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from totalorder.errors import BrokerUnavailable, Error, SettingsError, WireError
from totalorder.sequencer.wire.budget import parse_json
from totalorder.sequencer.wire.names import DomainTopics, stamps_partition
from totalorder.sequencer.wire.values import number, text
from totalorder.subscriber.event import Event, Lost, place, told
from totalorder.subscriber.seeing import LOG
from totalorder.subscriber.transport import Partition, Record, Transport

VERSION = 1
HEADER, KEY_HEADER = "totalorder.parked", "totalorder.key"
_MOST_BYTES = 1 << 20
"""Of the header, as of a record: names and the error's text are bounded, and there is a number for each null header."""
Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, kw_only=True)
class About:
    """What the header says. `id` is the subscriber's; the position is that of Event; times are ms since 1970."""

    domain: str
    id: str
    g: int
    n: int
    topic: str
    kafka_topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    attempts: int
    error: str
    parked_ms: int

    @property
    def key(self) -> bytes:
        """Of the record, and of the one that takes it back."""
        return "/".join((self.id, self.kafka_topic, self.topic_id, str(self.partition), str(self.offset))).encode()


_TEXTS = ("domain", "id", "topic", "kafka_topic", "topic_id", "error")


@dataclass(frozen=True, kw_only=True)
class Parked:
    """A parked event: key, value and headers are the event's own."""

    about: About
    key: bytes | None
    value: bytes | None
    headers: Headers

    def written(self) -> tuple[bytes, list[tuple[str, bytes]]]:
        """Value and headers of its record.

        A value that is null would take back, and kafka-python writes no header that is: both are written empty.
        """
        given = (*self.headers, (KEY_HEADER, self.key))
        nulls = [at for at, (_, value) in enumerate(given) if value is None]
        head = {"v": VERSION, **asdict(self.about), "null_value": self.value is None, "null_headers": nulls}
        packed = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()
        return self.value or b"", [*((name, value or b"") for name, value in given), (HEADER, packed)]

    @classmethod
    def read(cls, record: Record) -> "Parked":
        """Of a record that has a value; WireError, with the reason, for one that is none of ours."""
        try:
            return cls._read(record)
        except ValueError as error:
            raise WireError(f"no parked event: {error}") from None

    @classmethod
    def _read(cls, record: Record) -> "Parked":
        if len(record.headers) < 2 or [name for name, _ in record.headers[-2:]] != [KEY_HEADER, HEADER]:
            raise ValueError(f"its last headers are not {KEY_HEADER} and {HEADER}")
        head = parse_json(record.headers[-1][1] or b"", _MOST_BYTES)
        if not isinstance(head, dict) or head.get("v") != VERSION:
            raise ValueError(f"its header {HEADER} is not of version {VERSION}")
        about = _about(head)
        if record.key != about.key:
            raise ValueError("its key is another event's")
        nulls = _nulls(head, record)
        given = [(name, None if at in nulls else value) for at, (name, value) in enumerate(record.headers[:-1])]
        value = None if head["null_value"] else record.value
        return cls(about=about, key=given[-1][1], value=value, headers=tuple(given[:-1]))


def _nulls(head: dict[str, Any], record: Record) -> set[int]:
    """The headers that were null. ValueError where these, or the value, are not as empty as is said of them."""
    is_null, nulls = head.get("null_value"), head.get("null_headers")
    if type(is_null) is not bool or not isinstance(nulls, list) or not all(type(at) is int for at in nulls):
        raise ValueError(f"its header {HEADER} does not say what was null")
    written = dict(enumerate(value for _, value in record.headers[:-1]))
    if (is_null and record.value) or any(written.get(at) != b"" for at in nulls):
        raise ValueError(f"its header {HEADER} says that something was null which is not empty")
    return set(nulls)


def _about(head: dict[str, Any]) -> About:
    try:
        values = {name: text(head[name]) for name in _TEXTS}
        numbers = {name: number(head[name]) for name in About.__dataclass_fields__ if name not in _TEXTS}
    except KeyError as error:
        raise ValueError(f"its header {HEADER} says nothing of {error}") from None
    return About(**values, **numbers)  # type: ignore[arg-type]


class Parking:
    """Writes the events of one subscriber that are parked, all to one partition, so that they stay in order."""

    def __init__(self, transport: Transport, *, domain: str, id: str, wall_clock: Callable[[], float]) -> None:  # noqa: A002
        self._transport, self._domain, self._id, self._wall_clock = transport, domain, id, wall_clock
        self._at: Partition | None = None

    def open(self, topic: str, may_read: Callable[[str], bool]) -> None:
        """The topic to park on from now on; SettingsError for one that cannot be it, as one that the subscriber reads,
        or may come to read.
        """
        if not isinstance(topic, str) or not topic:
            raise SettingsError(f"park is {topic!r}", remedy="Give the name of a Kafka topic")
        if may_read(topic) or topic in DomainTopics(domain=self._domain).own():
            raise SettingsError(
                f"park is {topic!r}, which the subscriber reads, or the domain writes", remedy="Give a topic of its own"
            )
        count = self._transport.partitions(topic)
        if not count:
            raise SettingsError(
                f"there is no Kafka topic {topic!r} to park on", remedy=f"totalorder parked create {topic}"
            )
        self._check_lasts(topic)
        self._at = Partition(topic, stamps_partition(self._id, count))

    def _check_lasts(self, topic: str) -> None:
        """SettingsError for a topic that is not compacted alone. Where that may not be seen, a word says so.

        One that is has no events: no sequencer reads it.
        """
        cleanup = self._transport.cleanup(topic)
        if cleanup is None:
            LOG.warning(
                "ACLs hide the settings of Kafka topic %r: if it is not compacted, what is parked there expires", topic
            )
        elif cleanup != {"compact"}:
            raise SettingsError(
                f"park is {topic!r}, which is not compacted (cleanup.policy={','.join(sorted(cleanup))}): it has "
                "events of its own, or what is parked there expires unseen",
                remedy="Give one that is made for it: totalorder parked create NAME. Never compact a topic of events",
            )

    def park(self, event: Event | Lost, error: Exception, attempts: int) -> str:
        """Returns the place when it is durable there."""
        assert self._at is not None, "it is opened before"
        assert isinstance(event, Event), "a notice of a loss is not parked"
        names = ("g", "n", "topic", "kafka_topic", "topic_id", "partition", "offset", "timestamp_ms")
        about = About(
            domain=self._domain,
            id=self._id,
            attempts=attempts,
            error=told(error),
            parked_ms=int(self._wall_clock() * 1000),
            **{name: getattr(event, name) for name in names},
        )
        parked = Parked(about=about, key=event.key, value=event.value, headers=event.headers)
        value, headers = parked.written()
        try:
            offset = self._transport.send(self._at, about.key, value, headers=headers)
        except BrokerUnavailable:
            raise
        except Error as refused:
            raise Error(
                f"{place(event)} could not be parked on {self._at.topic}: {refused.what}",
                remedy="It is not acknowledged. A parked record is up to some kB larger than its event: raise the "
                "topic's max.message.bytes",
            ) from refused
        return f"{self._at.topic}[{self._at.number}]@{offset}"
