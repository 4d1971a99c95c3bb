"""What the preflight wants to know of the broker, and the making of topics; the thin part that talks to Kafka."""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import TopicAlreadyExistsError, UnknownTopicOrPartitionError

from totalorder import kafka_clients
from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable
from totalorder.kafka_errors import raise_for_code
from totalorder.slow import when_long
from totalorder.streaming.cut.questions import Questions
from totalorder.streaming.preflight import NewTopic, TopicFacts

_UNKNOWN_TOPIC = 3
_ATTEMPTS = 5
_POLICY = "cleanup.policy"
_OWN_KINDS = {"control", "stamps", "grants", "positions", "receipts", "cuts", "state"}


class Topics:
    """One connection for administration; errors of the broker come out as totalorder's."""

    def __init__(self, settings: Settings) -> None:
        """Connects; BrokerUnavailable when no broker answers within `broker_timeout_s`."""
        self._settings = settings
        self._timeout_ms = int(settings.broker_timeout_s * 1000)
        with when_long(lambda: _say_absent(settings)):
            self._admin: KafkaAdminClient = kafka_clients.admin(
                settings.bootstrap_servers,
                settings.kafka,
                connect_timeout_s=settings.broker_timeout_s,
                request_timeout_ms=self._timeout_ms,
            )

    def close(self) -> None:
        """Ends the connection."""
        self._admin.close()

    def names(self) -> list[str]:
        """Of all topics that exist."""
        return list(self._call(self._admin.list_topics))

    def selected_ids(self) -> dict[str, str]:
        """Kafka's ids of the event topics that the settings select and that exist."""
        present = self.names()
        left_out = owned_by_domains(present) if self._settings.topic_pattern else set()
        return self.ids(name for name in present if self._settings.selects(name) and name not in left_out)

    def ids(self, names: Iterable[str]) -> dict[str, str]:
        """Kafka's ids of those topics that exist."""
        return _ids(self._described(names))

    def gone(self, topic_ids: Mapping[str, str]) -> set[str]:
        """Names of the topics, given with Kafka's ids, that no broker knows under these, asked for a moment."""
        settings = self._settings
        asking = Questions(settings.bootstrap_servers, settings.kafka, timeout_s=settings.broker_timeout_s)
        with contextlib.closing(asking):
            return asking.gone(topic_ids)

    def policies(self, names: Iterable[str]) -> dict[str, str]:
        """Cleanup policies of topics that exist."""
        found = self._configs(sorted(names), [_POLICY])
        return {name: configs[_POLICY] for name, configs in found.items() if configs}

    def facts(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Facts of those topics that exist. BrokerUnavailable where they come and go all the time."""
        for _ in range(_ATTEMPTS):
            described = self._described(names)
            facts = self._facts_of(described)
            if facts is not None and _ids(self._described(names)) == _ids(described):
                return facts
        raise BrokerUnavailable(
            "topics are deleted and created all the time while they are looked at",
            remedy="Wait until that is over; starting again is safe",
        )

    def _facts_of(self, described: Mapping[str, Mapping[str, Any]]) -> dict[str, TopicFacts] | None:
        """None when one is gone already."""
        configs = self._configs(list(described))
        partitions = {
            name: sorted(part["partition_index"] for part in topic["partitions"]) for name, topic in described.items()
        }
        earliest, latest = self._offsets(partitions, OffsetSpec.EARLIEST), self._offsets(partitions, OffsetSpec.LATEST)
        if earliest is None or latest is None or not all(configs.values()):
            return None
        return {
            name: TopicFacts(
                topic_id=str(topic["topic_id"]), earliest=earliest[name], latest=latest[name], configs=configs[name]
            )
            for name, topic in described.items()
        }

    def create(self, topics: Iterable[NewTopic]) -> None:
        """Creates topics and waits until the broker knows them; one that another sequencer has just made will do."""
        wanted = {
            topic.name: {
                "num_partitions": topic.partitions,
                "replication_factor": self._settings.topic_settings.replication_factor,
                "configs": dict(topic.configs),
            }
            for topic in topics
        }
        if wanted:
            self._call(self._create, wanted)

    def trim(self, name: str, before: int) -> None:
        """Removes the records of a topic of one partition that stand before an offset."""
        self._call(self._admin.delete_records, {TopicPartition(name, 0): before})

    def _create(self, wanted: Mapping[str, Any]) -> None:
        for topic in self._admin.create_topics(wanted, raise_errors=False)["topics"]:
            if topic["error_code"] != TopicAlreadyExistsError.errno:
                raise_for_code(topic["error_code"], topic["error_message"] or f"topic {topic['name']}")
        self._admin.wait_for_topics(list(wanted))

    def _described(self, names: Iterable[str]) -> dict[str, dict[str, Any]]:
        wanted = sorted(set(names))
        found: dict[str, dict[str, Any]] = {}
        for topic in self._call(self._admin.describe_topics, wanted) if wanted else []:
            if topic["error_code"] != _UNKNOWN_TOPIC:
                self._call(raise_for_code, topic["error_code"], f"describing topic {topic['name']}")
                found[topic["name"]] = topic
        return found

    def _configs(self, names: list[str], keys: list[str] | None = None) -> dict[str, dict[str, str]]:
        """Settings of topics that exist, all of them or those with these keys."""
        if not names:
            return {}
        resources = [ConfigResource(ConfigResourceType.TOPIC, name, keys) for name in names]
        tables = self._call(self._admin.describe_configs, resources, config_filter="all")["topic"]
        return {name: {key: entry["value"] for key, entry in tables[name].items()} for name in names}

    def _offsets(self, partitions: Mapping[str, list[int]], spec: Any) -> dict[str, dict[int, int]] | None:
        wanted = {TopicPartition(name, part): spec for name, parts in partitions.items() for part in parts}
        answered = self._call(self._listed, wanted) if wanted else {}
        if answered is None:
            return None
        return {
            name: {part: answered[TopicPartition(name, part)].offset for part in parts}
            for name, parts in partitions.items()
        }

    def _listed(self, wanted: Mapping[TopicPartition, Any]) -> Any:
        """None when a partition is not there."""
        try:
            # Committed ends, as all that is compared with them: behind an open transaction nothing is read.
            return self._admin.list_partition_offsets(wanted, "read_committed")
        except UnknownTopicOrPartitionError:
            return None

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with kafka_clients.kafka_errors(self._settings.bootstrap_servers):
            return function(*args, **kwargs)


def _ids(described: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {name: topic["topic_id"] for name, topic in described.items()}


def _say_absent(settings: Settings) -> None:
    """One that is starting is still waited for."""
    structlog.get_logger().warning(
        "no broker yet", bootstrap_servers=settings.bootstrap_servers, waiting_up_to_s=settings.broker_timeout_s
    )


def owned_by_domains(names: Iterable[str]) -> set[str]:
    """Names that look like the own topics of a domain, this one or another: `X.stamps` beside `X.control`, say.

    A wide pattern would otherwise take another domain's stamps for events.
    """
    families: dict[str, set[str]] = {}
    for name in names:
        stem, _, kind = name.rpartition(".")
        if stem and kind in _OWN_KINDS:
            families.setdefault(stem, set()).add(name)
    return {name for family in families.values() if len(family) > 1 for name in family}
