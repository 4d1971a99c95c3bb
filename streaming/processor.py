"""The stateful group of one shard: frames in, `sequencer.step`, records for Kafka out."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

import pandas as pd
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, ValueState
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from totalorder.defects import defect_in
from totalorder.errors import Error, StateError
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.shards import with_counts
from totalorder.sequencer.snapshot import encode_parts
from totalorder.sequencer.state import (
    Cold,
    EngineConfig,
    State,
    decode_cold,
    decode_hot,
    encode_cold,
    encode_hot,
)
from totalorder.sequencer.wire.codec import WireRecord, encode_stamps
from totalorder.sequencer.wire.control import Retired, Skipped, answer_key, encode_answer
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.batches import CHUNK, TIME_MS, to_batch
from totalorder.streaming.cut.rows import Seed, chunks_of, seed_in
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.failures import STOPPED, WorkerFailure
from totalorder.streaming.written import Tail, require_agreement, require_reached

MAX_NAMED_UNROUTABLE = 20
"""Coordinates of one batch's unroutable events that are logged; all of them are counted."""
FIGURES = "figures"
"""Column beside the record: the figures of the batch as JSON in one row of shard 0, empty in all others."""

_STATE = StructType([StructField("bytes", BinaryType())])
_DIGEST_BYTES = 16
remembered: dict[tuple[str, int], tuple[bytes, Cold]] = {}
"""Digest and cold part that this worker has read last, by the checkpoint's identity and the shard."""
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
OUTPUT = StructType(
    [
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", ArrayType(_HEADER)),
        StructField(FIGURES, StringType()),
    ]
)


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """What the workers are told once.

    `config` is the engine's with shard 0; `shard_of` maps group keys to shards; `starts` are the offsets recorded when
    the domain began. `source` says how to reach Kafka for what a row tells to read. `tails` is what stamps held at
    start: a batch that is there and runs again must come out equal. `is_recovered`: the checkpoint's first batch brings
    the shards' states, and none begins without. `claim` is where on control the checkpoint has claimed the domain.
    """

    config: EngineConfig
    shard_of: Mapping[int, int]
    starts: Mapping[Source, int]
    source: SourceSettings
    tails: Mapping[int, Tail]
    fail_unroutable: bool
    signatures: Signatures | None = None
    is_recovered: bool = False
    claim: int | None = None


