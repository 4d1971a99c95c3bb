"""What a domain is, as written beside its checkpoint when it began: fixed settings, starts, and the topics' ids."""

import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from totalorder.config import Settings
from totalorder.errors import StateError
from totalorder.sequencer.engine import EngineConfig
from totalorder.sequencer.stamps import Source

VERSION = 3
FIRST_INCARNATION = 1
FIXED = ("domain", "stamps_partitions", "shards", "min_subscriptions", "topic_by", "keyframe_every")
"""Settings that the checkpoint fixes."""


@dataclass(frozen=True, kw_only=True)
class DomainRecord:
    """`identity` is the checkpoint's random name; `starts` holds the first offset of each event partition that existed
    when the domain began, and never changes; `topic_ids` holds Kafka's UUID of every topic, events' and own. `claim` is
    the offset on control of the claim that gave the domain to this checkpoint; None as long as that is not known.
    """

    identity: str
    incarnation: int
    fixed: Mapping[str, Any]
    starts: Mapping[Source, int]
    topic_ids: Mapping[str, str]
    claim: int | None = None

    @classmethod
    def begin(cls, settings: Settings, *, starts: Mapping[Source, int], topic_ids: Mapping[str, str]) -> Self:
        """The record of a domain that begins now."""
        return cls(
            identity=secrets.token_hex(16),
            incarnation=FIRST_INCARNATION,
            fixed={name: getattr(settings, name) for name in FIXED},
            starts=dict(starts),
            topic_ids=dict(topic_ids),
        )

    def admitting(self, topic_ids: Mapping[str, str]) -> Self:
        """The same with more event topics; those are read from offset 0."""
        return replace(self, topic_ids={**self.topic_ids, **topic_ids})

    def engine_config(self) -> EngineConfig:
        """The engine's configuration, for shard 0."""
        return EngineConfig(identity=self.identity, incarnation=self.incarnation, shard=0, **self.fixed)

    def event_topics(self, own: Iterable[str]) -> frozenset[str]:
        """Names of the event topics that were admitted so far."""
        return frozenset(self.topic_ids) - frozenset(own)

    def encode(self) -> str:
        """JSON."""
        content = {
            "version": VERSION,
            "identity": self.identity,
            "incarnation": self.incarnation,
            "fixed": dict(self.fixed),
            "starts": sorted([*source, offset] for source, offset in self.starts.items()),
            "topic_ids": dict(sorted(self.topic_ids.items())),
            "claim": self.claim,
        }
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def decode(cls, text: str, where: str) -> Self:
        """Reads `encode`; StateError when it is damaged or of another version."""
        try:
            content = json.loads(text)
            version = content["version"]
            if version == VERSION:
                return cls(
                    identity=content["identity"],
                    incarnation=content["incarnation"],
                    fixed={name: content["fixed"][name] for name in FIXED},
                    starts={(str(topic), int(part)): int(offset) for topic, part, offset in content["starts"]},
                    topic_ids={str(name): str(topic_id) for name, topic_id in content["topic_ids"].items()},
                    claim=None if content.get("claim") is None else int(content["claim"]),
                )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(
                f"{where} is damaged ({type(error).__name__}: {error})", remedy="Restore the checkpoint from a copy"
            ) from None
        raise StateError(
            f"{where} has version {version!r}; this program reads version {VERSION}",
            remedy="Run the release that wrote it, or one whose CHANGELOG says that it converts this version",
        )
