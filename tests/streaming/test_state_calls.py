"""The client that does not wait, against pyspark's own, before a stand-in for Java that answers in turn."""

import contextlib
import socket
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings, strategies as st
from pyspark import worker
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.proto import StateMessage_pb2 as messages
from pyspark.sql.streaming.stateful_processor_api_client import (
    StatefulProcessorApiClient,
    StatefulProcessorHandleState as HandleState,
)
from pyspark.sql.streaming.value_state_client import ValueStateClient
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from totalorder.streaming import state_calls
from totalorder.streaming.failures import WorkerFailure, error_from
from totalorder.streaming.state_calls import PipelinedClient, may_wait

KEY = StructType([StructField("shard_key", LongType())])
VALUE = StructType([StructField("bytes", BinaryType())])
_END_S = 20
Step = tuple[str, Any]


class Java:
    """A state server: a value for each key, all requests noted; refuses those that `refuses` picks by their number.

    With the first of these, which it leaves without an answer if it is `mute`, its thread ends; the connection stays.
    """

    def __init__(self, path: str, refuses: Callable[[int], bool], *, mute: bool) -> None:
        self.asked: list[bytes] = []
        self._refuses, self._mute = refuses, mute
        self._left = threading.Event()
        self._values: dict[bytes, bytes] = {}
        self._key = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def ended(self) -> None:
        self._left.set()
        self._thread.join(_END_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        self._listener.close()
        # A client that has failed leaves without having read all answers.
        with connection, connection.makefile("rb") as requests, contextlib.suppress(ConnectionError):
            while head := requests.read(8):
                version, length = struct.unpack("!ii", head)
                assert version == 0
                self.asked.append(requests.read(length))
                refused = self._refuses(len(self.asked) - 1)
                if not (refused and self._mute):
                    answer = self._answer(messages.StateRequest.FromString(self.asked[-1])).SerializeToString()
                    connection.sendall(struct.pack("!i", len(answer)) + answer)
                if refused:
                    self._left.wait(_END_S)
                    return

    def _answer(self, request: messages.StateRequest) -> messages.StateResponse:
        if self._refuses(len(self.asked) - 1):
            return messages.StateResponse(statusCode=1, errorMessage="no room")
        variable = request.stateVariableRequest.valueStateCall
        if request.WhichOneof("method") == "implicitGroupingKeyRequest":
            self._key = request.implicitGroupingKeyRequest.setImplicitKey.key
        if variable.WhichOneof("method") == "valueStateUpdate":
            self._values[self._key] = variable.valueStateUpdate.value
        if variable.WhichOneof("method") == "get":
            return messages.StateResponse(value=self._values.get(self._key, b""))
        return messages.StateResponse()


@contextmanager
def connected(
    kind: type[StatefulProcessorApiClient], refuses: Callable[[int], bool] = lambda _: False, *, mute: bool = False
) -> Iterator[Any]:
    """A client and the Java that it talks to."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "s")
        java = Java(path, refuses, mute=mute)
        client = kind(path, KEY)
        try:
            yield client, java
        finally:
            client.sockfile.close()
            client._client_socket.close()
            java.ended()


def done(client: StatefulProcessorApiClient, steps: list[Step]) -> list[Any]:
    """What the calls of one batch return, to its end."""
    value: Any = ValueStateClient(client, VALUE)
    client.get_value_state("part", VALUE, None)
    client.set_handle_state(HandleState.INITIALIZED)
    found = []
    for what, argument in steps:
        if what == "key":
            client.set_implicit_key((argument,))
        elif what == "update":
            value.update("part", (argument,))
        else:
            found.append(value.get("part"))
    client.set_handle_state(HandleState.DATA_PROCESSED)
    client.set_handle_state(HandleState.TIMER_PROCESSED)
    client.remove_implicit_key()
    client.set_handle_state(HandleState.CLOSED)
    return found


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("key"), st.integers(-2, 2)),
        st.tuples(st.just("update"), st.binary(max_size=4)),
        st.tuples(st.just("get"), st.none()),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_same_calls_in_the_same_order_find_the_same(steps: list[Step]) -> None:
    with connected(StatefulProcessorApiClient) as (plain, java), connected(PipelinedClient) as (own, other):
        assert done(own, steps) == done(plain, steps)
    assert other.asked == java.asked


def test_what_was_updated_is_read_before_the_batch_ends() -> None:
    with connected(PipelinedClient) as (client, _):
        assert done(client, [("key", 1), ("get", None), ("update", b"x"), ("key", 2), ("get", None)]) == [None, None]
    with connected(PipelinedClient) as (client, _):
        assert done(client, [("key", 1), ("update", b"x"), ("key", ~1), ("key", 1), ("get", None)]) == [(b"x",)]


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 12))
def test_a_refused_call_fails_the_batch_as_it_does_in_pyspark(steps: list[Step], refused: int) -> None:
    outcomes = []
    for kind in (StatefulProcessorApiClient, PipelinedClient):
        with connected(kind, lambda number: number == refused) as (client, _):
            try:
                done(client, steps)
            except PySparkRuntimeError as error:
                outcomes.append("no room" in str(error))
            else:
                outcomes.append(False)
    assert outcomes[0] == outcomes[1]


WHOLE_BATCH = [("key", 1), ("get", None), ("key", ~1), ("update", b"cold"), ("key", 1), ("update", bytes(600_000))]


@pytest.mark.parametrize("refused", range(12))
def test_a_refused_call_is_seen_though_java_takes_no_more_of_what_follows(
    refused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_calls, "_ANSWER_S", 5.0)
    with (
        connected(PipelinedClient, lambda number: number == refused) as (client, _),
        pytest.raises(PySparkRuntimeError, match="no room"),
    ):
        done(client, WHOLE_BATCH)


def test_no_more_is_written_ahead_than_the_socket_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_calls, "_ANSWER_S", 5.0)
    with (
        connected(PipelinedClient, lambda number: number == 3) as (client, _),
        pytest.raises(PySparkRuntimeError, match="no room"),
    ):
        done(client, [("key", 1)] + [("update", bytes(40_000))] * 12)


@pytest.mark.parametrize("last", range(12))
def test_java_that_is_gone_without_a_word_is_not_waited_for_for_ever(
    last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_calls, "_ANSWER_S", 0.2)
    with (
        connected(PipelinedClient, lambda number: number == last, mute=True) as (client, _),
        pytest.raises(WorkerFailure) as caught,
    ):
        done(client, WHOLE_BATCH)
    assert "has not answered for 0.2 s" in error_from(str(caught.value)).what


def test_it_waits_twice_a_batch() -> None:
    with (
        connected(PipelinedClient) as (client, _),
        mock.patch.object(client, "sockfile", wraps=client.sockfile) as file,
    ):
        done(client, [("key", 1), ("get", None), ("update", b"x")])
        assert file.flush.call_count == 2


@pytest.mark.parametrize(
    "request_",
    [
        messages.StateRequest(utilsRequest=messages.UtilsRequest()),
        messages.StateRequest(timerRequest=messages.TimerRequest()),
        messages.StateRequest(
            stateVariableRequest=messages.StateVariableRequest(
                valueStateCall=messages.ValueStateCall(stateName="part", exists=messages.Exists())
            )
        ),
        messages.StateRequest(
            statefulProcessorCall=messages.StatefulProcessorCall(getListState=messages.StateCallCommand())
        ),
    ],
)
def test_every_other_call_waits(request_: messages.StateRequest) -> None:
    assert not may_wait(request_)


def test_a_large_value_arrives_whole() -> None:
    value = bytes(range(256)) * 40_000
    with connected(PipelinedClient) as (client, _):
        assert done(client, [("key", 1), ("update", value), ("get", None)]) == [(value,)]


def test_workers_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "StatefulProcessorApiClient", StatefulProcessorApiClient)
    state_calls.install()
    assert worker.StatefulProcessorApiClient is PipelinedClient  # type: ignore[attr-defined]
