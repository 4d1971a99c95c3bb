"""How many stages and tasks Spark makes of a batch."""

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession
from spark_shared import settings_for
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.streaming.runner import Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark]
BOUND_S = 150.0


def stages_of(spark: SparkSession, group: str) -> list[tuple[int, int]]:
    """How many stages each of a query's jobs had, and how many tasks the last of them; a job's group is the run of its
    query. Spark forgets older stages of a session that has had many.
    """
    tracker = spark.sparkContext.statusTracker()
    jobs = [job for at in sorted(tracker.getJobIdsForGroup(group)) if (job := tracker.getJobInfo(at)) is not None]
    last = [tracker.getStageInfo(max(job.stageIds)) for job in jobs]
    return [(len(job.stageIds), stage.numTasks) for job, stage in zip(jobs, last, strict=True) if stage is not None]


@pytest.mark.parametrize(("shards", "stages", "tasks"), [(1, 1, 1), (2, 2, 2)])
def test_one_shard_is_one_task_and_more_are_a_shuffle(
    shards: int,
    stages: int,
    tasks: int,
    broker: LocalBroker,
    spark: SparkSession,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = new_topic("a", partitions=2)
    settings = settings_for(unique_name("stages"), broker.bootstrap_servers, tmp_path, topics=(topic,), shards=shards)
    producer: KafkaProducer
    with Sequencer(settings, spark=spark) as sequencer, kafka_clients.producer(broker.bootstrap_servers) as producer:
        (query,) = spark.streams.active
        for partition in (0, 1):
            producer.send(topic, value=b"v", partition=partition)
        producer.flush()
        wait_until(lambda: sequencer.processed.events == 2, "2 events processed", bound_s=BOUND_S)
        mode = query._jsq.streamingQuery().sparkSessionForStream().conf().get("spark.sql.codegen.factoryMode")
        assert mode == "NO_CODEGEN", "small batches are interpreted"
    jobs = stages_of(spark, str(query.runId))
    assert jobs
    assert set(jobs) == {(stages, tasks)}, jobs
