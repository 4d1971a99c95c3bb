"""The local broker on its real jars: it starts, keeps data over restarts, and is gone whenever its owner is."""

import json
import signal
import socket
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from waiting import is_alive, wait_until

from totalorder import kafka_clients
from totalorder.broker import HOST, LocalBroker, _new_cluster_id
from totalorder.errors import BrokerUnavailable, EnvironmentProblem, Error, SettingsError

pytestmark = pytest.mark.broker


def end_offset(broker: LocalBroker, topic: str) -> int:
    from kafka import TopicPartition

    place = TopicPartition(topic, 0)
    with kafka_clients.admin(broker.bootstrap_servers) as admin:
        return int(admin.list_partition_offsets({place: -1})[place].offset)


def publish_one(broker: LocalBroker, topic: str) -> None:
    producer = kafka_clients.producer(broker.bootstrap_servers)
    producer.send(topic, value=b"event").get(timeout=30)
    producer.close()


def test_data_is_kept_over_a_stop_and_over_a_crash(tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path / "data") as broker:
        port, cluster = broker.port, (broker.data_dir / "formatted").read_text()
        with kafka_clients.admin(broker.bootstrap_servers) as admin:
            admin.create_topics(["kept"])
            admin.wait_for_topics(["kept"])
        publish_one(broker, "kept")
        broker.stop()
        assert broker.pid is None
        broker.start()
        publish_one(broker, "kept")
        broker.kill()
        broker.start()
        assert end_offset(broker, "kept") == 2
        assert broker.port == port
        assert (broker.data_dir / "formatted").read_text() == cluster
        pid = broker.pid
        assert pid is not None
    assert not is_alive(pid)
    assert (tmp_path / "data" / "broker.log").exists()


def test_dies_with_its_owner_and_cleans_up() -> None:
    code = """
import time
from totalorder.broker import LocalBroker
broker = LocalBroker()
broker.start()
print(broker.pid, broker.data_dir, flush=True)
time.sleep(600)
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout as said:
        pid, _, data_dir = said.readline().strip().partition(" ")
    try:
        assert is_alive(int(pid))
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: not is_alive(int(pid)), "the broker dies with its owner")
    wait_until(lambda: not Path(data_dir).exists(), "its temporary folder is removed")


def test_command_says_its_address_and_stops_on_sigint_in_the_background_too() -> None:
    """A shell starts what it puts in the background with SIGINT ignored, which the process inherits."""
    shell = 'trap "" INT; exec "$0" -m totalorder.cli broker --port 0 --json'
    process = subprocess.Popen(
        ["/bin/sh", "-c", shell, sys.executable], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        kafka_clients.admin(said["bootstrap_servers"]).close()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, complaints) == (0, "")
    assert not Path(said["data_dir"]).exists()


def test_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        port = other.getsockname()[1]
        broker = LocalBroker(port=port)
        with pytest.raises(EnvironmentProblem, match=f"Port {port} .* in use"):
            broker.start()
    assert not broker.running


def test_data_folder_in_use_is_refused(broker: LocalBroker) -> None:
    with pytest.raises(EnvironmentProblem, match="in use by another local broker"):
        LocalBroker(data_dir=broker.data_dir).start()
    assert broker.running


def test_failed_start_shows_why_and_leaves_nothing() -> None:
    broker = LocalBroker(settings={"log.retention.ms": "nonsense"})
    with pytest.raises(BrokerUnavailable, match=r"log\.retention\.ms"):
        broker.start()
    assert not broker.running
    with pytest.raises(Error, match="before it is started"):
        _ = broker.data_dir


def test_one_that_is_too_slow_says_so_and_shows_what_its_log_says_beside_settings(tmp_path: Path) -> None:
    (tmp_path / "formatted").touch()
    broker = LocalBroker(data_dir=tmp_path, start_timeout_s=0)
    with pytest.raises(BrokerUnavailable, match=r"not ready after 0 s(.|\n)*may be too busy"):
        broker.start()
    assert not broker.running
    settings = [f"\tname.of.{number} = value" for number in range(300)]
    broker.log_path.write_text("\n".join(["INFO values:", *settings, "ERROR the cause", "\tat a.place(Of.java:1)"]))
    assert broker.log_tail() == "INFO values:\nERROR the cause\n\tat a.place(Of.java:1)"


def test_start_of_a_running_broker_changes_nothing(broker: LocalBroker) -> None:
    pid = broker.pid
    broker.start()
    assert broker.pid == pid


@pytest.mark.parametrize("name", ["listeners", "log.dirs", "node.id"])
def test_settings_that_it_decides_itself_are_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        LocalBroker(settings={name: "x"})


@pytest.mark.parametrize("port", [-1, 0, 65536])
def test_impossible_port_is_refused(port: int) -> None:
    with pytest.raises(SettingsError, match="not a port"):
        LocalBroker(port=port).start()


def test_a_cluster_id_never_looks_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter([uuid.UUID(bytes=b"\xf8" + bytes(15)), uuid.UUID(bytes=b"\x01" + bytes(15))])
    monkeypatch.setattr("totalorder.broker.uuid.uuid4", lambda: next(drawn))
    assert _new_cluster_id() == "AQ" + "A" * 20
