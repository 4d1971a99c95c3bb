"""Runs the lineage job: lock, topics, session, and one query over cuts, stamps, grants and receipts.

The tables are the job's checkpoint: each start reads from them how far they are and begins there. Spark's own
checkpoint lives no longer than the query (docs/adr/0007-lineage-tables.md).
"""

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.errors import Error, SettingsError, StateError
from totalorder.sinks import source, tables
from totalorder.sinks.decode import LogRecord
from totalorder.sinks.events import EventLog
from totalorder.sinks.session import QUICK, end_session, quietly, start_delta_session
from totalorder.sinks.settings import LineageSettings
from totalorder.sinks.source import Backlog
from totalorder.sinks.tables import LineageTables, Stopped
from totalorder.sinks.writer import LineageWriter, Written
from totalorder.slow import while_long
from totalorder.streaming.checkpoint import CheckpointLock
from totalorder.streaming.failures import error_from, explained, is_no_room, say_trace
from totalorder.streaming.patience import OUTAGE_S, borne
from totalorder.streaming.preflight import TopicFacts
from totalorder.streaming.service import configure_logging, end_process, listen
from totalorder.streaming.session import StartStopped, is_local, is_submitted, prepare
from totalorder.streaming.standstill import Standstill
from totalorder.streaming.topics import Topics
from totalorder.streaming.watchdog import Status, Watchdog, ask

