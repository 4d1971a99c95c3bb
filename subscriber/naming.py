"""Which pub/sub topic an event belongs to, and its checksum: the same rules as the sequencer's projection."""

import zlib
from operator import itemgetter

from totalorder.errors import WireError
from totalorder.sequencer.wire.limits import MAX_TOPIC_CHARS
from totalorder.subscriber.delivery.events import EventBlock
from totalorder.subscriber.transport import Record

_OFFSET, _VALUE = (itemgetter(Record._fields.index(name)) for name in ("offset", "value"))


def topic_of(record: Record, topic_by: str) -> str | None:
    """The pub/sub topic by `topic_by` ("topic", "key" or "header:NAME"); None when it cannot be told.

    A key or header names no topic when it is absent, null, empty, not UTF-8 or longer than the limit; of several
    headers of the name the last one counts.
    """
    if topic_by == "topic":
        return record.topic
    if topic_by == "key":
        return _named(record.key)
    if not topic_by.startswith("header:"):
        raise WireError(
            f"a grant says topic_by = {topic_by!r}, which is unknown here", remedy="Update totalorder on this side"
        )
    wanted = topic_by.removeprefix("header:")
    return _named(next((value for name, value in reversed(record.headers) if name == wanted), None))


def _named(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if 0 < len(text) <= MAX_TOPIC_CHARS else None


def block_of(records: list[Record], topic_by: str | None) -> EventBlock:
    """Records of one event partition for a machine; crc32 of a null value is 0. Without `topic_by` it has no topics."""
    topics: list[str | None] = []
    if topic_by == "topic":
        topics = [records[0].topic] * len(records)
    elif topic_by is not None:
        topics = [topic_of(record, topic_by) for record in records]
    values = list(map(_VALUE, records))
    try:
        crcs = list(map(zlib.crc32, values))
    except TypeError:
        crcs = [0 if value is None else zlib.crc32(value) for value in values]
    return EventBlock(offsets=list(map(_OFFSET, records)), topics=topics, crcs=crcs, handles=list(records))
