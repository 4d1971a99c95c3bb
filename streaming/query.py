"""The query: source, projection, shards, engine, sink."""

from collections.abc import Iterable, Mapping

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812
)
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.config import Settings
from totalorder.sequencer.stamps import Source
from totalorder.streaming import session, source
from totalorder.streaming.preflight import OWN_MAX_BYTES
from totalorder.streaming.processor import FIGURES, OUTPUT, ShardPlan, ShardProcessor
from totalorder.streaming.progress import OBSERVED
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.shards import shard_keys
from totalorder.streaming.warmup import warm
from totalorder.streaming.written import Tail


def start_query(
    spark: SparkSession,
    settings: Settings,
    record: DomainRecord,
    *,
    topics: Iterable[str],
    starts: Mapping[Source, int],
    tails: Mapping[int, Tail],
    checkpoint: str,
) -> StreamingQuery:
    """Starts the query over the event topics and control; `starts` counts only for a checkpoint without a batch."""
    session.apply(spark, session.query_conf(settings))
    warm(spark)
    read = [*topics, settings.own_topics.control]
    records = source.read(spark, source.reader_options(settings, read, starts))
    stamped_records = sequence(records, settings, record, tails)
    return (  # the sink takes the columns that it knows, and leaves the figures
        stamped_records.observe(OBSERVED, F.max(FIGURES).alias(FIGURES))
        .writeStream.format("kafka")
        .options(**sink_options(settings))
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(processingTime=f"{settings.trigger_ms} milliseconds")
        .start()
    )


def sequence(records: DataFrame, settings: Settings, record: DomainRecord, tails: Mapping[int, Tail]) -> DataFrame:
    """Kafka records in, `processor.OUTPUT` out."""
    keys = shard_keys(settings.shards)
    plan = ShardPlan(
        config=record.engine_config(),
        shard_of={key: shard for shard, key in enumerate(keys)},
        starts=record.starts,
        tails=tails,
        fail_unroutable=settings.unroutable == "fail",
    )
    if settings.shards == 1:  # one partition needs no shuffle: the stateful task reads for itself, and projects once
        records = records.coalesce(1)
    rows = source.to_shards(source.project(records, settings), keys)
    return rows.groupBy(source.SHARD_KEY).transformWithStateInPandas(ShardProcessor(plan), OUTPUT, "update", "none")


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
