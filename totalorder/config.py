"""The sequencer's settings: TOML file < environment (`TOTALORDER_…`) < flags, as one typed and frozen model.

Every fault is a SettingsError that names the setting, the reason and the remedy, for an unknown key the nearest one.
"""

import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.limits import MAX_SHARDS, MAX_STAMPS_PARTITIONS
from totalorder.sequencer.wire.names import DomainTopics

ENV_PREFIX = "TOTALORDER_"
DAY_MS = 86_400_000
_OTHER_VARIABLES = ("cache", "ivy_settings")
"""What is said by environment variables alone."""
_SLIP = 0.8
"""Likeness from which a name counts as a misspelt one: two letters changed places in a name of five, the shortest."""

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_BY = re.compile(r"topic|key|header:.+", re.DOTALL)
_NO_TOPICS = "the setting topics (or else topic_pattern) is missing"
_OWN_SETTING = "totalorder sets it itself"
_REFUSED_KAFKA = {
    "group.id": "with it Spark may read what another reader of the group has committed: events would be missed",
    "bootstrap.servers": "it is the setting bootstrap_servers",
    "isolation.level": "aborted records must never be stamped",
    "auto.offset.reset": "the offsets to read are in the checkpoint",
    "enable.auto.commit": "the offsets to read are in the checkpoint",
    "key.deserializer": _OWN_SETTING,
    "value.deserializer": _OWN_SETTING,
    "key.serializer": _OWN_SETTING,
    "value.serializer": _OWN_SETTING,
    "interceptor.classes": "an interceptor may change what is read",
    "transactional.id": "Spark's sink does not take part in transactions",
    "acks": "a stamp that a broker may forget is no stamp",
    "enable.idempotence": "without it the producer may change the order of records",
}


# pydantic's kinds of faults in a user's words; what stands in braces is the fault's own.
_WHOLE, _NUMBER, _TABLE = "must be a whole number", "must be a number", "must be a table of names and values"
_REASONS = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), _WHOLE),
    **dict.fromkeys(("float_parsing", "float_type"), _NUMBER),
    **dict.fromkeys(("bool_parsing", "bool_type"), "must be true or false"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), _TABLE),
    "string_type": "must be text",
    "tuple_type": "must be a list of names",
    "literal_error": "must be {expected}",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "extra_forbidden": "there is no such setting",
    "value_error": "{error}",
}


class TopicSettings(BaseModel):
    """How the domain's own topics are made; it has no effect on topics that exist."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    replication_factor: int = Field(default=-1, ge=-1, le=32_767)
    """-1: the broker's default."""
    min_insync_replicas: int | None = Field(default=None, ge=1)
    stamps_retention_ms: int = Field(default=14 * DAY_MS, ge=-1)
    """How long stamps are kept (-1: for ever). Keep it longer than the retention of every event topic."""

    @field_validator("replication_factor")
    @classmethod
    def _replicas(cls, value: int) -> int:
        if value == 0:
            raise ValueError("must be -1 (the broker's default) or at least 1")
        return value


