"""Spark sessions that can read and write Delta tables."""

import contextlib
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog
from pyspark.sql import SparkSession

from totalorder.config import make_settings
from totalorder.java import SHORT_RUN
from totalorder.streaming.session import start_session, stop_session

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""For few rows: to compile a query takes longer than to run it as it is."""
QUICK = {"spark.driver.extraJavaOptions": SHORT_RUN} | INTERPRETED
"""What a session begins with that is soon over: half the processor time of one that compiles."""
_DELTA = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"


def delta_conf() -> dict[str, str]:
    """What a session must begin with to know Delta; times are shown in UTC."""
    return {
        "spark.sql.extensions": _DELTA,
        "spark.sql.catalog.spark_catalog": _DELTA_CATALOG,
        "spark.sql.session.timeZone": "UTC",
        # The default of 96 bits is read in nanoseconds elsewhere, which have no years but 1677 to 2262.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # A snapshot of a table's log is small here; the default of 50 tasks for it takes a second each time.
        "spark.databricks.delta.snapshotPartitions": "2",
        # To put the list of all files beside each commit costs a Spark job each time; the sums that are checked stay.
        "spark.databricks.delta.allFilesInCrc.enabled": "false",
        # Nothing is ever put there, but Spark makes the folder, by default where the command is given.
        "spark.sql.warehouse.dir": Path(tempfile.gettempdir()).as_uri(),
    }


def start_delta_session(
    app_name: str,
    spark: Mapping[str, str] = {},
    *,
    root: str = "none",
    master: str = "local[2]",
    inherited_fd: int | None = None,
    stopping: threading.Event | None = None,
) -> SparkSession:
    """A new session like the sequencer's (`streaming.session.start_session`), with Delta.

    `root` is where the tables are: a directory of this machine or a URI, for which a local session keeps what Hadoop
    knows of stores. `spark` are settings of Spark, which win. Stop it with `streaming.session.stop_session`. Raises
    EnvironmentProblem where Java or a jar cannot be had, StartStopped when `stopping` is set before it is there.
    """
    conf = {"spark.app.name": app_name} | delta_conf() | dict(spark)
    # Of the sequencer's settings a session takes none but these; topics have to have some value.
    settings = make_settings(topic_pattern="none", checkpoint_dir=root, master=master, spark=conf)
    return start_session(settings, inherited_fd=inherited_fd, stopping=stopping)


def end_session(spark: SparkSession) -> None:
    """Stops a session; what it has against that is logged, and hides nothing that was raised before."""
    with quietly("stop Spark"):
        stop_session(spark)


@contextlib.contextmanager
def quietly(step: str) -> Iterator[None]:
    """A step of the end: an error in it is logged, and not raised in the place of one that was there before."""
    try:
        yield
    except Exception as error:
        structlog.get_logger().warning("while stopping", step=step, error=str(error)[:200])
