"""The engine against the dumb twin, which counts everything from scratch, and against itself in other shapes."""

import random
from dataclasses import replace

import numpy as np
import pytest
from engine_world import DOMAIN, configs, full_stamps, rows_of, run, same_rows
from hypothesis import given, strategies as st
from reference import (
    Change,
    Event,
    Item,
    change,
    events,
    reference_clock,
    reference_stamps,
)
from sources import bare

from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.wire.control import (
    Claim,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Repeated,
    Subscribe,
    encode_claim,
    encode_request,
)
from totalorder.sequencer.wire.names import stamps_partition

topics = st.sampled_from("TXYZ")
histories: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(topics.map(Event), topics.map(Event), st.builds(change, st.sampled_from("rst"), st.sets(topics))),
    max_size=40,
)
ms = st.sampled_from([1, 2])


def cut(rows: list[Row], rng: random.Random) -> list[list[Row]]:
    """Random batch boundaries; the rows of each batch in random order."""
    batches: list[list[Row]] = [[]]
    for row in rows:
        if rng.random() < 0.3:
            batches.append([])
        batches[-1].append(row)
    for batch in batches:
        rng.shuffle(batch)
    return [batch for batch in batches if batch]


@given(
    items=histories,
    m=ms,
    shards=st.integers(1, 4),
    keyframe_every=st.integers(1, 5),
    rng=st.randoms(use_true_random=False),
)
def test_stamps_are_what_counting_from_scratch_gives(
    items: list[Item], m: int, shards: int, keyframe_every: int, rng: random.Random
) -> None:
    batches = cut(rows_of(items, rng if rng.random() < 0.5 else None), rng)
    _, effects = run(batches, configs(shards=shards, m=m, keyframe_every=keyframe_every))
    stamped = [batch for effect in effects for batch in effect.stamps]
    assert full_stamps(stamped) == reference_stamps(items, m, opening=True)


@given(items=histories, m=ms, rng=st.randoms(use_true_random=False))
def test_delta_coding_leaves_out_only_what_did_not_advance(items: list[Item], m: int, rng: random.Random) -> None:
    batches = cut(rows_of(items), rng)
    _, small = run(batches, configs(m=m, keyframe_every=10**6))
    _, full = run(batches, configs(m=m, keyframe_every=1))
    written = sum(len(batch.rows.entry_topic) for effect in small for batch in effect.stamps)
    assert written <= sum(len(batch.rows.entry_topic) for effect in full for batch in effect.stamps)
    assert full_stamps(batch for effect in small for batch in effect.stamps) == full_stamps(
        [batch for effect in full for batch in effect.stamps], undelta=False
    )


@given(items=histories, shards=st.integers(2, 4), rng=st.randoms(use_true_random=False))
def test_shards_do_not_show(items: list[Item], shards: int, rng: random.Random) -> None:
    batches = cut(rows_of(items), rng)
    _, one = run(batches, configs())
    states, many = run(batches, configs(shards=shards))
    key = lambda batch: (batch.batch, batch.partition)  # noqa: E731
    assert [b.digest for b in sorted((b for e in one for b in e.stamps), key=key)] == [
        b.digest for b in sorted((b for e in many for b in e.stamps), key=key)
    ]
    assert [a for e in one for a in e.answers] == [a for e in many for a in e.answers]
    for state in states:
        assert state.cold.subscriptions == states[0].cold.subscriptions
        assert state.hot.clocks.tolist() == states[0].hot.clocks.tolist()


@given(items=histories, m=ms, rng=st.randoms(use_true_random=False))
def test_rows_in_any_order_give_the_same_content(items: list[Item], m: int, rng: random.Random) -> None:
    batches = cut(rows_of(items), rng)
    _, one = run(batches, configs(m=m))
    _, other = run([rng.sample(batch, len(batch)) for batch in batches], configs(m=m))
    assert [b.digest for e in one for b in e.stamps] == [b.digest for e in other for b in e.stamps]
    assert [e.answers for e in one] == [e.answers for e in other]


@given(items=histories, shards=st.integers(1, 2), rng=st.randoms(use_true_random=False))
def test_claims_have_no_place_in_the_order(items: list[Item], shards: int, rng: random.Random) -> None:
    batches = cut(rows_of(items), rng)
    claimed: list[list[Row]] = []
    for at, batch in enumerate(batches):
        claims = [claim_row(10**4 + 3 * at + more, rng.randrange(60)) for more in range(3)]
        claimed += [claims[:1], rng.sample(batch + claims[1:], len(batch) + 2)]
    _, one = run(batches, configs(shards=shards))
    _, other = run(claimed, configs(shards=shards))
    assert [told(effect) for effect in other if effect != Effects()] == [told(effect) for effect in one]
    assert len(other) == 2 * len(one)