class Settings(BaseSettings):
    """Everything that the sequencer job can be told."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    domain: str = "totalorder"
    """The universe of order; prefix of its own topics."""
    bootstrap_servers: str = "localhost:9092"
    topics: Annotated[tuple[str, ...], NoDecode] = ()
    """Event topics by name; or else `topic_pattern`."""
    topic_pattern: str | None = None
    """Regular expression that the whole name of an event topic matches; new topics that match are admitted."""
    topic_by: str = "topic"
    """What names an event's pub/sub topic: "topic" (the Kafka topic), "key" or "header:NAME"."""
    topic_order: Annotated[tuple[str, ...], NoDecode] = ()
    """Event topics of which the earlier one comes first where looks and record times leave it open."""
    checkpoint_dir: str
    """Where the job's state lives: a local directory (locked while the job runs) or a Hadoop URI."""
    min_subscriptions: int = Field(default=1, ge=1, le=2)
    """m of the sequencing groups."""
    shards: int = Field(default=1, ge=1, le=MAX_SHARDS)
    stamps_partitions: int = Field(default=4, ge=1, le=MAX_STAMPS_PARTITIONS)
    keyframe_every: int = Field(default=1024, ge=1)
    trigger_ms: int = Field(default=0, ge=0)
    """Interval of micro-batches; 0: the next one begins when there is something to do."""
    starting_offsets: Literal["earliest", "latest"] = "earliest"
    """Where a new domain begins; later starts go on where the last one stopped."""
    unroutable: Literal["skip", "fail"] = "skip"
    """What to do about an event whose pub/sub topic cannot be told: log and count it, or stop."""
    on_topic_deleted: Literal["retire", "stop"] = "retire"
    """What to do about an event topic that was deleted: go on without it, and with one that is created again under its
    name as another topic; or stop. What was not stamped of it is lost either way, and told."""
    on_data_loss: Literal["fail", "record"] = "fail"
    """What to do where retention has removed events before they were stamped: stop; or go on, and give what is lost a
    place in the order, so that every subscriber is told."""
    max_events_per_batch: int = Field(default=100_000, ge=1, le=10_000_000)
    reading_tasks: int = Field(default=1, ge=1, le=256)
    """How many tasks read a large batch from Kafka; with more than one, a shuffle follows them."""
    look_ms: float = Field(default=5.0, ge=1, le=10_000)
    """How often, at most, the ends of all partitions are looked at; what one look sees and the one before did not is
    a slice of the order. Looks are fewer where they would take too much of a core, and in an idle domain."""
    look_warn_ms: float = Field(default=250.0, gt=0)
    """A longer look, with the pause before it, is told in the log."""
    look_patience_ms: float = Field(default=10_000.0, ge=0, le=600_000)
    """How long looks wait for a broker that does not answer before its partitions are left out of them."""
    topic_poll_s: float = Field(default=5.0, gt=0, le=86_400)
    """How often topics are looked at: new ones that match, and recreated ones."""
    broker_timeout_s: float = Field(default=15.0, gt=0, le=3_600)
    """How long a broker may take to answer before it counts as absent."""
    standstill_timeout_s: float = Field(default=300.0, ge=5, le=604_800)
    """How long nothing of the job may move, while it has something to do, before it ends: a process that is stopped, a
    call without an answer. It is told long before."""
    fast_checkpoint_fs: bool | None = None
    """Write checkpoints without a forked process for each file; by default on a local master with a local directory."""
    master: str = "local[2]"
    """Spark master, where spark-submit gives none."""
    log_format: Literal["console", "json"] = "console"
    verbose: bool = False
    """A log line for each batch; else a summary every few seconds."""
    control_key_file: str | None = None
    """A file with the domain's control keys, one a line: with it requests on control must be signed with one of them.
    The first is the one that the job itself signs with."""
    topic_settings: TopicSettings = TopicSettings()
    kafka: dict[str, str] = {}
    """Passed to every Kafka client, in the names of the Java client, such as `security.protocol`."""
    spark: dict[str, str] = {}
    """Passed to Spark, such as `spark.driver.memory`."""

    @field_validator("topics", "topic_order", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """An environment variable or a flag gives one text with commas."""
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value

    @field_validator("topics", "topic_order")
    @classmethod
    def _topic_names(cls, value: tuple[str, ...], field: ValidationInfo) -> tuple[str, ...]:
        hint = "; patterns are for topic_pattern" if field.field_name == "topics" else ""
        for name in value:
            if not _TOPIC.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"{name!r} is not the name of a Kafka topic{hint}")
        if len(set(value)) < len(value):
            raise ValueError("a topic stands twice")
        return value

    @field_validator("topic_pattern")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"not a regular expression: {error}") from None
        return value

    @field_validator("topic_by")
    @classmethod
    def _by(cls, value: str) -> str:
        if not _TOPIC_BY.fullmatch(value):
            raise ValueError('must be "topic", "key" or "header:NAME"')
        return value

    @field_validator("kafka", "spark", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        """TOML has numbers and booleans; Kafka and Spark know texts."""
        return {key: _text(entry) for key, entry in value.items()} if isinstance(value, Mapping) else value

    @field_validator("kafka")
    @classmethod
    def _kafka(cls, value: dict[str, str]) -> dict[str, str]:
        plain = {key.removeprefix("kafka."): entry for key, entry in value.items()}
        for key in plain:
            if reason := _REFUSED_KAFKA.get(key):
                raise ValueError(f"{key} cannot be set: {reason}")
        if plain:
            from totalorder.kafka_settings import check_for_java  # here: without such settings nothing needs Kafka yet

            try:
                check_for_java(plain)
            except SettingsError as error:
                raise ValueError(error) from None
        return plain

    @model_validator(mode="after")
    def _together(self) -> "Settings":
        own = DomainTopics(domain=self.domain).own()
        if not (self.topics or self.topic_pattern):
            raise ValueError(_NO_TOPICS)
        if self.topics and self.topic_pattern:
            raise ValueError("give either topics or topic_pattern, and not both")
        if mine := sorted(own.intersection(self.topics)):
            raise ValueError(f"topics: {mine[0]} is the domain's own topic and cannot be an event topic")
        if unknown := [name for name in self.topic_order if not self.selects(name)]:
            raise ValueError(f"topic_order: {unknown[0]} is none of the event topics")
        if self.shards > self.stamps_partitions:
            raise ValueError(f"shards ({self.shards}) cannot be more than stamps_partitions ({self.stamps_partitions})")
        return self

    @property
    def own_topics(self) -> DomainTopics:
        """Names of the domain's own topics."""
        return DomainTopics(domain=self.domain)

    @property
    def checkpoint_is_local(self) -> bool:
        """Whether the checkpoint is a directory of this machine, and no URI of a shared store."""
        return "://" not in self.checkpoint_dir

    def selects(self, topic: str) -> bool:
        """Whether a Kafka topic is one of the event topics."""
        if topic in self.own_topics.own() or topic.startswith("__"):
            return False
        if self.topic_pattern is None:
            return topic in self.topics
        return re.fullmatch(self.topic_pattern, topic) is not None


S = TypeVar("S", bound=BaseSettings)


def load_settings(
    config: Path | None = None, flags: Mapping[str, Any] | None = None, *, command: str = "sequence"
) -> Settings:
    """The sequencer's settings, as one of its commands is given them; see `load`."""
    return load(Settings, config, flags or {}, command=command)


def load(model: type[S], config: Path | None, flags: Mapping[str, Any], *, command: str) -> S:
    """Settings from a TOML file, the environment and flags, the later ones winning; a flag that is None was not given.

    `command` is the one that takes them. Raises SettingsError.
    """
    table = _read(config) if config else {}
    _refuse_unknown(table, model.model_fields, f"in {config}")
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            _refuse_unknown(table.get(name, {}), field.annotation.model_fields, f"in {config}, [{name}]")
    refuse_misspelt_environment(model)
    given = {key: value for key, value in flags.items() if value is not None}
    reading = _reading(model, environment=True, table=table)
    return _checked(reading, given, lambda place: _origin(place, given, table, config), command)


def make_settings(**values: Any) -> Settings:
    """Settings from values alone, for programs and tests; SettingsError when they do not fit."""
    _refuse_unknown(values, Settings.model_fields, "among the values given")
    return _checked(_reading(Settings, environment=False, table={}), values)


def _reading(model: type[S], *, environment: bool, table: Mapping[str, Any]) -> type[S]:
    """The model with its sources: values given, then the environment if wanted, then a table."""

    class Read(model):  # type: ignore[valid-type, misc]
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            lowest = InitSettingsSource(settings_cls, init_kwargs=dict(table))
            return (init_settings, env_settings, lowest) if environment else (init_settings, lowest)

    return Read


def _checked(
    model: type[S],
    values: Mapping[str, Any],
    origin: Callable[[tuple[str, ...]], str] = ".".join,
    command: str = "sequence",
) -> S:
    """`origin` tells what a user wrote to set the value at this place."""
    try:
        return model(**values)
    except ValidationError as error:
        faults = "; ".join(_fault(fault, origin, model) for fault in error.errors())
        raise SettingsError(faults, remedy=f"`totalorder {command} --help` lists the settings") from None
    except ValueError as error:  # pydantic-settings: an environment variable that should hold JSON
        field = re.search(r'field "(\w+)"', str(error))
        what = f"{ENV_PREFIX}{field[1].upper()} is not JSON" if field else str(error)
        raise SettingsError(what, remedy='A table in the environment is written like {"name": "value"}') from None


def _fault(fault: Any, origin: Callable[[tuple[str, ...]], str], model: type[BaseSettings]) -> str:
    place, given = tuple(str(part) for part in fault["loc"]), fault["input"]
    if fault["type"] == "missing":
        topics = not issubclass(model, Settings) or given.get("topics") or given.get("topic_pattern")
        return f"the setting {'.'.join(place)} is missing{'' if topics else f'; {_NO_TOPICS}'}"
    template = _REASONS.get(fault["type"])
    reason = template.format(**fault.get("ctx", {})) if template else str(fault["msg"])
    shown = f" (given: {given!r})" if isinstance(given, str | int | float) else ""
    return f"{origin(place)}: {reason}{shown}" if place else reason


def _origin(place: tuple[str, ...], flags: Mapping[str, Any], table: Mapping[str, Any], config: Path | None) -> str:
    """The flag, the environment variable or the key of the file, whichever wins."""
    if _holds(flags, place):
        return f"--{place[1 if place[0] == 'topic_settings' else 0].replace('_', '-')}"
    written = {name.upper(): name for name in os.environ}
    if own := written.get(f"{ENV_PREFIX}{'__'.join(place[:2])}".upper()):
        return own
    if _holds(table, place):
        return f"{'.'.join(place)} in {config}"
    whole = written.get(f"{ENV_PREFIX}{place[0]}".upper())
    return f"{'.'.join(place[1:])} in {whole}" if whole else ".".join(place)


def _holds(table: Mapping[str, Any], place: tuple[str, ...]) -> bool:
    inner = table.get(place[0])
    return inner is not None and (len(place) == 1 or not isinstance(inner, Mapping) or place[1] in inner)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"the settings file {path} is not TOML: {error}") from None


