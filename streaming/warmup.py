"""What must have happened before a query is ready: Spark's Python workers have answered, with the kernel compiled."""

from typing import Any

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import IntegerType
from pyspark.sql.udf import _wrap_function

from totalorder.sequencer import kernel
from totalorder.slow import when_long

COMPILING = "compiling the stamping kernel, once on this machine"
STARTING = "Python workers take long to start"
_STATE_WORKER = "pyspark.sql.streaming.transform_with_state_driver_worker"


def warm(spark: SparkSession) -> None:
    """Has every core's Python compile the kernel, or load it, before a batch waits for it."""
    cores = spark.sparkContext.defaultParallelism
    word = STARTING if is_kept() else COMPILING
    with when_long(lambda: structlog.get_logger().info(word)):
        spark.sparkContext.range(0, cores, numSlices=cores).foreach(lambda _: kernel.warm())


def is_kept() -> bool:
    """Whether an earlier process has left the compiled kernel on this machine's disk."""
    caches = [getattr(function, "_cache", None) for function in (kernel.stamp_while_room, kernel.gather_into)]
    files = [getattr(cache, "_cache_file", None) for cache in caches]  # without a folder to write to there is none
    return all(file is not None and bool(file._load_index()) for file in files)


def await_worker(spark: SparkSession, query: StreamingQuery) -> None:
    """Returns when the Python process that each query begins with has answered; raises what Spark does of one that
    has not within Spark's own 10 s.

    A batch begins with it. A query that has found nothing to do would meet it with its first event only: then one is
    started here, and asked.
    """
    progress = query.lastProgress
    if progress is None or "addBatch" not in progress.durationMs:
        _ask_worker(spark)


def _ask_worker(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    function = _wrap_function(spark.sparkContext, _nothing, IntegerType())
    runner = jvm.org.apache.spark.api.python.StreamingPythonRunner.apply(function, "", "", _STATE_WORKER)
    try:
        runner.init()
    finally:
        runner.stop()


def _nothing(*_: object) -> None:
    """What the worker is given; it is never called."""