def told(effect: Effects) -> tuple[object, ...]:
    return effect.answers, [batch.digest for batch in effect.stamps], effect.events, effect.controls


def claim_row(offset: int, timestamp_ms: int) -> Row:
    claim = Claim(incarnation=1, owner=f"another{offset % 2}")
    return Row(f"{DOMAIN}.control", 0, offset, timestamp_ms, control=encode_claim(claim))


@given(items=histories, rng=st.randoms(use_true_random=False))
def test_every_partition_gets_a_frontier_for_every_batch(items: list[Item], rng: random.Random) -> None:
    batches = cut(rows_of(items), rng)
    _, effects = run(batches, configs(partitions=3))
    ends = np.cumsum([len(batch) for batch in batches]).tolist()
    previous: dict[int, str] = {}
    for number, (effect, end) in enumerate(zip(effects, ends, strict=True), 1):
        assert [batch.partition for batch in effect.stamps] == [0, 1, 2]
        for batch in effect.stamps:
            assert (batch.batch, batch.g) == (number, end)
            assert batch.previous_digest == previous.get(batch.partition, batch.previous_digest)
            assert batch.digest == batch.compute_digest()
            assert all(stamps_partition(batch.names[t], 3) == batch.partition for t in set(batch.rows.topic.tolist()))
            previous[batch.partition] = batch.digest


@given(items=histories, rng=st.randoms(use_true_random=False))
def test_a_grant_is_a_consistent_cut(items: list[Item], rng: random.Random) -> None:
    rows = rows_of(items)
    batches = cut(rows, rng)
    _, effects = run(batches, configs())
    answers = {answer.g: answer for effect in effects for answer in effect.answers}
    held: dict[str, frozenset[str]] = {}
    for g, item in enumerate(items, 1):
        if not isinstance(item, Change):
            assert g not in answers
            continue
        answer, former = answers[g], held.get(item.id, frozenset())
        clock = reference_clock(items, g)
        if item.topics:
            assert isinstance(answer, Grant)
            assert (frozenset(answer.topics), frozenset(answer.former)) == (item.topics, former)
            assert answer.continuous == bool(former)
            assert answer.clock == {topic: clock[topic] for topic in item.topics | former}
            before = [row for row in rows[: g - 1] if row.control is None]
            assert answer.next_offsets == {
                bare("all", partition): 1 + max(row.offset for row in before if row.partition == partition)
                for partition in {row.partition for row in before}
            } | {
                source: 0 for source in answer.next_offsets if source.partition not in {row.partition for row in before}
            }
        elif former:
            assert isinstance(answer, Ended)
            assert answer.clock == {topic: clock[topic] for topic in former}
        else:
            assert isinstance(answer, Rejection)
        held[item.id] = item.topics


def test_control_records_take_positions_and_carry_the_frontier_of_grants() -> None:
    items = [change("r", "TX"), *events("TX"), change("s", "X"), *events("X")]
    _, effects = run([rows_of(items)[:3], rows_of(items)[3:]], configs())
    assert [(e.stamps[0].g, e.stamps[0].control_g) for e in effects] == [(3, 1), (5, 4)]


def test_what_a_topic_owes_adds_up_over_changes_and_batches() -> None:
    items: list[Item] = [
        change("r", "T"),
        Event("T"),
        change("r", "TX"),
        change("s", "TY"),
        change("t", "TZ"),
        Event("T"),
    ]
    rows = rows_of(items)
    _, effects = run([rows[:2], rows[2:3], rows[3:5], rows[5:]], configs(keyframe_every=10**6))
    stamps = full_stamps(batch for effect in effects for batch in effect.stamps)
    assert stamps == reference_stamps(items, 1)
    assert stamps[-1].entries == {"X": 0, "Y": 0, "Z": 0}


def control(offset: int, value: bytes, at: int = 1) -> Row:
    return Row(f"{DOMAIN}.control", 0, offset, at, control=value)


def subscribe(generation: int, nonce: str = "n", *, lease_s: int = 0) -> bytes:
    return encode_request(
        Subscribe(id="r", generation=generation, nonce=nonce, topics=("T",), lease_s=lease_s, stamps_ends={0: 7})
    )


