"""Runs the lineage job: lock, topics, session, and one query over stamps, grants and receipts.

The tables are the job's checkpoint: each start reads from them how far they are and begins there. Spark's own
checkpoint lives no longer than the query (docs/adr/0007-lineage-tables.md).
"""

import contextlib
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.errors import Error, StateError
from totalorder.sinks import source, tables
from totalorder.sinks.session import start_delta_session
from totalorder.sinks.settings import LineageSettings
from totalorder.sinks.tables import LineageTables
from totalorder.sinks.writer import LineageWriter, Written
from totalorder.streaming.checkpoint import CheckpointLock
from totalorder.streaming.failures import error_from
from totalorder.streaming.service import configure_logging
from totalorder.streaming.session import stop_session
from totalorder.streaming.topics import Topics

READY = "lineage ready"
"""Event of the log line that says that the query runs."""
_POLL_S = 0.05
_FORMER_DRIVER_S = 60.0
"""How long the Java of a job that was killed may take to be gone."""
SPARK = {
    "spark.driver.memory": "2g",
    # Rows by the hundred thousand: full compilation, which the sequencer's small batches do without (ADR 6), pays here.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.shuffle.partitions": "2",
    # The query's checkpoint is of no use after it: the tables say where to go on.
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
    "spark.sql.ui.explainMode": "simple",
    # VACUUM lists a table's files with as many tasks, by default 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "4",
}
"""What a session of the job begins with, beside what Delta needs; the settings win."""


class Lineage:
    """One run of the job: `start`, then `wait`, then `stop`; also a context manager.

    With `until_caught_up` it takes what is in Kafka at the start and ends by itself. A session that is given is used
    and left running; it must know Delta (`sinks.session`).
    """

    def __init__(
        self, settings: LineageSettings, *, until_caught_up: bool = False, spark: SparkSession | None = None
    ) -> None:
        self.settings = settings
        self.written = Written()
        """What this run has written so far."""
        self._until_caught_up = until_caught_up
        self._given_spark = spark
        self._log = structlog.get_logger().bind(domain=settings.domain)
        self._stopping = threading.Event()
        self._writing = threading.Lock()
        self._failure: Error | None = None
        self._query: StreamingQuery | None = None
        self._ends = contextlib.ExitStack()

    def __enter__(self) -> "Lineage":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the query. Raises PreflightFailed, BrokerUnavailable, StateError, EventsLost."""
        try:
            self._start()
        except BaseException as error:
            self.stop()
            if isinstance(error, Exception):
                raise _explained(error) from error
            raise

    def _start(self) -> None:
        settings = self.settings
        fd = self._ends.enter_context(_lock(Path(settings.root))).fd if settings.is_local else None
        topics = Topics(settings.of_sequencer())
        self._ends.callback(topics.close)
        own = settings.of_sequencer().own_topics
        facts = topics.facts((own.stamps, own.grants, own.receipts))
        source.check_present(settings.domain, facts)
        spark = self._given_spark or _session(settings, fd)
        if self._given_spark is None:
            self._ends.callback(stop_session, spark)
        if self._stopping.is_set():
            return
        written = LineageTables(spark, settings.root, settings.domain)
        written.open()
        self._writer = LineageWriter(
            settings.domain, written, lambda ranges: source.read_events(spark, settings, topics, ranges)
        )
        begin = source.starts(settings.domain, self._writer.marks, facts)
        trigger: dict[str, Any] = {"processingTime": f"{settings.interval_s} seconds"}
        if self._until_caught_up:
            trigger = {"availableNow": True}
        query = source.stream(spark, settings, begin).writeStream.foreachBatch(self._write).trigger(**trigger)
        self._query = query.start()
        self._log.info(READY, tables=settings.root, begins=begin)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the job has ended; False when it has not within `timeout_s`. Raises what made it fail."""
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        while self._query is not None and self._query.isActive:
            if deadline is not None and time.monotonic() > deadline:
                return False
            if self._stopping.wait(_POLL_S):
                return True
        self._raise_failure()
        return True

    def request_stop(self) -> None:
        """Asks for a stop without waiting for it; for signal handlers."""
        self._stopping.set()

    def stop(self) -> None:
        """Stops after what is being written now, and gives up lock and session."""
        self._stopping.set()
        with self._writing:  # Spark stops without waiting for what this process still writes
            pass
        if self._query is not None:
            with contextlib.suppress(PySparkException, Py4JError, OSError):
                self._query.stop()
        self._ends.close()
        self._log.info("lineage stopped", **vars(self.written))

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        failure = self._query.exception() if self._query is not None else None
        if failure is not None:
            raise error_from(str(failure))

    # --- a micro-batch, in a thread of Spark's callbacks --------------------------------------------------------------

    def _write(self, batch: DataFrame, number: int) -> None:
        with self._writing:
            if self._stopping.is_set() or self._failure is not None:
                return
            try:
                self._write_records(batch, number)
            except Exception as error:
                self._failure = _explained(error)
                raise

    def _write_records(self, batch: DataFrame, number: int) -> None:
        begun = time.monotonic()
        own, written = self.settings.of_sequencer().own_topics, Written()
        records = source.records(batch.toArrow())
        self._writer.write_stamps(records.get(own.stamps, ()), written)
        self._writer.write_answers(records.get(own.grants, ()), written)
        self._writer.write_receipts(records.get(own.receipts, ()), written)
        self.written.add(written)
        took_ms = round((time.monotonic() - begun) * 1000)
        count = sum(map(len, records.values()))
        self._log.info("batch", number=number, records=count, **vars(written), took_ms=took_ms)


def _session(settings: LineageSettings, inherited_fd: int | None = None) -> SparkSession:
    return start_delta_session(
        f"totalorder lineage {settings.domain}",
        SPARK | settings.spark,
        root=settings.root,
        master=settings.master,
        inherited_fd=inherited_fd,
    )


def _lock(directory: Path) -> CheckpointLock:
    try:
        return CheckpointLock(directory, _FORMER_DRIVER_S)
    except StateError as error:
        raise StateError(
            f"another lineage job writes to {directory}", remedy="Stop that one first; one domain needs one lineage job"
        ) from error


def _explained(error: Exception) -> Error:
    """What went wrong, in totalorder's terms."""
    if isinstance(error, Error):
        return error
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return Error(
            "Spark's Java process has ended", remedy="Look at its log and at its memory; starting again is safe"
        )
    if isinstance(error, PySparkException | Py4JError):
        return error_from(str(error))
    return Error(f"the lineage job failed: {type(error).__name__}: {error}", remedy="Starting again is safe")


def run_until_signal(settings: LineageSettings, *, until_caught_up: bool) -> None:
    """Runs the job until SIGTERM or SIGINT, or until it has caught up if that is all; raises what made it fail."""
    configure_logging(settings.log_format)
    lineage = Lineage(settings, until_caught_up=until_caught_up)

    def stop(number: int, _frame: FrameType | None) -> None:
        structlog.get_logger().info("stopping", signal=signal.Signals(number).name)
        lineage.request_stop()

    def listen() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)

    listen()
    with lineage:
        listen()  # pyspark has put a handler of its own in the place of SIGINT's
        lineage.wait()


def run_compaction(settings: LineageSettings) -> None:
    """Compacts the tables of the settings' root, with a log line for each."""
    configure_logging(settings.log_format)
    spark = _session(settings)
    try:
        for name, before, after in tables.compact(spark, settings.root, settings.retention_days):
            structlog.get_logger().info("compacted", table=name, files=after, files_before=before)
    except PySparkException as error:
        raise _explained(error) from error
    finally:
        stop_session(spark)
