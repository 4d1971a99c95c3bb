"""What a session of the job begins with."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from totalorder.config import Settings, make_settings
from totalorder.java import find_java
from totalorder.streaming.session import StartStopped, _broken_off, _relay, static_conf

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def started_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


def settings(**spark: str) -> Settings:
    given = {name.replace("_", "."): value for name, value in spark.items()}
    return make_settings(domain="d", topics=("a",), checkpoint_dir="x", spark=given)


def test_small_batches_wait_for_nothing_that_can_be_left_out() -> None:
    conf = static_conf(settings())
    assert conf["spark.python.unix.domain.socket.enabled"] == "true"
    assert conf["spark.python.daemon.module"] == "totalorder.streaming.daemon"


def test_the_heap_is_whole_from_the_start_however_its_limit_is_given() -> None:
    options = [option for option in static_conf(settings())[OPTIONS].split() if option.startswith("-X")]
    printed = subprocess.run(
        [find_java().path / "bin" / "java", *options, "-Xmx300m", "-XX:+PrintFlagsFinal", "-version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout
    flags = dict(re.findall(r"(\w+HeapSize) += (\d+)", printed))
    assert flags["InitialHeapSize"] == flags["MaxHeapSize"] == str(300 << 20)


def test_java_options_of_the_user_replace_ours_and_leave_the_log() -> None:
    options = static_conf(settings(spark_driver_extraJavaOptions="-XX:+UseSerialGC"))[OPTIONS].split()
    assert options[1:] == ["-XX:+UseSerialGC"]
    assert options[0].startswith("-Dlog4j2.configurationFile=")


def test_spark_submit_has_the_last_word_on_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert OPTIONS not in static_conf(settings())


def test_of_a_query_that_is_stopped_amid_a_batch_only_what_else_failed_is_shown() -> None:
    stopped = (
        "12:00:00 spark ERROR Utils: Aborting task",
        "org.apache.spark.TaskKilledException: Stage cancelled: [SPARK_JOB_CANCELLED] Job 7: Query [] was stopped",
        "org.apache.kafka.common.errors.InterruptException: Flush interrupted.",
        "\tat org.apache.spark.scheduler.Task.run(Task.scala:147)",
        "\tat java.base/java.lang.Thread.run(Thread.java:840)",
        "\t... 12 more",
        'Exception in thread "stateConnectionListenerThread" java.nio.channels.ClosedByInterruptException',
        'Exception in thread "stateConnectionListenerThread" java.nio.channels.AsynchronousCloseException',
    )
    failed = (
        "12:00:00 spark ERROR Utils: Aborting task 3.0 in stage 1",
        "org.apache.spark.TaskKilledException: executor lost",
        "java.io.IOException: No space left on device",
        'Exception in thread "stateConnectionListenerThread" java.lang.OutOfMemoryError: Java heap space',
        "    at line 3 of the file: the header is bad",
    )
    with capture_logs() as shown:
        _relay([*stopped, *failed])
    assert [entry["line"] for entry in shown] == list(failed)


_INTERRUPTED = """
import os, signal
import pyspark.java_gateway as gateway
from totalorder.config import make_settings
from totalorder.streaming.session import start_session

begun, popen = [], gateway.Popen

def interrupted(*args, **kwargs):
    begun.append(popen(*args, **kwargs))
    os.kill(os.getpid(), signal.SIGINT)
    return begun[-1]

gateway.Popen = interrupted
try:
    start_session(make_settings(domain="d", topics=("a",), checkpoint_dir="x"))
except KeyboardInterrupt:
    begun[0].wait(60)
    print("interrupted, and Java is gone")
finally:
    begun[0].kill()
"""


@pytest.mark.spark
def test_ctrl_c_while_java_starts_leaves_no_java_behind() -> None:
    done = subprocess.run([sys.executable, "-c", _INTERRUPTED], capture_output=True, text=True, timeout=200)
    assert done.stdout == "interrupted, and Java is gone\n", done.stderr


@pytest.fixture
def java() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for Spark's Java."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def test_a_stop_ends_java_for_which_a_start_waits(java: subprocess.Popen[bytes]) -> None:
    stopping = threading.Event()

    def start() -> None:
        with _broken_off(java, stopping):
            stopping.set()
            raise ConnectionError(f"Java is gone: {java.wait(60)}")

    with pytest.raises(StartStopped) as told:
        start()
    assert str(told.value.__cause__) == f"Java is gone: {-signal.SIGTERM}"


def test_a_stop_that_comes_last_is_one_too(java: subprocess.Popen[bytes]) -> None:
    stopping = threading.Event()
    with pytest.raises(StartStopped), _broken_off(java, stopping):
        stopping.set()


def test_without_a_stop_java_lives_and_errors_are_what_they_are(java: subprocess.Popen[bytes]) -> None:
    with _broken_off(java, threading.Event()):
        pass
    with pytest.raises(ConnectionError), _broken_off(java, threading.Event()):
        raise ConnectionError
    assert java.poll() is None


_STOPPED = """
import threading
import pyspark.java_gateway as gateway
from totalorder.config import make_settings
from totalorder.streaming.session import StartStopped, start_session

begun, popen, stopping = [], gateway.Popen, threading.Event()

def stopped(*args, **kwargs):
    begun.append(popen(*args, **kwargs))
    stopping.set()
    return begun[-1]

gateway.Popen = stopped
try:
    start_session(make_settings(domain="d", topics=("a",), checkpoint_dir="x"), stopping=stopping)
except StartStopped:
    print("stopped, and Java has ended with", begun[0].poll())
finally:
    begun[0].kill()
"""


@pytest.mark.spark
def test_a_stop_while_java_starts_is_obeyed_before_spark_is_there() -> None:
    done = subprocess.run([sys.executable, "-c", _STOPPED], capture_output=True, text=True, timeout=200)
    assert done.stdout == f"stopped, and Java has ended with {128 + signal.SIGTERM}\n", done.stderr
