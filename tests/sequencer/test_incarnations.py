"""Kafka topics that are deleted and made again under their names, and topics that are retired, against a dumb twin."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import pytest
from engine_world import DOMAIN, configs
from hypothesis import given, settings, strategies as st
from reference import Logged, reference_order
from sources import src

from totalorder.errors import StateError
from totalorder.sequencer import registry
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.state import State, decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.control import Answer, Grant, Rejection, Retire, Retired, Subscribe, encode_request
from totalorder.sequencer.wire.stamps import KafkaTopic, Source

CONTROL = KafkaTopic(f"{DOMAIN}.control", "")
TOPICS = [KafkaTopic(name, topic_id) for name in "ab" for topic_id in "123"]


def retire(topic: KafkaTopic, **seen: int) -> Retire:
    """`p0=5`: the job has seen partition 0 go to before 5."""
    ends = {int(partition[1:]): end for partition, end in seen.items()}
    return Retire(id="job", nonce="n", topic=topic.name, topic_id=topic.topic_id, seen=ends)


@dataclass
class Twin:
    """What each batch comes to, told record by record."""

    g: int = 0
    ranks: dict[KafkaTopic, int] = field(default_factory=dict)
    retired: set[KafkaTopic] = field(default_factory=set)
    lost: dict[KafkaTopic, dict[int, tuple[int, int]]] = field(default_factory=dict)
    """As it was told first."""
    ends: dict[Source, int] = field(default_factory=dict)
    clocks: dict[str, int] = field(default_factory=dict)

    def batch(
        self, rows: Sequence[Row], requests: dict[int, Retire], order: Sequence[str]
    ) -> tuple[list[tuple[int, str, int, Source, int]], list[Answer], int]:
        """Stamps as (g, topic, n, source, offset), answers, and how many events were late."""
        stamps, answers, late = [], list[Answer](), 0
        of = {(row.kafka_topic, row.topic_id, row.partition, row.offset): row for row in rows}
        fresh = {KafkaTopic(row.kafka_topic, row.topic_id) for row in rows} - self.ranks.keys() - {CONTROL}
        self.number(sorted(fresh))
        logged = [Logged(*row[:4], row.slice, row.topic_id) for row in rows]
        for record in reference_order(logged, time_ms=20, topic_order=order, ranks=self.ranks):
            topic = KafkaTopic(record.kafka_topic, record.topic_id)
            if topic == CONTROL:
                self.g += 1
                answers.append(self.retire(requests[record.offset], record.offset))
            elif topic in self.retired:
                late += 1
            else:
                self.g += 1
                source = Source(*topic, record.partition)
                name = of[topic.name, topic.topic_id, record.partition, record.offset].topic
                self.clocks[name] = self.clocks.get(name, 0) + 1
                stamps.append((self.g, name, self.clocks[name], source, record.offset))
                self.ends[source] = record.offset + 1
        return stamps, answers, late

    def number(self, topics: Sequence[KafkaTopic]) -> None:
        for topic in topics:
            self.ranks.setdefault(topic, len(self.ranks))

    def retire(self, request: Retire, offset: int) -> Retired:
        topic = KafkaTopic(request.topic, request.topic_id)
        self.number([topic])
        first = {partition: self.ends.get(Source(*topic, partition), 0) for partition in request.seen}
        lost = {part: (first[part], end) for part, end in sorted(request.seen.items()) if end > first[part]}
        self.retired.add(topic)
        return Retired(
            id="job",
            nonce="n",
            g=self.g,
            offset=offset,
            topic=topic.name,
            topic_id=topic.topic_id,
            lost=self.lost.setdefault(topic, lost),
            batch=0,
            incarnation=1,
        )


class Log:
    """Random batches: incarnations come and go, offsets of each begin at 0, retirements stand anywhere."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.next, self.controls = rng, dict[Source, int](), 0

    def batch(self) -> tuple[list[Row], dict[int, Retire]]:
        rng, rows, requests = self.rng, list[Row](), dict[int, Retire]()
        slice_ = 0
        for _ in range(rng.randint(1, 12)):
            slice_ += rng.random() < 0.2
            if rng.random() < 0.2:
                seen = {"p0": rng.randint(0, 9), "p1": rng.randint(0, 9), "p7": rng.randint(0, 1)}
                requests[self.controls] = retire(rng.choice(TOPICS), **seen)
                value = encode_request(requests[self.controls])
                rows.append(Row(CONTROL.name, 0, self.controls, rng.randint(0, 20), control=value, slice=slice_))
                self.controls += 1
            else:
                source = Source(*rng.choice(TOPICS), rng.randrange(2))
                offset = self.next.get(source, 0) + rng.choice([0, 0, 0, 2])
                self.next[source] = offset + 1
                where = (source.topic, source.partition, offset)
                topic_id = source.topic_id
                rows.append(Row(*where, rng.randint(0, 20), rng.choice("TX"), 1, slice=slice_, topic_id=topic_id))
        rng.shuffle(rows)
        return rows, requests