class ShardProcessor(StatefulProcessor):
    """Runs the engine over one shard's share of each micro-batch."""

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan
        self._topics = DomainTopics(domain=plan.config.domain)

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StateParts`."""
        self._value = handle.getValueState("part", _STATE)
        self._client: Any = handle._statefulProcessorApiClient

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Any],
        timerValues: Any,  # noqa: ARG002, N803
    ) -> Iterator[pd.DataFrame]:
        """One micro-batch of one shard; the chunks come in any order and any number of frames."""
        try:
            yield self._step(int(key[0]), rows)
        except Error as error:
            raise WorkerFailure(error) from error
        except AssertionError as error:
            if (defect := defect_in(error, stopped=STOPPED)) is None:
                raise
            raise WorkerFailure(defect) from error

    def _step(self, key: int, rows: Iterator[pd.DataFrame]) -> pd.DataFrame:
        shard, parts = self._plan.shard_of[key], StateParts(self._value, self._client, key)
        config = replace(self._plan.config, shard=shard)
        values = [
            (bytes(value), int(ms)) for frame in rows for value, ms in zip(frame[CHUNK], frame[TIME_MS], strict=True)
        ]
        seeds = [seed for value, _ in values if (seed := seed_in(value)) is not None]
        if seeds:
            self._plant([seed for seed in seeds if seed.shard == shard], config, parts)
            return _nothing()
        batch = received(values, config, self._topics.control, self._plan.source)
        if batch is None:
            return _nothing()
        state = self._load(config, parts)
        plan = self._plan
        after, effects = step(state, batch, plan.starts, signatures=plan.signatures, claimed_at=plan.claim)
        if after is state and effects.asked_at is None:  # the batch held claims alone, and is none
            return _nothing()
        if after is not state:
            self._take(state, after, effects, batch.time_ms, parts)
        records = to_records(effects, self._topics, after if effects.asked_at is not None else None)
        figures = _figures(state, after, effects) if shard == 0 else ""
        records[FIGURES] = [figures] + [""] * (len(records) - 1)  # every shard has at least one record a batch
        return records

    def _take(self, state: State, after: State, effects: Effects, time_ms: int, parts: "StateParts") -> None:
        """The state behind a batch is kept; StateError or Error where the batch may not be."""
        require_agreement(self._plan.tails, after.hot.batch, after.hot.digests, time_ms)
        if effects.unroutable and self._plan.fail_unroutable:
            raise Error(
                f"{len(effects.unroutable)} events name no pub/sub topic "
                f"(topic_by = {self._plan.config.topic_by!r}): {_coordinates(effects)}",
                remedy='Set unroutable = "skip" to leave such events out, or correct their producer',
            )
        self._save(after, parts, cold_changed=effects.cold_changed or state.hot.batch == 0)

    def _plant(self, seeds: Sequence[Seed], config: EngineConfig, parts: "StateParts") -> None:
        """Begins with what was recovered."""
        if len(seeds) != 1 or parts.hot() is not None:
            raise StateError(
                f"shard {config.shard} was given {len(seeds)} states to begin with, or has one",
                remedy="Run `totalorder recover` again, into an empty directory",
            )
        state = with_counts(State(hot=decode_hot(seeds[0].hot), cold=decode_cold(seeds[0].cold)))
        state.require(config)
        self._save(state, parts, cold_changed=True)

    def _load(self, config: EngineConfig, parts: "StateParts") -> State:
        state = self._saved(config, parts)
        if state is None and self._plan.is_recovered:
            raise _missing("whole")
        if state is None:
            state = initial_state(config)
        state.require(config)
        require_reached(self._plan.tails, state.hot.batch, f"shard {config.shard} of the checkpoint")
        require_agreement(self._plan.tails, state.hot.batch, state.hot.digests, None)
        return state

    def _saved(self, config: EngineConfig, parts: "StateParts") -> State | None:
        """The state as it was last written, None where there is none; StateError when a part is missing.

        Hot names the cold part that it belongs to: a worker that remembers that one does not ask Java for it.
        """
        hot = parts.hot()
        if hot is None and parts.cold() is None:
            return None
        if hot is None:
            raise _missing("hot")
        parts.cold_digest = hot[:_DIGEST_BYTES]
        return State(hot=decode_hot(hot[_DIGEST_BYTES:]), cold=self._cold_part(config, parts))

    def _cold_part(self, config: EngineConfig, parts: "StateParts") -> Cold:
        key = (config.identity, config.shard)
        known, cold_part = remembered.get(key, (b"", None))
        if cold_part is None or known != parts.cold_digest:
            data = parts.cold()
            if data is None or _digest_of(data) != parts.cold_digest:
                raise _missing("cold")
            cold_part = decode_cold(data)
            remembered[key] = parts.cold_digest, cold_part
        return cold_part

    def _save(self, after: State, parts: "StateParts", *, cold_changed: bool) -> None:
        if cold_changed:
            cold = encode_cold(after.cold)
            parts.save_cold(cold)
            parts.cold_digest = _digest_of(cold)
        parts.save_hot(parts.cold_digest + encode_hot(after.hot))


class StateParts:
    """The two parts of a shard's state: hot is written every batch, cold when names or subscriptions change.

    Java sets a state variable up anew for every batch, which costs more than all that is done with it, and a map costs
    twice what a value does (ADR 6). So there is one, a value: of the shard's grouping key it is the hot part, and of
    the key's complement, a negative number that no shard has, the cold one.
    """

    def __init__(self, value: ValueState, client: Any, key: int) -> None:
        self._value, self._client, self._key = value, client, key
        self.cold_digest = b""
        """Of the cold part that hot belongs to; empty before the first."""

    def hot(self) -> bytes | None:
        """As it was saved last, None before."""
        return self._read()

    def cold(self) -> bytes | None:
        """As it was saved last, None before."""
        with self._cold_key():
            return self._read()

    def save_hot(self, data: bytes) -> None:
        """Lasts from the batch's end on."""
        self._value.update((data,))

    def save_cold(self, data: bytes) -> None:
        """Lasts from the batch's end on."""
        with self._cold_key():
            self._value.update((data,))

    def _read(self) -> bytes | None:
        row = self._value.get()
        return None if row is None else bytes(row[0])

    @contextmanager
    def _cold_key(self) -> Iterator[None]:
        self._client.set_implicit_key((~self._key,))
        try:
            yield
        finally:
            self._client.set_implicit_key((self._key,))


def _digest_of(cold: bytes) -> bytes:
    return blake2b(cold, digest_size=_DIGEST_BYTES).digest()


def _missing(name: str) -> StateError:
    return StateError(
        f"the {name} state is missing, or of another batch than the other part",
        remedy="Restore the checkpoint from a copy, or make it anew by `totalorder recover`",
    )


def _nothing() -> pd.DataFrame:
    return pd.DataFrame(columns=OUTPUT.names)


def received(
    rows: Sequence[tuple[bytes, int]], config: EngineConfig, control_topic: str, source: SourceSettings
) -> Batch | None:
    """The engine's batch from rows and the batch's time beside each; None where they hold no record."""
    chunks = [chunk for value, _ in rows for chunk in chunks_of(value, source)]
    if not chunks:
        return None
    return to_batch(chunks, time_ms=rows[0][1], control_topic=control_topic, topic_by=config.topic_by)


def to_records(effects: Effects, topics: DomainTopics, told: State | None = None) -> pd.DataFrame:
    """Kafka records of a step as they are sent: answers, then stamps, then the state that is told, if any."""
    records: list[_Record] = [
        (topics.grants, 0, answer_key(answer), encode_answer(answer), []) for answer in effects.answers
    ]
    for stamped in effects.stamps:
        records += [_record(topics.stamps, stamped.partition, record) for record in encode_stamps(stamped)]
    records += [_record(topics.state, 0, record) for record in (encode_parts(told) if told is not None else ())]
    return pd.DataFrame(records, columns=["topic", "partition", "key", "value", "headers"])


_Record = tuple[str, int, bytes | None, bytes, list[dict[str, Any]]]


def _record(topic: str, partition: int, record: WireRecord) -> _Record:
    return topic, partition, None, record.value, [{"key": key, "value": value} for key, value in record.headers]


def _figures(state: State, after: State, effects: Effects) -> str:
    """What the driver is told of a batch; of one that is none, and tells the state alone, `is_batch` is false."""
    g = {"g_first": state.hot.g + 1, "g_last": after.hot.g}
    skipped = [loss for loss in _of_topics(effects, Skipped) if loss["lost"]]
    told = {"unroutable_at": _coordinates(effects), "retired": _of_topics(effects, Retired), "skipped": skipped}
    snapshot = {"is_batch": after is not state, "asked_at": effects.asked_at}
    return json.dumps({"batch": after.hot.batch, **g, **_counts(effects), **told, **snapshot})


def _counts(effects: Effects) -> dict[str, int]:
    return {
        "events": effects.events,
        "controls": effects.controls,
        "unroutable": len(effects.unroutable),
        "late": effects.late,
        "unsigned": effects.unsigned,
    }


def _of_topics(effects: Effects, kind: type[Retired | Skipped]) -> list[dict[str, Any]]:
    return [
        {"topic": answer.topic, "topic_id": answer.topic_id, "g": answer.g, "lost": _lost(answer)}
        for answer in effects.answers
        if isinstance(answer, kind)
    ]


def _lost(answer: Retired | Skipped) -> str:
    return ", ".join(f"{answer.topic}[{part}] {first} to {end - 1}" for part, (first, end) in answer.lost.items())


def _coordinates(effects: Effects) -> str:
    shown = effects.unroutable[:MAX_NAMED_UNROUTABLE]
    more = len(effects.unroutable) - len(shown)
    listed = ", ".join(f"{topic}[{partition}]@{offset}" for topic, partition, offset in shown)
    return f"{listed} and {more} more" if more else listed
