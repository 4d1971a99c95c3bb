"""`totalorder sequence` as a process: killed between sink and commit, restarted, and stopped by a signal."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import pytest
from kafka import KafkaProducer
from spark_job import DomainLog, by_engine, read_log
from spark_process import SequencerProcess, uncommit
from spark_shared import QUICK_JAVA, settings_for
from waiting import is_alive, wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import StateError
from totalorder.java import find_java
from totalorder.streaming.checkpoint import CheckpointLock, read_checkpoint
from totalorder.streaming.store import LocalStore

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(600)]
NewTopic = Callable[..., str]


def publish(producer: KafkaProducer, topics: list[str], count: int) -> None:
    for number in range(count):
        producer.send(topics[number % len(topics)], value=b"%d" % number, partition=number % 2)
    producer.flush()


def stamped(process: SequencerProcess) -> int:
    return sum(line["events"] for line in process.logged("batch"))


def assert_chained(log: DomainLog) -> None:
    """Each batch of a partition continues the digest of the one before."""
    batches = log.batches()
    for number in range(2, len(batches) + 1):
        for partition, one in batches[number].items():
            assert one.previous_digest == batches[number - 1][partition].digest


def test_killed_between_sink_and_commit_then_stopped_in_good_order(
    broker: LocalBroker, new_topic: NewTopic, unique_name: Callable[[str], str], tmp_path: Path
) -> None:
    topics = [new_topic(stem, partitions=2) for stem in "ab"]
    settings = settings_for(unique_name("kill"), broker.bootstrap_servers, tmp_path / "state", topics=tuple(topics))
    flags = {
        "domain": settings.domain,
        "bootstrap_servers": settings.bootstrap_servers,
        "topics": ",".join(topics),
        "checkpoint_dir": settings.checkpoint_dir,
        "stamps_partitions": settings.stamps_partitions,
    }
    with kafka_clients.producer(broker.bootstrap_servers) as producer:
        with SequencerProcess(**flags) as process:
            process.until_ready()
            for round_ in range(1, 4):
                publish(producer, topics, 20)
                process.until("events stamped", lambda count=20 * round_: stamped(process) == count)
            with pytest.raises(StateError, match="in use by another sequencer"):
                CheckpointLock(tmp_path / "state", wait_s=0)
            process.kill()
        newest = uncommit(tmp_path / "state")
        before = read_log(settings)
        with SequencerProcess(**flags) as process:
            process.until("the batch runs again", lambda: len(process.logged("batch")) == 1)
            again = stamped(process)  # 20, or fewer where a look fell between them
            assert 0 < again <= 20
            publish(producer, topics, 20)
            process.until("events stamped", lambda: stamped(process) == again + 20)
            children = process.java()
            assert process.terminate() == 0
            assert children
            assert not process.java()
    with CheckpointLock(tmp_path / "state", wait_s=0):
        facts = read_checkpoint(LocalStore(tmp_path / "state"), "here")
    assert facts.record is not None
    assert facts.committed > newest
    log = read_log(settings)
    assert len(log.events()) == 80
    assert_chained(log)
    written = Counter((one.batch, one.partition) for one in log.stamped)
    last = max(one.batch for one in before.stamped)
    assert {place for place, times in written.items() if times > 1} == {(last, 0), (last, 1)}
    _, expected = by_engine(settings, facts.record, log)
    assert {one.digest for one in log.stamped} == {one.digest for one in expected}


class SubmittedProcess(SequencerProcess):
    """The job under spark-submit, which runs Java, which runs Python."""

    command = (
        str(Path(sys.executable).with_name("spark-submit")),
        *("--master", "local[2]"),
        *("--driver-java-options", *QUICK_JAVA.values()),
        str(Path(__file__).parents[2] / "streaming" / "job.py"),
        "--verbose",
    )
    spark: ClassVar[Mapping[str, object]] = {}  # that Java has its options before our settings are read

    def terminate_java(self) -> int:
        """Signals Java alone, as who stops a submitted job does; its exit code."""
        self._process.terminate()
        return self.wait()


def test_under_spark_submit_it_is_as_quiet_and_ends_with_its_java(
    broker: LocalBroker,
    new_topic: NewTopic,
    unique_name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(find_java().path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    topic = new_topic("a", partitions=2)
    flags = {"domain": unique_name("submit"), "bootstrap_servers": broker.bootstrap_servers, "topics": topic}
    with (
        SubmittedProcess(**flags, checkpoint_dir=tmp_path / "state") as process,
        kafka_clients.producer(broker.bootstrap_servers) as producer,
    ):
        process.until_ready()
        publish(producer, [topic], 20)
        process.until("events stamped", lambda: stamped(process) == 20)
        assert listening(process.pid) == {"127.0.0.1"}
        children = process.java()
        assert process.terminate_java() == 128 + signal.SIGTERM
        wait_until(lambda: not any(is_alive(pid) for pid in children), "Python has ended with its Java")
    assert not [line for line in process.lines if " INFO " in line]


def listening(pid: int) -> set[str]:
    """The addresses at which a process waits for connections over TCP."""
    sockets = {os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()}
    found = set()
    for family, width in (("tcp", 8), ("tcp6", 32)):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[at] for at in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in sockets:
                # The last four bytes, the lowest first; an IPv6 socket's address holds the IPv4 one.
                found.add(".".join(str(byte) for byte in bytes.fromhex(local[:width][-8:])[::-1]))
    return found


@pytest.mark.parametrize("kind", [SequencerProcess, SubmittedProcess])
def test_ctrl_c_before_it_is_ready_is_answered(
    kind: type[SequencerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(find_java().path))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    flags = {"topics": "a", "checkpoint_dir": tmp_path, "bootstrap_servers": "127.0.0.1:1", "broker_timeout_s": 8}
    with kind(**flags) as process:
        process.until("a broker is waited for", lambda: process.logged("no broker yet"))
        code = process.terminate(signal.SIGINT)
    assert process.logged("stopping")[0]["signal"] == "SIGINT"
    assert code == (0 if kind is SequencerProcess else 128 + signal.SIGINT)


def test_ctrl_c_while_python_still_loads_is_answered(tmp_path: Path) -> None:
    flags = {"topics": "a", "checkpoint_dir": tmp_path, "bootstrap_servers": "127.0.0.1:1", "broker_timeout_s": 1}
    with SequencerProcess(**flags, log_format="console") as process:
        process.until("the first line", lambda: process.lines)
        process.terminate(signal.SIGINT)
    assert "stopp" in "".join(process.lines)  # "stopped before …", or "stopping" where it was quicker
    assert "Traceback" not in "".join(process.lines)


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (
            {"topics": "a", "checkpoint_dir": "x", "bootstrap_servers": "127.0.0.1:1", "broker_timeout_s": 1},
            1,
            "No Kafka",
        ),
        ({"topics": "a", "checkpoint_dir": "x", "kafka": "group.id=me"}, 2, "group.id cannot be set"),
        ({"topics": "a"}, 2, "checkpoint_dir is missing"),
    ],
)
def test_a_start_that_fails_says_so_in_one_message(
    flags: dict[str, object], code: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with SequencerProcess(**flags) as process:
        assert process.wait() == code
    text = "".join(process.lines)
    assert says in text
    assert "Traceback" not in text