def stamped(effects: Sequence[Effects]) -> Iterator[tuple[int, str, int, Source, int]]:
    for batch in (batch for done in effects for batch in done.stamps):
        rows = batch.rows
        for row in range(len(rows)):
            topic = batch.names[int(rows.topic[row])]
            yield int(rows.g[row]), topic, int(rows.n[row]), batch.sources[int(rows.source[row])], int(rows.offset[row])


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=False), shards=st.integers(1, 3))
def test_the_engine_does_what_the_twin_says(rng: random.Random, shards: int) -> None:
    log, twin = Log(rng), Twin()
    states = [initial_state(config) for config in configs(shards=shards, partitions=3)]
    known: dict[Source, int] = {}
    for _ in range(rng.randint(1, 5)):
        rows, requests = log.batch()
        order = rng.sample("ab", rng.randint(0, 2))
        stamps, answers, late = twin.batch(rows, requests, order)
        batch = Batch.of(20, rows, topic_order=tuple(order))
        results = [step(state, batch, {}) for state in states]
        states = [reloaded(state) for state, _ in results]
        effects = [done for _, done in results]
        assert sorted(stamped(effects)) == stamps
        assert [replace(answer, batch=0) for done in effects for answer in done.answers] == answers
        frontiers = {(batch.sources, batch.ends, batch.g) for done in effects for batch in done.stamps}
        if len(rows) == late:  # what is late makes no batch
            assert not frontiers
            continue
        assert len(frontiers) == 1
        told = effects[0].stamps[0].next_offsets
        assert all(end > known.get(source, 0) for source, end in told.items()), "a partition that did not move"
        known |= told
        assert known == twin.ends
        for done in effects:
            assert (done.late, done.events) == (late, len(stamps))
        assert {topic for state in states for topic in retired_of(state)} == twin.retired
        for state in states:
            assert len(state.hot.next_offsets) == len(state.cold.sources)
            assert not {rank for rank, _ in state.cold.sources} & state.cold.retired.keys()


def reloaded(state: State) -> State:
    """As a process that begins later has it."""
    return State(hot=decode_hot(encode_hot(state.hot)), cold=decode_cold(encode_cold(state.cold)))


def retired_of(state: State) -> set[KafkaTopic]:
    return {state.cold.kafka_topics[rank] for rank in state.cold.retired}


OLD, NEW = KafkaTopic("a", "1"), KafkaTopic("a", "2")


def row(topic: KafkaTopic, offset: int, time_ms: int = 1, name: str = "a") -> Row:
    return Row(topic.name, 0, offset, time_ms, name, topic_id=topic.topic_id)


def control(offset: int, value: bytes, time_ms: int = 1) -> Row:
    return Row(CONTROL.name, 0, offset, time_ms, control=value)


def run(*batches: Sequence[Row], topic_by: str = "topic") -> tuple[State, list[Effects]]:
    state, effects = initial_state(replace(configs(partitions=1)[0], topic_by=topic_by)), []
    for rows in batches:
        state, done = step(state, Batch.of(20, rows), {})
        effects.append(done)
    return state, effects


