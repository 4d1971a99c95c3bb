"""A worker's calls to its state in Java, without a wait after each (docs/adr/0006).

pyspark 4.2 asks and waits nine times a batch, and eight answers say no more than that all is well. Java answers in the
order in which it is asked: so a call whose answer says no more is only written, and its answer read before the next one
that says something. The last call of a batch waits for all, so none that failed stays unseen.

Java's thread ends with the first call that it refuses, and leaves the connection open: so no more is written ahead than
the socket takes of its own, and no wait is without an end.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

from totalorder.errors import Error
from totalorder.streaming.failures import WorkerFailure

Answer = tuple[int, str, bytes]
_HEAD, _VERSION = struct.Struct("!ii"), 0
_WELL: Answer = (0, "", b"")
_AHEAD_BYTES = 1 << 16
"""Written at most before answers are read. A Unix domain socket takes three times as much without a reader."""
_ANSWER_S = 120.0
"""How long Java may take for one call: its thread may be gone without a word, for want of memory or disk."""


def install() -> None:
    """Gives this process's workers the client that does not wait."""
    worker.StatefulProcessorApiClient = PipelinedClient  # type: ignore[attr-defined]


class PipelinedClient(StatefulProcessorApiClient):
    """pyspark's client: the same calls, in the same order."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._client_socket.settimeout(_ANSWER_S)
        self._waits = False
        self._unread = self._ahead = 0
        """Answers that are not read yet, and the bytes of their calls."""

    def _send_proto_message(self, message: bytes) -> None:
        """PySparkRuntimeError where a call failed whose answer had not been waited for; WorkerFailure without any."""
        with _bounded():
            if self._unread and self._ahead + len(message) > _AHEAD_BYTES:
                self._read_what_waited()
            self.sockfile.write(_HEAD.pack(_VERSION, len(message)))
            self.sockfile.write(message)
            self._waits = may_wait(messages.StateRequest.FromString(message))
            if self._waits:
                self._unread += 1
                self._ahead += len(message)
            else:
                self._read_what_waited()

    def _read_what_waited(self) -> None:
        self.sockfile.flush()
        unread, self._unread, self._ahead = self._unread, 0, 0
        for _ in range(unread):
            status, problem, _value = super()._receive_proto_message()
            if status != 0:
                raise PySparkRuntimeError(f"Error in an earlier call to the state: {problem}")

    def _receive_proto_message(self) -> Answer:
        with _bounded():
            return _WELL if self._waits else super()._receive_proto_message()


@contextmanager
def _bounded() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise WorkerFailure(
            Error(
                f"Spark's server for the state has not answered for {_ANSWER_S:g} s",
                remedy="Look for Java's own error above, memory or a full disk mostly; starting again is safe",
            )
        ) from error


def may_wait(request: messages.StateRequest) -> bool:
    """Whether the answer to a call says only that all is well, and another call follows for sure."""
    kind = request.WhichOneof("method")
    if kind == "statefulProcessorCall":
        call = request.statefulProcessorCall
        what = call.WhichOneof("method")
        return what == "getValueState" or (what == "setHandleState" and call.setHandleState.state != messages.CLOSED)
    if kind == "stateVariableRequest":
        variable = request.stateVariableRequest
        return bool(variable.valueStateCall.WhichOneof("method") == "valueStateUpdate")
    return bool(kind == "implicitGroupingKeyRequest")
