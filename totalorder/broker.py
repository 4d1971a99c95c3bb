"""A real Kafka broker on this machine: one process in KRaft mode, for tests, demos and first steps."""

import contextlib
import fcntl
import os
import random
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from totalorder.errors import BrokerUnavailable, EnvironmentProblem, Error, SettingsError
from totalorder.jars import jar_paths
from totalorder.java import SHORT_RUN, find_java
from totalorder.kafka_clients import admin

HOST = "127.0.0.1"

_GUARD = Path(__file__).with_name("_guard.py")
_LOGGING = Path(__file__).with_name("data") / "broker-log4j2.properties"
_STOP_GRACE_S = 20.0
_TAIL_LINES = 25
# Kafka logs its settings as it starts, a line for each of some hundred: what it says else would not be among the last.
_SETTING = re.compile(r"\t[\w.]+ = ")
_FULL_BYTES = 1 << 20
# Below the range that the system takes for outgoing connections: a port found free stays free over a restart.
_FREE_PORTS = range(20_000, 30_000)
_PORT_TRIES = 200
_START_TRIES = 3
_BUSY = "the machine may be too busy: start it again."

_DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "message.max.bytes": "1048588",
    # One node: internal topics have one replica, and few partitions, each of which costs files.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a crash the broker is let in again only when its former session is over (9 s by default).
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    # A laptop's share of memory and threads; the cleaner's default buffer alone is 128 MB.
    "log.cleaner.dedupe.buffer.size": str(16 << 20),
    "num.network.threads": "2",
    # The system's own sizes: Kafka's 100 kB are full with some hundred small requests of a client that sends one for
    # each partition, and the kernel then drops segments.
    "socket.receive.buffer.bytes": "-1",
    "socket.send.buffer.bytes": "-1",
    "num.io.threads": "4",
}
_OWNED = ("listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs", "process.roles", "node.id")