def test_the_clock_of_a_topic_goes_on_through_its_incarnations() -> None:
    _, effects = run([row(OLD, 0), row(OLD, 1)], [row(NEW, 0), row(OLD, 2, 2)], [row(NEW, 1)])
    found = [(n, source.topic_id, offset) for _, _, n, source, offset in sorted(stamped(effects))]
    assert found == [(1, "1", 0), (2, "1", 1), (3, "2", 0), (4, "1", 2), (5, "2", 1)]


def test_an_offset_comes_a_second_time_only_within_one_incarnation() -> None:
    run([row(OLD, 3)], [row(NEW, 3)])
    with pytest.raises(StateError, match=r"offset 3 of a\[0\] comes a second time"):
        run([row(OLD, 3)], [row(NEW, 3)], [row(NEW, 3)])


def test_incarnations_of_one_batch_are_ranked_by_their_ids_whatever_the_order_of_rows() -> None:
    for rows in ([row(NEW, 0), row(OLD, 0)], [row(OLD, 0), row(NEW, 0)]):
        state, effects = run(rows)
        assert state.cold.kafka_topics == (OLD, NEW)
        assert [source.topic_id for _, _, _, source, _ in sorted(stamped(effects))] == ["1", "2"]


def test_the_order_of_topics_goes_by_name_and_within_a_name_by_rank() -> None:
    rows = [row(NEW, 0), row(OLD, 0), row(KafkaTopic("0", "x"), 0)]
    _, done = step(initial_state(configs(partitions=1)[0]), Batch.of(20, rows, topic_order=("a",)), {})
    assert [source.topic_id for _, _, _, source, _ in sorted(stamped([done]))] == ["1", "2", "x"]


def test_a_grant_leaves_retired_topics_out() -> None:
    request = Subscribe(id="s", generation=1, nonce="n", topics=("a",), lease_s=0, stamps_ends={})
    retired = [control(0, encode_request(retire(OLD, p0=5)), 2), control(1, encode_request(request), 3)]
    _, (_, done) = run([row(OLD, 0), row(NEW, 0)], retired)
    (_, grant) = done.answers
    assert isinstance(grant, Grant)
    assert grant.next_offsets == {src("a", 0, "2"): 1}


def test_a_start_that_the_domain_recorded_is_where_what_is_lost_begins() -> None:
    state = initial_state(configs(partitions=1)[0])
    starts = {src("a", 0, "1"): 3, src("a", 1, "1"): 4, src("b", 0, "1"): 9}
    value = encode_request(retire(OLD, p0=5, p1=4, p2=2))
    _, done = step(state, Batch.of(20, [control(0, value)]), starts)
    (answer,) = done.answers
    assert isinstance(answer, Retired)
    assert answer.lost == {0: (3, 5), 2: (0, 2)}


def test_an_unknown_topic_is_refused_where_the_domain_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_KAFKA_TOPICS", 2)
    values = [encode_request(retire(topic)) for topic in (KafkaTopic("new", "1"), NEW, OLD)]
    state, (_, done) = run([row(OLD, 0), row(NEW, 0)], [control(at, value) for at, value in enumerate(values)])
    assert [type(answer) for answer in done.answers] == [Rejection, Retired, Retired]
    assert "2 Kafka topics, its limit" in done.answers[0].reason  # type: ignore[union-attr]
    assert [answer.g for answer in done.answers] == [3, 4, 5]
    assert retired_of(state) == {OLD, NEW}


def test_to_retire_again_changes_nothing_and_is_answered() -> None:
    value = encode_request(retire(OLD, p0=9))
    once, _ = run([row(OLD, 0)], [control(0, value)])
    twice, (_, first, again) = run([row(OLD, 0)], [control(0, value)], [control(1, value)])
    assert (first.cold_changed, again.cold_changed) == (True, False)
    assert once.cold == twice.cold
    assert [answer.lost for done in (first, again) for answer in done.answers] == [{0: (1, 9)}] * 2  # type: ignore[union-attr]


def test_events_without_a_topic_are_late_too() -> None:
    _, (done,) = run([control(0, encode_request(retire(OLD)), 1), row(OLD, 0, 2, name="")])
    assert (done.late, done.unroutable, done.events) == (1, (), 0)
    assert done.stamps[0].next_offsets == {}
