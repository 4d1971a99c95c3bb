"""The query: source, projection, shards, engine, sink."""

from collections.abc import Iterable, Mapping

from pyspark.sql import (
    Column,
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.config import Settings
from totalorder.sequencer.wire.signing import Signatures
from totalorder.streaming import session
from totalorder.streaming.cut import datasource
from totalorder.streaming.cut.batches import TIME_MS
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.handover import Handover
from totalorder.streaming.processor import FIGURES, OUTPUT, ShardPlan, ShardProcessor
from totalorder.streaming.progress import OBSERVED
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.shards import shard_keys
from totalorder.streaming.warmup import warm
from totalorder.streaming.writing import OWN_MAX_BYTES
from totalorder.streaming.written import Tail

SHARD_KEY = "shard_key"


def start_query(
    spark: SparkSession,
    settings: Settings,
    record: DomainRecord,
    *,
    handover: Handover,
    tails: Mapping[int, Tail],
    signatures: Signatures | None,
    checkpoint: str,
) -> StreamingQuery:
    """Starts the query over control and the event topics that the record names, and is told of later."""
    session.apply(spark, session.query_conf(settings))
    warm(spark)
    source = SourceSettings.of(settings, str(handover.folder))
    rows = datasource.read(spark, source)
    stamped_records = sequence(rows, settings, record, source=source, tails=tails, signatures=signatures)
    return (  # the sink takes the columns that it knows, and leaves the figures
        stamped_records.observe(OBSERVED, F.max(FIGURES).alias(FIGURES))
        .writeStream.format("kafka")
        .options(**sink_options(settings))
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
        .start()
    )


def sequence(
    rows: DataFrame,
    settings: Settings,
    record: DomainRecord,
    *,
    source: SourceSettings,
    tails: Mapping[int, Tail],
    signatures: Signatures | None,
) -> DataFrame:
    """The source's rows in, `processor.OUTPUT` out."""
    keys = shard_keys(settings.shards)
    plan = ShardPlan(
        config=record.engine_config(),
        shard_of={key: shard for shard, key in enumerate(keys)},
        starts=record.starts,
        source=source,
        tails=tails,
        fail_unroutable=settings.unroutable == "fail",
        signatures=signatures,
        is_recovered=record.recovered is not None,
        claim=record.claim,
    )
    if settings.shards == settings.reading_tasks == 1:  # one partition needs no shuffle: reading and stamping, one task
        rows = rows.coalesce(1)
    keyed = to_shards(rows.withColumn(TIME_MS, batch_time_ms()), keys)
    return keyed.groupBy(SHARD_KEY).transformWithStateInPandas(ShardProcessor(plan), OUTPUT, "update", "none")


def batch_time_ms() -> Column:
    """The batch's own time: from the write-ahead log, and the same when the batch runs again.

    Spark writes it into each batch's code as a constant, which would then be compiled for each batch. The function
    around it is interpreted, so that the code stays the same.
    """
    return F.unix_millis(F.get(F.transform(F.array(F.current_timestamp()), lambda time: time), F.lit(0)))


def to_shards(rows: DataFrame, keys: Iterable[int]) -> DataFrame:
    """Every row once for each shard, since every shard keeps all counters."""
    first, *others = (F.lit(key) for key in keys)
    return rows.withColumn(SHARD_KEY, F.explode(F.array(first, *others)) if others else first)


def sink_options(settings: Settings) -> dict[str, str]:
    """Options of the Kafka sink; its producer must lose nothing and keep the order within a partition."""
    options = {f"kafka.{key}": value for key, value in settings.kafka.items()}
    options.setdefault("kafka.compression.type", "zstd")
    options.setdefault("kafka.linger.ms", "0")
    options.setdefault("kafka.max.request.size", str(OWN_MAX_BYTES))
    return options | {
        "kafka.bootstrap.servers": settings.bootstrap_servers,
        "kafka.acks": "all",
        "kafka.enable.idempotence": "true",
    }