def _refuse_unknown(table: object, known: Iterable[str], where: str) -> None:
    if not isinstance(table, Mapping):
        return  # pydantic says what is wrong with it
    for key in table:
        if key not in known:
            raise SettingsError(f"unknown setting {key!r} {where}", remedy=_nearest(str(key), known))


def refuse_misspelt_environment(model: type[BaseSettings]) -> None:
    """Other programs may have TOTALORDER_… variables of their own, so only what looks like a slip is refused: of the
    name of a setting of the sequencer or of `model`. SettingsError.
    """
    known = {**Settings.model_fields, **model.model_fields, **dict.fromkeys(_OTHER_VARIABLES)}
    for name in sorted(os.environ):
        if not name.upper().startswith(ENV_PREFIX):
            continue
        key = name[len(ENV_PREFIX) :].lower().split("__")[0]
        close = get_close_matches(key, known, 1, _SLIP)
        if close and key not in known:
            raise SettingsError(
                f"the environment variable {name} names no setting",
                remedy=f"Write {ENV_PREFIX}{close[0].upper()}, or unset it",
            )


def _nearest(key: str, known: Iterable[str]) -> str:
    close = get_close_matches(key.replace("-", "_").lower(), list(known), 1, 0.0)
    return f"The nearest one that exists is {close[0]!r}"


def _text(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value
