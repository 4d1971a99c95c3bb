"""Questions about topics and offsets that are asked a few times a batch, and waited for."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from kafka.errors import RetriableError, for_code

from totalorder.errors import BrokerUnavailable, Error, SettingsError
from totalorder.kafka_settings import server_list
from totalorder.streaming.cut.connection import Connector, Wire, receive_all
from totalorder.streaming.cut.ends import refused
from totalorder.streaming.cut.requests import (
    EARLIEST,
    LATEST,
    UNKNOWN_TOPIC,
    Address,
    AnswerError,
    Cluster,
    OffsetsQuestion,
    Topic,
    metadata_request,
    read_metadata,
)

Ints = npt.NDArray[np.int64]
T = TypeVar("T")
Asked = Sequence[tuple[str, int]]
"""Topic and partition, none twice."""

_PAUSE_S, _ASK_AGAIN_S = 0.05, 0.1
_GONE_S = 1.0
"""For so long a broker may not have heard yet of a topic that there is."""


class TopicGone(Error):
    """Kafka has no such topic, or no such partition of it."""


class _NotNow(Exception):
    """A broker cannot answer this just now."""


class Questions:
    """Connections of its own. Each question is asked again for `timeout_s`; then BrokerUnavailable is raised.

    May be used in several threads, which then wait for each other.
    """

    def __init__(self, bootstrap_servers: str, kafka: Mapping[str, str], *, timeout_s: float) -> None:
        """Connects when something is asked. `kafka`: settings by Java name. Raises SettingsError."""
        self._connector = Connector(bootstrap_servers, kafka)
        self._first = [Address(host.strip("[]"), int(port)) for host, _, port in _parts(bootstrap_servers)]
        self._timeout_s = timeout_s
        self._lock = RLock()
        self._wires: dict[Address, Wire] = {}
        self._brokers: list[Address] = []
        self._request: tuple[frozenset[str], bytes] = (frozenset(), metadata_request(()))
        self._answer: tuple[bytes, Cluster] | None = None
        self._turn = 0
        self._leaders: tuple[frozenset[str], Cluster] | None = None

    def close(self) -> None:
        """Ends all connections."""
        with self._lock:
            while self._wires:
                self._wires.popitem()[1].close()

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Ids and leaders of those topics that exist. Raises Error for what a broker refuses to tell."""
        wanted = frozenset(names)
        with self._lock:
            return self._again(lambda left_s: self._ask_topics(wanted, left_s))

    def cluster(self, names: Iterable[str]) -> Cluster:
        """The same with the brokers' addresses, and errors that may pass: what one broker knows.

        Each time it is another broker that is asked first, since one may not have heard the news.
        """
        wanted = frozenset(names)
        with self._lock:
            self._turn += 1
            return self._again(lambda left_s: self._ask_cluster(wanted, left_s))

    def told_ids(self, names: Iterable[str], *, by_all: bool = False) -> dict[str, set[str | None]]:
        """Each id that brokers tell of a topic, None where it is not known: all brokers that lead one of its partitions
        are asked, or all that there are. A broker that leads a new topic's partition knows it before it gives any of
        its records; of the others any may lag behind. Raises Error for what a broker refuses to tell.
        """
        wanted = frozenset(names)
        with self._lock:
            return self._again(lambda left_s: self._ask_ids(wanted, _brokers if by_all else _leaders, left_s))

    def gone(self, topic_ids: Mapping[str, str]) -> set[str]:
        """Names of topics, given with their ids, that Kafka has no longer, or under another id: no broker tells theirs,
        asked several times within a second, since one may not have heard yet of a topic that was made a moment ago.
        """
        left, until_s = dict(topic_ids), time.monotonic() + _GONE_S
        while left:
            told = self.told_ids(left, by_all=True)
            left = {name: topic_id for name, topic_id in left.items() if topic_id not in told[name]}
            if time.monotonic() > until_s:
                break
            if left:
                time.sleep(_ASK_AGAIN_S)
        return set(left)

    def ends(self, asked: Asked) -> Ints:
        """The last stable offsets: what readers of committed records may read up to."""
        return self.offsets_at(asked, LATEST)

    def earliest(self, asked: Asked) -> Ints:
        """The first offsets that Kafka has."""
        return self.offsets_at(asked, EARLIEST)

    def offsets_at(self, asked: Asked, time_ms: int) -> Ints:
        """By place, the first offset whose record has at least this time; -1 where there is none.

        It may lie behind the end of what is committed. Raises TopicGone, and Error for what a broker refuses.
        """
        begun_s = time.monotonic()
        with self._lock:
            return self._again(lambda left_s: self._ask_offsets(asked, time_ms, begun_s, left_s))

    # --- asking -------------------------------------------------------------------------------------------------------

    def _again(self, ask: Callable[[float], T]) -> T:
        """`ask` is given the seconds that are left for it."""
        until_s, pause_s = time.monotonic() + self._timeout_s, _PAUSE_S
        while True:
            try:
                return ask(max(0.001, until_s - time.monotonic()))
            except (_NotNow, BrokerUnavailable, AnswerError) as error:
                self._leaders, self._turn = None, self._turn + 1
                if time.monotonic() + pause_s > until_s:
                    raise self._gives_up(error) from error
            time.sleep(pause_s)
            pause_s = min(1.0, 2 * pause_s)

    def _gives_up(self, error: Exception) -> Exception:
        if isinstance(error, _NotNow):
            return BrokerUnavailable(
                f"The Kafka brokers at {self._connector.bootstrap_servers} could not answer within "
                f"{self._timeout_s:g} s ({error})",
                remedy="Check that all of them run and can be reached.",
            )
        return error

    def _ask_topics(self, names: frozenset[str], left_s: float) -> dict[str, Topic]:
        return _whole(self._ask_cluster(names, left_s)).topics

    def _ask_ids(
        self, names: frozenset[str], whom: Callable[[Cluster], set[Address]], left_s: float
    ) -> dict[str, set[str | None]]:
        first, answer = self._ask_anyone(self._metadata_request(names), left_s)
        told = {first: _whole(self._checked(answer))}
        while new := {address for cluster in told.values() for address in whom(cluster)} - told.keys():
            answers = self._ask(dict.fromkeys(new, self._metadata_request(names)), left_s)
            told |= {address: _whole(self._checked(answer)) for address, answer in answers.items()}
        return {
            name: {
                None if topic is None else topic.topic_id for topic in (each.topics.get(name) for each in told.values())
            }
            for name in names
        }

    def _ask_cluster(self, names: frozenset[str], left_s: float) -> Cluster:
        return self._checked(self._ask_anyone(self._metadata_request(names), left_s)[1])

    def _metadata_request(self, names: frozenset[str]) -> bytes:
        if self._request[0] != names:
            self._request = (names, metadata_request(names))
        return self._request[1]

    def _checked(self, answer: bytes) -> Cluster:
        cluster = self._read_cluster(answer)
        if not cluster.brokers:
            raise _NotNow("they know of no broker")
        for name, code in cluster.errors.items():
            if not issubclass(for_code(code), RetriableError):
                raise refused(name, for_code(code))
        self._brokers = list(cluster.brokers.values())
        return cluster

    def _read_cluster(self, answer: bytes) -> Cluster:
        if self._answer is None or self._answer[0] != answer:
            self._answer = (answer, read_metadata(answer))
        return self._answer[1]

    def _ask_anyone(self, request: bytes, left_s: float) -> tuple[Address, bytes]:
        """The first broker that answers, and what it answers."""
        candidates = sorted(self._brokers) or self._first
        turn = self._turn % len(candidates)
        candidates = list(dict.fromkeys([*candidates[turn:], *candidates[:turn], *self._first]))
        for address in candidates[:-1]:
            try:
                return address, self._ask({address: request}, left_s / len(candidates))[address]
            except (_NotNow, BrokerUnavailable, AnswerError):
                continue
        last = candidates[-1]
        return last, self._ask({last: request}, left_s / len(candidates))[last]

    def _borne(self, error: SettingsError) -> Error:
        """A broker that is just starting refuses logins that it will take a moment later."""
        if not self._brokers:
            raise error
        return BrokerUnavailable(error.what, remedy=error.remedy)

    def _ask(self, requests: Mapping[Address, bytes], timeout_s: float) -> dict[Address, bytes]:
        """All at once. Raises the first Error, and gives up the connections that it cannot use any more."""
        until_s = time.monotonic() + timeout_s
        wires = {address: self._wire(address, timeout_s) for address in requests}
        try:
            for address, wire in wires.items():
                wire.ask(requests[address])
            outcomes = receive_all(wires.values(), until_s)
        finally:
            for address in [address for address, wire in wires.items() if not wire.is_usable]:
                self._wires.pop(address).close()
        return {address: self._answered(outcomes.get(wire), address) for address, wire in wires.items()}

    def _answered(self, outcome: bytes | Error | None, address: Address) -> bytes:
        if outcome is None:
            raise _NotNow(f"{address.host}:{address.port} did not")
        if isinstance(outcome, Error):
            raise outcome
        return outcome

    def _wire(self, address: Address, timeout_s: float) -> Wire:
        wire = self._wires.get(address)
        if wire is not None and wire.is_over():
            self._wires.pop(address).close()
            wire = None
        if wire is None:
            try:
                wire = self._wires[address] = self._connector.open(address, timeout_s)
            except SettingsError as error:
                raise self._borne(error) from error
        return wire

    # --- offsets ------------------------------------------------------------------------------------------------------

    def _ask_offsets(self, asked: Asked, time_ms: int, begun_s: float, left_s: float) -> Ints:
        led = self._led(asked, self._known_leaders(frozenset(topic for topic, _ in asked), left_s), begun_s)
        questions = {
            address: OffsetsQuestion([asked[place] for place in places], time_ms) for address, places in led.items()
        }
        answers = self._ask({address: question.request for address, question in questions.items()}, left_s)
        found = np.full(len(asked), -1, np.int64)
        for address, question in questions.items():
            offsets = question.read(answers[address])
            for index in np.flatnonzero(offsets.error).tolist():
                self._refuse(asked[led[address][index]][0], int(offsets.error[index]))
            found[led[address]] = offsets.offset
        return found

    def _known_leaders(self, names: frozenset[str], left_s: float) -> Cluster:
        """Asked for again after any failure; a leader that has moved says so."""
        if self._leaders is None or self._leaders[0] != names:
            self._leaders = (names, self._ask_cluster(names, left_s))
        return self._leaders[1]

    def _led(self, asked: Asked, cluster: Cluster, begun_s: float) -> dict[Address, list[int]]:
        led: dict[Address, list[int]] = {}
        for place, (name, partition) in enumerate(asked):
            topic = cluster.topics.get(name)
            if name in cluster.errors:
                raise _NotNow(f"topic {name}: {for_code(cluster.errors[name]).__name__}")
            if topic is None or partition >= len(topic.leaders):
                if time.monotonic() - begun_s > min(_GONE_S, self._timeout_s / 2):
                    raise TopicGone(f"Kafka has no partition {partition} of topic {name}", remedy="Ask for its id.")
                raise _NotNow(f"no partition {partition} of topic {name}")
            address = cluster.brokers.get(topic.leaders[partition])
            if address is None:
                raise _NotNow(f"partition {partition} of topic {name} has no leader")
            led.setdefault(address, []).append(place)
        return led

    def _refuse(self, topic: str, code: int) -> None:
        kind = for_code(code)
        if code != UNKNOWN_TOPIC and not issubclass(kind, RetriableError):
            raise refused(topic, kind)
        raise _NotNow(f"topic {topic}: {kind.__name__}")


def _whole(cluster: Cluster) -> Cluster:
    """The same where it tells of all topics that it was asked for."""
    for name, code in cluster.errors.items():
        raise _NotNow(f"topic {name}: {for_code(code).__name__}")
    return cluster


def _leaders(cluster: Cluster) -> set[Address]:
    """Brokers that lead anything of the topics."""
    led = {leader for topic in cluster.topics.values() for leader in topic.leaders}
    return {cluster.brokers[leader] for leader in led if leader in cluster.brokers}


def _brokers(cluster: Cluster) -> set[Address]:
    return set(cluster.brokers.values())


def _parts(bootstrap_servers: str) -> list[tuple[str, str, str]]:
    return [server.rpartition(":") for server in server_list(bootstrap_servers)]
