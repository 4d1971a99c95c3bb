"""A worker's calls to its state in Java, without a wait after each (docs/adr/0006).

pyspark 4.2 asks and waits nine times a batch, and eight answers say no more than that all is well. Java answers in the
order in which it is asked: so a call whose answer says no more is only written, and its answer read before the next one
that says something. The last call of a batch waits for all, so none that failed stays unseen.
"""

import struct
from typing import Any

from pyspark import worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient

Answer = tuple[int, str, bytes]
_HEAD, _VERSION = struct.Struct("!ii"), 0
_WELL: Answer = (0, "", b"")


def install() -> None:
    """Gives this process's workers the client that does not wait."""
    worker.StatefulProcessorApiClient = PipelinedClient  # type: ignore[attr-defined]


class PipelinedClient(StatefulProcessorApiClient):
    """pyspark's client: the same calls, in the same order."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._waits = False
        self._unread = 0

    def _send_proto_message(self, message: bytes) -> None:
        """PySparkRuntimeError where a call failed whose answer had not been waited for."""
        self.sockfile.write(_HEAD.pack(_VERSION, len(message)))
        self.sockfile.write(message)
        self._waits = may_wait(messages.StateRequest.FromString(message))
        if self._waits:
            self._unread += 1
        else:
            self.sockfile.flush()
            self._read_what_waited()

    def _read_what_waited(self) -> None:
        for _ in range(self._unread):
            status, problem, _value = super()._receive_proto_message()
            if status != 0:
                raise PySparkRuntimeError(f"Error in an earlier call to the state: {problem}")
        self._unread = 0

    def _receive_proto_message(self) -> Answer:
        return _WELL if self._waits else super()._receive_proto_message()


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
