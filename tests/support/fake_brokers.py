"""Brokers that are sockets of this process and speak Kafka's bytes, so that a test decides which of them says what.

A cluster of several real brokers would take a machine of its own; what one real broker answers is tested on one.
"""

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsResponse, MetadataRequest, MetadataResponse

HOST = "127.0.0.1"
LIST_OFFSETS, METADATA, API_VERSIONS = 2, 3, 18
NOT_LEADER, UNKNOWN_TOPIC = 6, 3
EARLIEST = -2
"""In the place of a time: where the log begins, which is 0 here."""
_Topic = MetadataResponse.MetadataResponseTopic
_Told = ListOffsetsResponse.ListOffsetsTopicResponse


class FakeBrokers:
    """`leaders` has the number of the broker that leads a partition, `ends` and `epochs` what it tells of it.

    A broker that has ids in `stale` tells those, one in `frozen` answers nothing. `mangle` may change an answer: it is
    given the broker's number, the request's key and the answer's bytes, and returns bytes to send in their place, or
    None to hang up.
    """

    def __init__(self, count: int) -> None:
        self.ids: dict[str, UUID] = {}
        self.stale: dict[int, dict[str, UUID]] = {}
        self.leaders: dict[tuple[str, int], int] = {}
        self.ends: dict[tuple[str, int], int] = {}
        self.epochs: dict[tuple[str, int], int] = {}
        self.errors: dict[tuple[str, int], int] = {}
        self.versions = {API_VERSIONS: (0, 4), LIST_OFFSETS: (1, 11), METADATA: (0, 13)}
        self.frozen: set[int] = set()
        self._held: set[int] = set()
        self.throttle_ms = 0
        self.asked: list[tuple[int, int]] = []
        self.mangle: Callable[[int, int, bytes], bytes | None] = lambda _number, _key, answer: answer
        self._thawed = threading.Condition()
        self._closed = False
        self._listeners = [socket.create_server((HOST, 0)) for _ in range(count)]
        self._connections: list[socket.socket] = []
        for number, listener in enumerate(self._listeners):
            threading.Thread(target=self._accept, args=(number, listener), daemon=True).start()

    @property
    def bootstrap_servers(self) -> str:
        """All of them."""
        return ",".join(f"{HOST}:{listener.getsockname()[1]}" for listener in self._listeners)

    def freeze(self, number: int) -> None:
        """Returns when the broker holds a question back: all that it answered before was asked before."""
        with self._thawed:
            self.frozen.add(number)
            assert self._thawed.wait_for(lambda: number in self._held, timeout=30)

    def thaw(self, number: int) -> None:
        """The broker answers what it was asked meanwhile."""
        with self._thawed:
            self.frozen.discard(number)
            self._thawed.notify_all()

    def close(self) -> None:
        """Ends all."""
        with self._thawed:
            self._closed = True
            self.frozen.clear()
            self._thawed.notify_all()
        for sock in [*self._listeners, *self._connections]:
            sock.close()

    def _accept(self, number: int, listener: socket.socket) -> None:
        while not self._closed:
            try:
                connection = listener.accept()[0]
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(number, connection), daemon=True).start()

    def _serve(self, number: int, connection: socket.socket) -> None:
        with connection:
            try:
                while head := connection.recv(4, socket.MSG_WAITALL):
                    request = connection.recv(struct.unpack(">i", head)[0], socket.MSG_WAITALL)
                    with self._thawed:
                        if number in self.frozen:
                            self._held.add(number)
                            self._thawed.notify_all()
                            self._thawed.wait_for(lambda: number not in self.frozen)
                            self._held.discard(number)
                    answer = self._answer(number, request)
                    if answer is None:
                        return
                    connection.sendall(answer)
            except OSError:
                return

    def _answer(self, number: int, request: bytes) -> bytes | None:
        key, version, correlation = struct.unpack_from(">hhi", request)
        self.asked.append((number, key))
        if key == API_VERSIONS:
            answer = self._api_versions()
        elif key == METADATA:
            answer = self._metadata(number, MetadataRequest.decode(request, version=version, header=True))
        else:
            answer = self._offsets(number, ListOffsetsRequest.decode(request, version=version, header=True))
        answer.API_VERSION = version
        answer.with_header(correlation_id=correlation)
        encoded = self.mangle(number, key, bytes(answer.encode(header=True)))
        return None if encoded is None else struct.pack(">i", len(encoded)) + encoded

    def _api_versions(self) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys)

    def _metadata(self, number: int, request: Any) -> Any:
        ids = self.stale.get(number, self.ids)
        brokers = [
            MetadataResponse.MetadataResponseBroker(node_id=each, host=HOST, port=listener.getsockname()[1], rack=None)
            for each, listener in enumerate(self._listeners)
        ]
        topics = [self._topic(topic.name, ids) for topic in request.topics]
        return MetadataResponse(throttle_time_ms=0, brokers=brokers, cluster_id="c", controller_id=0, topics=topics)

    def _topic(self, name: str, ids: Mapping[str, UUID]) -> Any:
        if name not in ids:
            return _Topic(error_code=UNKNOWN_TOPIC, name=name, topic_id=UUID(int=0), is_internal=False, partitions=[])
        partitions = [
            _Topic.MetadataResponsePartition(
                error_code=0 if leader >= 0 else 5,
                partition_index=partition,
                leader_id=leader,
                leader_epoch=self.epochs.get((name, partition), 0),
                replica_nodes=[0],
                isr_nodes=[0],
                offline_replicas=[],
            )
            for (topic, partition), leader in sorted(self.leaders.items())
            if topic == name
        ]
        return _Topic(error_code=0, name=name, topic_id=ids[name], is_internal=False, partitions=partitions)

    def _offsets(self, number: int, request: Any) -> Any:
        topics = [
            _Told(name=topic.name, partitions=[self._told(number, topic.name, part) for part in topic.partitions])
            for topic in request.topics
        ]
        return ListOffsetsResponse(throttle_time_ms=self.throttle_ms, topics=topics)

    def _told(self, number: int, name: str, asked: Any) -> Any:
        source = (name, asked.partition_index)
        error = self.errors.get(source, 0)
        if source not in self.leaders:
            error = UNKNOWN_TOPIC
        elif self.leaders[source] != number:
            error = NOT_LEADER
        return _Told.ListOffsetsPartitionResponse(
            partition_index=asked.partition_index,
            error_code=error,
            timestamp=-1,
            offset=-1 if error else 0 if asked.timestamp == EARLIEST else self.ends.get(source, 0),
            leader_epoch=-1 if error else self.epochs.get(source, 0),
        )