T = TypeVar("T")

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
    # Larger tables go to the tasks as Arrow; the default of 48 MB makes rows of them on the driver, which costs more
    # than writing them.
    "spark.sql.execution.arrow.localRelationThreshold": "64k",
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
    and left running; it must know Delta (`sinks.session`). `on_abandoned` is called when the job has stood still for
    too long, and a thread of this process will not return from a call to Spark.
    """

    def __init__(
        self,
        settings: LineageSettings,
        *,
        until_caught_up: bool = False,
        spark: SparkSession | None = None,
        on_abandoned: Callable[[Error], None] = lambda _: None,
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
        self._backlog: Backlog | None = None
        self._ended = False
        self._query: StreamingQuery | None = None
        self._ends = contextlib.ExitStack()
        self._on_abandoned = on_abandoned
        self._step: str | None = None
        self._watchdog = Watchdog(
            self,
            Standstill(self._log, settings.standstill_timeout_s),
            self._log,
            owns_java=spark is None and not is_submitted(),
            works_here=True,
        )

    def __enter__(self) -> "Lineage":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the query. Raises PreflightFailed, BrokerUnavailable, StateError, EventsLost."""
        self._watchdog.start()
        try:
            self._start()
        except BaseException as error:
            # Told before it lets go: Java may be gone by then, and its absence would be told in the cause's place.
            cause = self._told(error) if isinstance(error, Exception) else error
            self.stop()
            if cause is error:
                raise
            raise cause from error

    def _start(self) -> None:
        settings = self.settings
        if self._given_spark is None:
            prepare(settings.master)
        fd = self._ends.enter_context(_lock(Path(settings.root))).fd if settings.is_local else None
        topics = Topics(settings.of_sequencer())
        self._ends.callback(topics.close)
        own = settings.of_sequencer().own_topics
        facts = self._borne(lambda: topics.facts((own.cuts, own.stamps, own.grants, own.receipts)))
        source.check_present(settings.domain, facts)
        with contextlib.suppress(Stopped, StartStopped):
            spark = self._given_spark or self._session(fd, facts)
            self._open(spark, topics)
            self._begin_query(spark, topics, facts)

    def _open(self, spark: SparkSession, topics: Topics) -> None:
        settings = self.settings
        log = EventLog(spark, settings, lambda names: self._borne(lambda: topics.facts(names)))
        self._log.info("opening the tables", tables=settings.root)
        opened = LineageTables(spark, settings.root, settings.domain, is_stopping=self._stopping.is_set)
        opened.open()
        self._writer = LineageWriter(settings.domain, opened, log.filled)

    def _begin_query(self, spark: SparkSession, topics: Topics, facts: Mapping[str, TopicFacts]) -> None:
        settings = self.settings
        facts = self._borne(lambda: topics.facts(facts))  # Spark's start and the tables took their time
        begin = source.starts(settings.domain, self._writer.marks, facts)
        self._backlog = Backlog(begin, facts)
        trigger: dict[str, Any] = {"processingTime": f"{settings.interval_s} seconds"}
        if self._until_caught_up:
            trigger = {"availableNow": True}
        query = source.stream(spark, settings, begin).writeStream.foreachBatch(self._write).trigger(**trigger)
        if self._stopping.is_set():
            return
        self._query = query.start()
        self._log.info(READY, tables=settings.root, begins=begin, left=self._backlog.total)

    def _borne(self, ask: Callable[[], T]) -> T:
        return borne(ask, OUTAGE_S, self._stopping)

    def _session(self, inherited_fd: int | None, facts: Mapping[str, TopicFacts]) -> SparkSession:
        records = sum(topic.latest[part] - first for topic in facts.values() for part, first in topic.earliest.items())
        is_soon_over = self._until_caught_up and records <= self.settings.batch_records
        spark = _session(self.settings, QUICK if is_soon_over else {}, inherited_fd, self._stopping)
        self._ends.callback(end_session, spark)
        return spark

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the job has ended; False when it has not within `timeout_s`. Raises what made it fail."""
        deadline = time.monotonic() + timeout_s if timeout_s is not None else None
        while self._is_active():
            self._watchdog.require_movement()
            if deadline is not None and time.monotonic() > deadline:
                return False
            if self._stopping.wait(_POLL_S):
                return True
        self._raise_failure()
        # Once a stop is asked for, a query ends without writing.
        self._ended = self._query is not None and not self._stopping.is_set()
        return True

    def _is_active(self) -> bool:
        try:
            return self._failure is None and self._query is not None and self._query.isActive
        except (Py4JError, OSError) as error:  # Java is gone, and with it what the query could say
            raise self._failure or self._told(error) from error

    def _told(self, error: Exception) -> Error:
        """In totalorder's terms; a standstill that ended the job is the cause of what fails with it."""
        return self._watchdog.verdict or _explained(error, self.settings)

    def request_stop(self) -> None:
        """Asks for a stop without waiting for it; for signal handlers."""
        self._stopping.set()

    def stop(self) -> None:
        """Stops after what is being written now, and gives up lock and session."""
        self._stopping.set()
        self._step = "its end"
        with self._writing:  # Spark stops without waiting for what this process still writes
            pass
        with quietly("stop the query"):
            if self._query is not None:
                self._query.stop()
        with quietly("let go"):
            self._ends.close()
        self._watchdog.stop()
        if self._query is not None:
            self._log.info("lineage stopped", **vars(self.written))

    def check_end(self) -> None:
        """Once it was stopped: the standstill that had to be broken off for that, if there was one."""
        self._watchdog.require_movement()

    def check_caught_up(self) -> None:
        """Says what was written; Error when it was stopped before all of that which was in Kafka at the start."""
        backlog = self._backlog
        if backlog is not None and (self._ended or not backlog.left):
            self._log.info("caught up", **vars(self.written))
            return
        done = f"{backlog.left:,} of {backlog.total:,} records are still to be read" if backlog else "nothing was read"
        raise Error(
            f"the lineage in {self.settings.root} was stopped before it had caught up: {done}",
            remedy="The tables are whole as they are: run it again, and it goes on from there",
        )

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
        try:
            failure = self._query.exception() if self._query is not None else None
            text = str(failure) if failure is not None else ""
        except (Py4JError, OSError) as error:
            raise self._told(error) from error
        if text:
            say_trace(self._log, text)
            raise self._watchdog.verdict or error_from(text, _disks(self.settings))

    # --- for its watch ------------------------------------------------------------------------------------------------

    def ask(self) -> Status:
        """See `watchdog.Watched`."""
        return ask(self._query)

    def step(self, status: Status) -> str | None:
        """See `watchdog.Watched`. A batch is read and written by calls from Spark to this process, and back."""
        if self._step is not None or status.where is None:
            return self._step
        return "a batch, which is read and written" if status.is_processing else f"a batch, {status.where}"

    def may_end(self, status: Status) -> bool:
        """See `watchdog.Watched`: tasks of a cluster run elsewhere."""
        return not status.stages or is_local(self.settings.master)

    def abandon(self, error: Error) -> None:
        """See `watchdog.Watched`."""
        self._failure = error
        self._on_abandoned(error)

    # --- a micro-batch, in a thread of Spark's callbacks --------------------------------------------------------------

    def _write(self, batch: DataFrame, number: int) -> None:
        with self._writing:
            if self._stopping.is_set() or self._failure is not None:
                return
            try:
                self._write_records(batch, number)
            except Exception as error:
                # Raised here it would be told by Spark, in a trace of pages. Nothing more is written, and `wait` ends.
                self._failure = self._told(error)

    def _write_records(self, batch: DataFrame, number: int) -> None:
        begun = time.monotonic()
        backlog, written, records = self._backlog, Written(), 0
        assert backlog is not None
        with while_long(lambda: self._log.info("writing", number=number, left=backlog.left, **vars(written))):
            for topic, found in source.records(batch.sparkSession, self.settings, batch):
                self._write_topic(topic, found, written)
                backlog.advance({topic: found})
                records += len(found)
        self.written.add(written)
        took_ms = round((time.monotonic() - begun) * 1000)
        self._log.info("batch", number=number, records=records, left=backlog.left, **vars(written), took_ms=took_ms)

    def _write_topic(self, topic: str, records: Sequence[LogRecord], written: Written) -> None:
        own = self.settings.of_sequencer().own_topics
        write = {
            own.cuts: self._writer.write_cuts,
            own.stamps: self._writer.write_stamps,
            own.grants: self._writer.write_answers,
            own.receipts: self._writer.write_receipts,
        }
        write[topic](records, written)


