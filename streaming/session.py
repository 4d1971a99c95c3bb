"""The Spark session of the job, and the Java process that it runs in."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from totalorder.config import Settings
from totalorder.errors import EnvironmentProblem, Error
from totalorder.interrupts import interrupts_kept, own_interrupt
from totalorder.jars import jar_paths
from totalorder.java import find_java
from totalorder.streaming import installation
from totalorder.streaming.failures import text_of
from totalorder.streaming.progress import KEPT
from totalorder.streaming.relay import relayed, without_dismissals

STOP_TIMEOUT_MS = 30_000
LOOPBACK = "127.0.0.1"
_JAVA_END_S = 30
_STOP_POLL_S = 0.1
_LAST_LINES = 3
_NOISE = re.compile(
    r"^(WARNING: Using incubator modules|Setting default log level|To adjust logging level|Using Spark's default)"
    r"|Streaming TransformWithStateInPandas Python worker"
    # A query that is stopped interrupts the threads that serve its state to Python.
    r'|^Exception in thread "state[^"]*" java\.(nio\.channels\.\w*Closed?\w*|lang\.Interrupted)Exception'
    r"|^\s+at \S+\(|^\s*\.\.\. \d+ more$"
    # One that is stopped amid a batch aborts its tasks; what else aborts one gives its reason in a line of its own.
    r"|ERROR Utils: Aborting task$|^org\.apache\.spark\.TaskKilledException: .*SPARK_JOB_CANCELLED.* was stopped"
    r"|^org\.apache\.kafka\.common\.errors\.InterruptException: Flush interrupted"
)
_CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing"
_BARE_FILES = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
_HADOOP = "spark.hadoop."
_ADD_DEFAULTS = (
    "org.apache.hadoop.hdfs.HdfsConfiguration",
    "org.apache.hadoop.mapred.JobConf",
    "org.apache.hadoop.yarn.conf.YarnConfiguration",
)
_KAFKA_SOURCE = "org/apache/spark/sql/kafka010/KafkaSourceProvider.class"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# A small batch leaves 20 MB of garbage, and a collection costs the same however many batches it comes after. What a
# backlog's batches hold outlives collections: full ones took a tenth of the time while the heap grew (ADR 6), so it has
# its whole size, whatever limits that, from the start.
_COLLECTOR = "-XX:+UseParallelGC -XX:NewSize=256m -XX:InitialRAMPercentage=100"
_LOG4J_FILE = Path(str(files("totalorder") / "data" / "spark-log4j2.properties"))
_LOG4J = f"-Dlog4j2.configurationFile={_LOG4J_FILE}"
_LOG4J_OF_SPARK = "org/apache/spark/log4j2-defaults.properties"
_SET_SPARKS_OWN = "org$apache$spark$internal$Logging$$defaultSparkLog4jConfig_$eq"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class StartStopped(Error):
    """A stop was asked for while Spark started; its Java is gone."""

    def __init__(self) -> None:
        super().__init__("a stop was asked for while Spark started", remedy="Start again; nothing was begun")


def start_session(
    settings: Settings, *, inherited_fd: int | None = None, stopping: threading.Event | None = None
) -> SparkSession:
    """A new session; under spark-submit in the Java that is there, else in a Java of its own.

    That Java is in a process session of its own, so that Ctrl-C in a terminal and a signal to the process group reach
    Python alone, which stops it in good order; it ends by itself when this process is gone (its standard input closes).
    It inherits `inherited_fd`, the lock. StartStopped as soon as `stopping` is set while that Java starts.
    """
    return _joined(settings) if is_submitted() else _launched(settings, inherited_fd, stopping or threading.Event())


def prepare(master: str) -> None:
    """Makes the environment fit for a session, or says what in it cannot be: before anything is made that a session
    is for. Raises EnvironmentProblem.
    """
    if not is_submitted():
        installation.prepare(local=is_local(master))


def _joined(settings: Settings) -> SparkSession:
    """The session in spark-submit's Java."""
    gateway: Any = launch_gateway()  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)  # else the settings would lack what spark-submit was given
    conf = _conf(settings)
    _add_jars(conf, gateway.jvm)
    if is_local(conf.get("spark.master", "local") or ""):
        installation.leave_out(("PYSPARK_PYTHON",))
        _stay_within(conf)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _quieten(conf, gateway.jvm)
    with own_interrupt():  # a context of pyspark's puts its own in the place, which ends a start
        _hush_accumulators(SparkContext.getOrCreate(conf))
    return SparkSession.builder.config(conf=conf).getOrCreate()


