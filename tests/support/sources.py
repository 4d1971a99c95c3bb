"""Event partitions for tests."""

from totalorder.sequencer.wire.stamps import Source


def src(topic: str, partition: int = 0, topic_id: str | None = None) -> Source:
    """A partition of the Kafka topic of this name; without an id, of the first of that name: `a` with id `id-a`."""
    return Source(topic, f"id-{topic}" if topic_id is None else topic_id, partition)


def bare(topic: str, partition: int = 0) -> Source:
    """One of a row that says no id."""
    return Source(topic, "", partition)
