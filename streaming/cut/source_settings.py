"""What the source is told when its query starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from totalorder.config import Settings
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.streaming.cut.ranges import Range, ReadPlan


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """The part of the job's settings that the source needs, as one text; `kafka` has the Java client's names, and
    `folder` is where the driver hands the domain's record over.
    """

    domain: str
    bootstrap_servers: str
    kafka: Mapping[str, str]
    topic_by: str
    folder: str
    max_events: int
    reading_tasks: int
    shards: int
    look_ms: float
    look_warn_ms: float
    look_patience_ms: float
    retires_deleted: bool
    topic_poll_s: float
    broker_timeout_s: float
    control_key_file: str | None = None

    @classmethod
    def of(cls, settings: Settings, folder: str) -> Self:
        """Of a query that hands records over in this folder."""
        return cls(
            domain=settings.domain,
            bootstrap_servers=settings.bootstrap_servers,
            kafka=settings.kafka,
            topic_by=settings.topic_by,
            folder=folder,
            max_events=settings.max_events_per_batch,
            reading_tasks=settings.reading_tasks,
            shards=settings.shards,
            look_ms=settings.look_ms,
            look_warn_ms=settings.look_warn_ms,
            look_patience_ms=settings.look_patience_ms,
            retires_deleted=settings.on_topic_deleted == "retire",
            topic_poll_s=settings.topic_poll_s,
            broker_timeout_s=settings.broker_timeout_s,
            control_key_file=settings.control_key_file,
        )

    def encode(self) -> str:
        """JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        """Reads `encode`, which came through Spark from the driver."""
        return cls(**json.loads(text))

    def plan(self, *, cut: int, topic_order: Sequence[str], ranges: Sequence[Range]) -> ReadPlan:
        """What one task is to read."""
        return ReadPlan(
            bootstrap_servers=self.bootstrap_servers,
            kafka=self.kafka,
            control=DomainTopics(domain=self.domain).control,
            topic_by=self.topic_by,
            cut=cut,
            topic_order=tuple(topic_order),
            ranges=tuple(ranges),
            silence_s=self.broker_timeout_s,
        )