def test_repeated_stale_and_malformed_requests_are_answered_and_change_nothing() -> None:
    values = [
        subscribe(1),
        subscribe(1),
        subscribe(1, "other"),
        subscribe(3),
        b"\xff",
        b"{}",
        b'{"v":2,"kind":"subscribe","id":"r"}',
    ]
    states, effects = run([[control(offset, value) for offset, value in enumerate(values)]], configs())
    answers = effects[0].answers
    assert [type(answer) for answer in answers] == [Grant, Repeated] + [Rejection] * 5
    assert [answer.g for answer in answers] == list(range(1, 8))
    assert [answer.generation for answer in answers[2:]] == [1, 1, 0, 0, 1]  # type: ignore[union-attr]
    assert "generation 1 does not follow" in answers[2].reason  # type: ignore[union-attr]
    assert "version 2" in answers[6].reason  # type: ignore[union-attr]
    assert states[0].cold.subscriptions["r"].generation == 1


def test_a_lease_ends_at_the_start_of_a_batch_unless_renewed() -> None:
    state = initial_state(configs()[0])
    state, _ = step(state, Batch.of(1_000, [control(0, subscribe(1, lease_s=10))]), {})
    renew = encode_request(Renew(id="r", generation=1, nonce="n"))
    state, done = step(state, Batch.of(9_000, [control(1, renew)]), {})
    assert [(type(a), a.g) for a in done.answers] == [(Renewed, 2)]
    state, done = step(state, Batch.of(18_999, [Row("all", 0, 0, 0, "T")]), {})
    assert done.answers == ()
    state, done = step(state, Batch.of(19_000, [Row("all", 0, 1, 0, "T")]), {})
    (ended,) = done.answers
    assert isinstance(ended, Ended)
    assert (ended.reason, ended.g, ended.clock) == ("expired", 4, {"T": 1})
    assert done.stamps[0].g == 5
    _, done = step(state, Batch.of(19_001, [control(2, subscribe(2, "later"))]), {})
    (grant,) = done.answers
    assert isinstance(grant, Grant)
    assert not grant.continuous


def test_events_without_a_topic_take_no_position_and_are_listed() -> None:
    rows = [Row("all", 0, 0, 1, ""), Row("all", 0, 1, 2, "T"), Row("all", 0, 2, 3, "")]
    _, (done,) = run([rows], configs(partitions=1))
    assert done.unroutable == (("all", 0, 0), ("all", 0, 2))
    _, (turned,) = run([rows[::-1]], configs(partitions=1))
    assert turned.unroutable == done.unroutable, "in one order, however the rows come"
    assert done.events == 1
    assert done.stamps[0].rows.g.tolist() == [1]
    assert done.stamps[0].next_offsets == {bare("all"): 3}


def test_an_offset_that_comes_back_stops_the_job() -> None:
    with pytest.raises(StateError, match=r"offset 1 of all\[0\] comes a second time; 2 was to be next"):
        run([[Row("all", 0, 1, 1, "T")], [Row("all", 0, 1, 1, "T")]], configs())


def test_a_new_partition_begins_where_the_domain_recorded_it() -> None:
    """A grant says so before the first event of the partition, in the batch that has that too."""
    state = initial_state(configs()[0])
    starts = {bare("all", 0): 5, bare("all", 1): 9}
    rows = [control(0, subscribe(1), at=0), Row("all", 0, 5, 1, "T"), control(1, subscribe(2), at=2)]
    _, done = step(state, Batch.of(10, rows), starts)
    ends = [grant.next_offsets for grant in done.answers if isinstance(grant, Grant)]
    assert ends == [{bare("all", 0): next_, bare("all", 1): 9} for next_ in (5, 6)]


def test_by_kafka_topic_a_grant_names_only_the_partitions_of_its_topics() -> None:
    config = replace(configs()[0], topic_by="topic")
    rows = [Row("T", 0, 0, 1, "T"), Row("X", 0, 0, 1, "X"), control(0, subscribe(1), at=2)]
    _, done = step(initial_state(config), Batch.of(10, rows), {})
    (grant,) = done.answers
    assert isinstance(grant, Grant)
    assert grant.next_offsets == {bare("T"): 1}


def test_an_empty_batch_is_no_batch() -> None:
    state = initial_state(configs()[0])
    after, done = step(state, Batch.of(1, []), {})
    assert after is state
    assert done.stamps == ()


def test_stamps_carry_the_event_they_were_made_for() -> None:
    rows = [Row("b", 2, 0, 1, "T", 11), Row("a", 0, 0, 1, "T", 22)]
    _, (done,) = run([rows], configs(partitions=1))
    stamped = done.stamps[0]
    assert [stamped.sources[i] for i in stamped.rows.source] == [bare("a"), bare("b", 2)]
    assert stamped.rows.crc.tolist() == [22, 11]
    assert not same_rows(stamped, run([rows[:1]], configs(partitions=1))[1][0].stamps[0])