def _disks(settings: LineageSettings) -> tuple[str, ...]:
    """Where this machine's part of the job writes."""
    return (settings.root, tempfile.gettempdir()) if settings.is_local else (tempfile.gettempdir(),)


def _explained(error: Exception, settings: LineageSettings) -> Error:
    return explained(error, "the lineage job", _disks(settings))


def _session(
    settings: LineageSettings,
    conf: Mapping[str, str] = {},
    inherited_fd: int | None = None,
    stopping: threading.Event | None = None,
) -> SparkSession:
    structlog.get_logger().info("starting spark", master=settings.master)
    return start_delta_session(
        f"totalorder lineage {settings.domain}",
        SPARK | dict(conf) | settings.spark,
        root=settings.root,
        master=settings.master,
        inherited_fd=inherited_fd,
        stopping=stopping,
    )


def _lock(directory: Path) -> CheckpointLock:
    try:
        return CheckpointLock(directory, _FORMER_DRIVER_S)
    except StateError as error:
        raise StateError(
            f"another lineage job writes to {directory}", remedy="Stop that one first; one domain needs one lineage job"
        ) from error
    except OSError as error:
        if is_no_room(error):
            raise
        raise SettingsError(
            f"tables cannot lie in {directory}: {error.strerror}",
            remedy="Give a directory that can be made and written (--tables)",
        ) from error


def run_until_signal(settings: LineageSettings, *, until_caught_up: bool) -> None:
    """Runs the job until SIGTERM or SIGINT, or until it has caught up; raises what made it fail.

    With `until_caught_up`, Error when a signal came before.
    """
    configure_logging(settings.log_format)
    lineage = Lineage(settings, until_caught_up=until_caught_up, on_abandoned=end_process)
    listen(lineage.request_stop)
    with lineage:
        lineage.wait()
    lineage.check_end()
    if until_caught_up:
        lineage.check_caught_up()


def run_compaction(settings: LineageSettings) -> None:
    """Compacts the tables of the settings' root, with a log line for each."""
    configure_logging(settings.log_format)
    if settings.is_local and not Path(settings.root).is_dir():
        raise tables.absent(settings.root)
    spark = _session(settings)
    try:
        for name, before, after in tables.compact(spark, settings.root, settings.retention_days):
            structlog.get_logger().info("compacted", table=name, files=after, files_before=before)
    except (PySparkException, Py4JError, OSError) as error:
        raise _explained(error, settings) from error
    finally:
        end_session(spark)