class LocalBroker:
    """A single-node Kafka that lives no longer than the process that started it.

    As a context manager it starts on entry and stops on exit. After `stop()` or `kill()`, `start()` starts it again on
    the same ports and data. Not for use from several threads at once."""

    def __init__(
        self,
        *,
        port: int | None = None,
        controller_port: int | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 512,
        start_timeout_s: float = 120.0,
    ) -> None:
        """Where `port`, `controller_port` are None: free ones; where `data_dir` is: a temporary one, removed at last.

        `settings` are the broker's own (as in server.properties) and override the defaults. Raises SettingsError for
        those that this class decides itself."""
        self._settings = dict(settings or {})
        for name in _OWNED:
            if name in self._settings:
                raise SettingsError(f"The local broker decides {name} itself", remedy="Leave it out.")
        self._wanted_port, self._wanted_controller_port = port, controller_port
        self._port: int | None = port
        self._controller_port: int | None = controller_port
        self._given_data_dir = Path(data_dir).absolute() if data_dir is not None else None
        self._data_dir: Path | None = None
        self._heap_mb = heap_mb
        self._start_timeout_s = start_timeout_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    # --- what it is ---------------------------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The port for clients. Known from the first start on."""
        if self._port is None:
            raise Error("The broker has no port before it is started", remedy="Call start() first.")
        return self._port

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to clients."""
        return f"{HOST}:{self.port}"

    @property
    def data_dir(self) -> Path:
        """The folder of the broker's data, settings and log."""
        if self._data_dir is None:
            raise Error("The broker has no data folder before it is started", remedy="Call start() first.")
        return self._data_dir

    @property
    def log_path(self) -> Path:
        """The broker's log file."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        """The process id of the broker's Java, None while it does not run."""
        return self._pid if self.running else None

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._guard is not None and self._guard.poll() is None

    # --- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start and wait until the broker serves clients.

        Raises EnvironmentProblem (no Java; a port or the data folder is in use) or BrokerUnavailable (it did not come
        up; the end of its log is in the message)."""
        if self.running:
            return None
        fresh = self._data_dir is None
        try:
            for attempt in range(1, _START_TRIES + 1):
                try:
                    return self._start_once()
                except BrokerUnavailable:
                    # A port that was free a moment ago may be taken by now; then another is tried.
                    chosen_by_us = fresh and self._wanted_port is None
                    if attempt == _START_TRIES or not chosen_by_us or "already in use" not in self.log_tail():
                        raise
                    self._end(b"k")
                    self._port = self._controller_port = None
        except BaseException:
            self._end(b"k")
            if fresh:
                self._discard()
            raise

    def stop(self) -> None:
        """Stop cleanly (by force after 20 seconds) and wait for the end. The data stays until `close()`."""
        self._end(b"s")

    def kill(self) -> None:
        """End it as a crash would, and wait for the end. The data stays until `close()`."""
        self._end(b"k")

    def close(self) -> None:
        """Stop, and remove the data folder if it is a temporary one."""
        self.stop()
        self._discard()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the broker ends by itself, at most `timeout_s` seconds; whether it has."""
        if self._guard is not None:
            try:
                self._guard.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return False
        return True

    def log_tail(self, lines: int = _TAIL_LINES) -> str:
        """The last lines of the broker's log but its settings; and a full disk, of which the log cannot tell."""
        try:
            log = self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
            free = shutil.disk_usage(self.data_dir).free
        except (OSError, Error):
            return ""
        full = [f"The disk under {self.data_dir} is full: {free / 1e6:,.1f} MB are free."] if free < _FULL_BYTES else []
        said = [line for line in log if not _SETTING.match(line)]
        return "\n".join([*said[-lines:], *full])

    # --- steps --------------------------------------------------------------------------------------------------------

    def _start_once(self) -> None:
        java, jars = find_java(), jar_paths("broker")
        self._take_data_dir()
        self._take_ports()
        with _locked(self.data_dir) as lock:
            self._write_settings()
            command = [
                *(
                    str(java.executable),
                    f"-Xmx{self._heap_mb}m",
                    "-Xms128m",
                    *SHORT_RUN.split(),
                    "-XX:+ExitOnOutOfMemoryError",
                ),
                *(f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", f"-Dtotalorder.log={self.log_path}"),
                *("-cp", os.pathsep.join(map(str, jars))),
            ]
            self._format(command)
            self._launch([*command, "kafka.Kafka", str(self.data_dir / "server.properties")], lock)
        self._await_ready()

    def _take_data_dir(self) -> None:
        if self._data_dir is None:
            self._data_dir = self._given_data_dir or Path(tempfile.mkdtemp(prefix="totalorder-broker-"))
        try:
            self._data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentProblem(
                f"The data folder {self._data_dir} cannot be made: {error.strerror}", remedy="Give another one."
            ) from error

    def _take_ports(self) -> None:
        for port in (self._port, self._controller_port):
            if port is not None:
                _check_free(port)
        if self._port is None:
            self._port = _free_port(besides=self._controller_port)
        if self._controller_port is None:
            self._controller_port = _free_port(besides=self._port)

    def _write_settings(self) -> None:
        controller = f"{HOST}:{self._controller_port}"
        settings = {
            **_DEFAULTS,
            **self._settings,
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self.data_dir / "kafka"),
        }
        lines = [f"{name}={value.replace(chr(92), chr(92) * 2)}\n" for name, value in settings.items()]
        with _writing(self.data_dir):
            (self.data_dir / "server.properties").write_text("".join(lines), encoding="utf-8")

    def _format(self, command: list[str]) -> None:
        """Prepare the storage, once: a note in the data folder tells that it was done and finished."""
        note = self.data_dir / "formatted"
        if note.exists():
            return
        cluster_id = _new_cluster_id()
        tool = ["kafka.tools.StorageTool", "format", "--ignore-formatted", "-t", cluster_id, "-c"]
        try:
            done = subprocess.run(
                [*command, *tool, str(self.data_dir / "server.properties")],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self._start_timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise BrokerUnavailable(
                f"Formatting {self.data_dir} took more than {self._start_timeout_s:g} s", remedy=_BUSY.capitalize()
            ) from error
        if done.returncode != 0:
            raise BrokerUnavailable(
                f"The data folder {self.data_dir} could not be formatted:\n{done.stdout.strip()}",
                remedy="Give an empty folder, or check the settings named above.",
            )
        with _writing(self.data_dir):
            note.write_text(f"{cluster_id}\n", encoding="utf-8")

    def _launch(self, command: list[str], lock: int) -> None:
        """Start Java under a guard, which keeps the data folder's lock while it lives."""
        temporary = str(self.data_dir) if self._given_data_dir is None else ""
        guard = [sys.executable, "-I", "-S", str(_GUARD), str(os.getpid()), str(_STOP_GRACE_S), temporary]
        self._guard = subprocess.Popen(
            [*guard, str(self.log_path), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(lock,),
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        first_line = self._guard.stdout.readline()
        self._pid = int(first_line) if first_line else None

    def _await_ready(self) -> None:
        deadline = time.monotonic() + self._start_timeout_s
        while self.running and (left_s := deadline - time.monotonic()) > 0:
            if self._guard is not None and self._guard.stdout is not None and not _accepts(self.port):
                select.select([self._guard.stdout], [], [], min(0.05, left_s))  # readable: it has ended
                continue
            with contextlib.suppress(BrokerUnavailable):
                admin(self.bootstrap_servers, connect_timeout_s=min(2.0, left_s)).close()
                return
        if self.running:
            state, remedy = f"was not ready after {self._start_timeout_s:g} s", f"Where that names no cause: {_BUSY}"
        else:
            state, remedy = "ended while it started", "The log above names the cause."
        raise BrokerUnavailable(
            f"The local broker {state}; the end of {self.log_path}:\n{self.log_tail()}", remedy=remedy
        )

    def _end(self, order: bytes) -> None:
        guard, self._guard, self._pid = self._guard, None, None
        if guard is None:
            return
        assert guard.stdin is not None
        assert guard.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            guard.stdin.write(order)
            guard.stdin.flush()
        try:
            guard.wait(_STOP_GRACE_S + 10)
        except subprocess.TimeoutExpired:
            guard.kill()  # Java dies with it
            guard.wait()
        with contextlib.suppress(BrokenPipeError):
            guard.stdin.close()
        guard.stdout.close()

    def _discard(self) -> None:
        if self._given_data_dir is None and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
            self._data_dir = None


def _new_cluster_id() -> str:
    """A random id; the tool that formats would take one that begins with '-' for an option."""
    while (found := urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return found


@contextlib.contextmanager
def _writing(data_dir: Path) -> Iterator[None]:
    """Within, what the system says against writing there is told in words."""
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(
            f"The data folder {data_dir} cannot be written: {error.strerror}", remedy="Make room, or give another one."
        ) from error


@contextlib.contextmanager
def _locked(data_dir: Path) -> Iterator[int]:
    """A lock on the folder, as a file descriptor to hand on; whoever holds a copy holds the lock."""
    with _writing(data_dir):
        opened = (data_dir / "in-use.lock").open("w")
    with opened as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EnvironmentProblem(
                f"The data folder {data_dir} is in use by another local broker",
                remedy="Stop that one, or give another folder.",
            ) from None
        yield file.fileno()


def _check_free(port: int) -> None:
    if not 0 < port < 1 << 16:
        raise SettingsError(f"{port} is not a port number", remedy="Give one from 1 to 65535, or none for a free one.")
    if not is_port_free(port):
        raise EnvironmentProblem(
            f"Port {port} on {HOST} is in use", remedy="Give another one, or none: then a free one is picked."
        )


def _free_port(*, besides: int | None = None) -> int:
    for _ in range(_PORT_TRIES):
        port = random.choice(_FREE_PORTS)
        if port != besides and is_port_free(port):
            return port
    raise EnvironmentProblem(f"No free port found in {_FREE_PORTS}", remedy="Give one.")


def is_port_free(port: int) -> bool:
    """Whether a server could listen on this port of this machine now."""
    with socket.socket() as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as Kafka does: a closed connection's rest is no user
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
