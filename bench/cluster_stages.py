"""What Spark knows of the tasks of a query's batches: each stage's time on its executors."""

from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_MOST_TASKS = 1_000


def stage_times(spark: SparkSession, query: StreamingQuery) -> list[list[list[int]]]:
    """Milliseconds of the tasks of each stage, by batch, oldest first; a batch's last stage is the stateful one."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(str(query.runId)))]
    return [[_task_ms(store, stage) for stage in sorted(job.stageIds)] for job in jobs if job is not None]


def _task_ms(store: Any, stage: int) -> list[int]:
    tasks = store.taskList(stage, 0, _MOST_TASKS)
    metrics = [tasks.apply(index).taskMetrics() for index in range(tasks.size())]
    return [found.get().executorRunTime() for found in metrics if found.isDefined()]