def _launched(settings: Settings, inherited_fd: int | None, stopping: threading.Event) -> SparkSession:
    """A session in a Java that this process starts."""
    prepare(settings.master)
    os.environ["JAVA_HOME"] = str(find_java().path)
    conf, said = _conf(settings), deque[str](maxlen=_LAST_LINES)
    with interrupts_kept() as obey:  # amid pyspark's start of Java an exception would leave Java there
        gateway = _launch(conf, inherited_fd, said)
    try:
        obey()
        with own_interrupt(), _broken_off(gateway.proc, stopping):
            context = SparkContext(conf=conf, gateway=gateway)
            _hush_accumulators(context)
            spark = SparkSession(context)
            if settings.checkpoint_is_local and is_local(settings.master):
                _forget_hadoop_defaults(spark)
    except BaseException:
        _end(gateway, gateway.proc)  # else that Java would go on, and hold the lock
        raise
    return spark


def _hush_accumulators(context: Any) -> None:
    """The job itself says that Java has ended: pyspark's server, to which Java sends sums, would print a trace."""
    context._accumulatorServer.handle_error = lambda *_: None


@contextlib.contextmanager
def _broken_off(java: subprocess.Popen[bytes], stopping: threading.Event) -> Iterator[None]:
    """Within, Java is ended as soon as `stopping` is set; StartStopped instead of what that leads to.

    Nobody's data is in that Java yet. It is asked to end, so that it takes its temporary folders away.
    """
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            if stopping.wait(_STOP_POLL_S):
                java.terminate()
                return

    watcher = threading.Thread(target=watch, name="totalorder-start", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        if stopping.is_set():
            raise StartStopped from error
        raise
    finally:
        is_over.set()
        watcher.join()
    if stopping.is_set():
        raise StartStopped


def _conf(settings: Settings) -> SparkConf:
    conf = SparkConf()
    for key, value in static_conf(settings).items():
        conf.set(key, value)
    return conf


def _launch(conf: SparkConf, inherited_fd: int | None, said: deque[str]) -> Any:
    """Starts Java, whose output is logged, and of which `said` takes the last lines; its gateway."""
    if inherited_fd is not None:
        os.set_inheritable(inherited_fd, True)
    output, written = os.pipe()
    lines = _remembered(output, said)
    reader = threading.Thread(target=_relay, args=(lines,), name="totalorder-spark-log", daemon=True)
    reader.start()
    try:
        with os.fdopen(written, "wb") as stdout:
            process = {"start_new_session": True, "stdout": stdout, "stderr": subprocess.STDOUT}
            fds = () if inherited_fd is None else (inherited_fd,)
            return launch_gateway(conf, popen_kwargs=process | {"pass_fds": fds})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as error:
        reader.join(_JAVA_END_S)
        raise _not_started(said) from error


def _remembered(output: int, said: deque[str]) -> Iterator[str]:
    with os.fdopen(output, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            said.append(line.strip())
            yield line


def _not_started(said: Iterable[str]) -> EnvironmentProblem:
    variables = installation.in_effect()
    return EnvironmentProblem(
        f"Spark's Java did not start: {' / '.join(said) or 'it said nothing'}",
        remedy=f"In the environment: {variables}" if variables else "Look at what --spark and the settings say",
    )


def _forget_hadoop_defaults(spark: SparkSession) -> None:
    """Keeps of Hadoop's settings what Spark's `spark.hadoop.…` say: each batch writes all of them into a broadcast, and
    hundreds are of stores and clusters that a local job has nothing to do with (ADR 6).
    """
    jvm: Any = spark.sparkContext._jvm
    for name in _ADD_DEFAULTS:  # each does so when it is loaded, and then to every configuration that is there
        jvm.java.lang.Class.forName(name)
    hadoop: Any = spark._jsparkSession.sparkContext().hadoopConfiguration()
    hadoop.clear()
    hadoop.set("fs.AbstractFileSystem.file.impl", "org.apache.hadoop.fs.local.LocalFs")
    for key, value in spark.sparkContext.getConf().getAll():
        if key.startswith(_HADOOP):
            hadoop.set(key.removeprefix(_HADOOP), value)


def _stay_within(conf: SparkConf) -> None:
    """Binds the driver to this machine alone, unless an address was given: nobody else has to reach it."""
    if "SPARK_LOCAL_IP" not in os.environ:
        for name in ("spark.driver.host", "spark.driver.bindAddress"):
            conf.setIfMissing(name, LOOPBACK)


def _add_jars(conf: SparkConf, jvm: Any) -> None:
    """Gives spark-submit's Java the Kafka source where its command line did not; executors get it by spark.jars."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(_KAFKA_SOURCE) is None and hasattr(loader, "addURL"):
        paths = jar_paths("spark")
        for path in paths:
            loader.addURL(jvm.java.io.File(str(path)).toURI().toURL())
        conf.set("spark.jars", ",".join(str(path) for path in paths))


def _quieten(conf: SparkConf, jvm: Any) -> None:
    """Gives spark-submit's Java the log settings of `totalorder sequence` in the place of Spark's own, which tell of
    every step. A session that starts takes those once more where they were in use: Java is told that they were not.
    """
    log4j = jvm.org.apache.logging.log4j
    location = str(log4j.LogManager.getContext(False).getConfigLocation())
    if location.endswith(_LOG4J_OF_SPARK) and not conf.contains("spark.log.level"):
        logging = getattr(getattr(jvm.org.apache.spark.internal, "Logging$"), "MODULE$")
        getattr(logging, _SET_SPARKS_OWN)(False)
        log4j.core.config.Configurator.reconfigure(jvm.java.net.URI(_LOG4J_FILE.as_uri()))


def _relay(lines: Iterable[str]) -> None:
    """Logs what Java and its Python workers print, without what they always print."""
    log = structlog.get_logger()
    for line in without_dismissals(lines):
        if line.strip() and not relayed(line, log) and not _NOISE.search(line):
            log.warning("spark", line=line.rstrip())


def static_conf(settings: Settings) -> dict[str, str]:
    """Settings that a Spark session must begin with; what spark-submit was given stays as it is."""
    conf = _own_conf(settings) | dict(settings.spark)
    if _JAVA_OPTIONS in settings.spark and not is_submitted():
        conf[_JAVA_OPTIONS] = f"{_LOG4J} {settings.spark[_JAVA_OPTIONS]}"
    return conf


def _own_conf(settings: Settings) -> dict[str, str]:
    conf = {
        "spark.app.name": f"totalorder {settings.domain}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": str(KEPT),
        "spark.python.daemon.module": "totalorder.streaming.daemon",
        # Over TCP a small batch's rows wait 40 ms for the worker's delayed acknowledgement (ADR 6).
        "spark.python.unix.domain.socket.enabled": "true",
    }
    if is_submitted():
        return conf
    conf |= {
        "spark.master": settings.master,
        _JAVA_OPTIONS: f"{_LOG4J} {_COLLECTOR}",
    }
    jars = [str(path) for path in jar_paths("spark")]
    if not is_local(settings.master):
        return conf | {"spark.jars": ",".join(jars)}
    if uses_bare_files(settings):
        jars += [str(path) for path in jar_paths("fastfs")]
        conf["spark.hadoop.fs.file.impl"] = _BARE_FILES
    return conf | {
        "spark.driver.extraClassPath": os.pathsep.join(jars),
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
    }


def query_conf(settings: Settings) -> dict[str, str]:
    """Settings of one query; the first run of a checkpoint fixes shuffle partitions and state provider."""
    conf = {
        "spark.sql.shuffle.partitions": str(settings.shards),
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        # The source's reader has this setting in its environment, and Spark keeps workers by their environments: with
        # it one worker reads a batch and then stamps it, and the next batch too; else it would take three by turns.
        "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
        # A snapshot of the state is a tenth of all that a task does when every tenth batch has one.
        "spark.sql.streaming.stateStore.minDeltasForSnapshot": "50",
        # The source itself waits for what comes.
        "spark.sql.streaming.pollingDelay": "1ms",
        "spark.sql.streaming.stopTimeout": str(STOP_TIMEOUT_MS),
        "spark.sql.session.timeZone": "UTC",
        # Whole stages would be generated, and compiled, anew for each batch.
        "spark.sql.codegen.wholeStage": "false",
        # To write code down, batch for batch, takes some 20 ms, and the rows of a batch are few.
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Each batch's plan is described for the UI, at the length that this says.
        "spark.sql.ui.explainMode": "simple",
    }
    if uses_bare_files(settings):
        conf["spark.sql.streaming.checkpointFileManagerClass"] = f"{_CHECKPOINTS}.FileSystemBasedCheckpointFileManager"
    return conf | {key: value for key, value in settings.spark.items() if key.startswith("spark.sql.")}


def apply(spark: SparkSession, conf: Mapping[str, str]) -> None:
    """Sets the query's settings on a session."""
    for key, value in conf.items():
        spark.conf.set(key, value)


def is_local(master: str) -> bool:
    """Whether driver and executors are one process, and so one class path and one disk."""
    return master.startswith("local") and not master.startswith("local-cluster")


def uses_bare_files(settings: Settings) -> bool:
    """Whether checkpoints are written without forking a process for each file; only behind the lock (docs/adr)."""
    if settings.fast_checkpoint_fs is not None:
        return settings.fast_checkpoint_fs
    return settings.checkpoint_is_local and is_local(settings.master) and not is_submitted()


def is_submitted() -> bool:
    """Whether spark-submit runs this process: then the Java is its own, and has the class path that it was given."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def stop_session(spark: SparkSession) -> None:
    """Stops Spark and waits for its Java to end, where this process started it."""
    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    try:
        spark.stop()
    except (Py4JError, PySparkException, OSError) as error:  # Java is gone already, or about to be
        structlog.get_logger().warning("while stopping Spark", error=text_of(error)[:200])
    finally:
        if process is not None:
            _end(gateway, process)


def _end(gateway: Any, process: Any) -> None:
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_JAVA_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
