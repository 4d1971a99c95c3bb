"""What Spark knows of the tasks of a query's batches: each task's time on its executor."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

_MOST_TASKS = 1_000


class TaskTime(NamedTuple):
    """Milliseconds of one task: all in all, and of processor time that Java's thread took; Python's is not in that."""

    ms: float
    java_ms: float


Stages = Sequence[Sequence[TaskTime]]
"""The tasks of each stage of a batch."""


def stage_times(spark: SparkSession, query: StreamingQuery) -> list[Stages]:
    """The tasks of each stage, by batch, oldest first; a batch's last stage is the stateful one."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in sorted(tracker.getJobIdsForGroup(str(query.runId)))]
    return [[_task_times(store, stage) for stage in sorted(job.stageIds)] for job in jobs if job is not None]


def _task_times(store: Any, stage: int) -> list[TaskTime]:
    tasks = store.taskList(stage, 0, _MOST_TASKS)
    metrics = [tasks.apply(index).taskMetrics() for index in range(tasks.size())]
    times = [(found.get().executorRunTime(), found.get().executorCpuTime()) for found in metrics if found.isDefined()]
    return [TaskTime(ms=run_ms, java_ms=processor_ns / 1e6) for run_ms, processor_ns in times]
