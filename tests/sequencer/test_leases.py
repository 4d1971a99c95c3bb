"""Leases against the dumb twin, over restarts: renewed ones stay hot, and end in the same batch as if they did not."""

from collections.abc import Sequence

import numpy as np
import pytest
from engine_world import DOMAIN, configs, run
from hypothesis import given, strategies as st
from reference import ReferenceLeases

from totalorder.sequencer import draft
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.state import EngineConfig, State, decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Request,
    Subscribe,
    Unsubscribe,
    encode_request,
)

Action = tuple[str, str, int]
"""What, who, and for "subscribe" the lease in seconds."""
IDS = "rstu"
actions: st.SearchStrategy[Action] = st.one_of(
    st.tuples(st.just("renew"), st.sampled_from(IDS), st.just(0)),
    st.tuples(st.just("renew"), st.sampled_from(IDS), st.just(0)),
    st.tuples(st.just("subscribe"), st.sampled_from(IDS), st.sampled_from([0, 1, 3])),
    st.tuples(st.just("unsubscribe"), st.sampled_from(IDS), st.just(0)),
    st.tuples(st.just("event"), st.sampled_from(["all/T", "all/Y", "more/T"]), st.just(0)),
)
batches = st.lists(
    st.tuples(st.sampled_from([0, 1, 500, 999, 1_000, 1_001, 3_000]), st.lists(actions, max_size=4)), max_size=14
)


class Job:
    """One shard that restarts after every batch, and writes its cold state only when it is told to."""

    def __init__(self, config: EngineConfig) -> None:
        state = initial_state(config)
        self.hot, self.cold = encode_hot(state.hot), encode_cold(state.cold)
        self.offsets: dict[str, int] = {}

    def state(self) -> State:
        return State(hot=decode_hot(self.hot), cold=decode_cold(self.cold))

    def run(self, time_ms: int, values: Sequence[bytes | str]) -> Effects:
        """One batch of control records and events ("Kafka topic/topic"), in this order, and an event at the end."""
        rows = [self._row(value, at) for at, value in enumerate([*values, "all/T"])]
        after, effects = step(self.state(), Batch.of(time_ms, rows), {})
        self.hot, cold = encode_hot(after.hot), encode_cold(after.cold)
        assert effects.cold_changed == (cold != self.cold)
        if effects.cold_changed:
            self.cold = cold
        assert encode_cold(self.state().cold) == self.cold
        assert encode_hot(self.state().hot) == self.hot
        return effects

    def _row(self, value: bytes | str, at: int) -> Row:
        kafka_topic, topic = value.split("/") if isinstance(value, str) else (f"{DOMAIN}.control", "")
        offset = self.offsets[kafka_topic] = self.offsets.get(kafka_topic, -1) + 1
        return Row(kafka_topic, 0, offset, at, topic, control=value if isinstance(value, bytes) else None)


def expected(twin: ReferenceLeases, time_ms: int, action: Action) -> tuple[bytes | str, list[tuple[str, str, int]]]:
    """A record as a well-behaved subscriber sends it, and what the twin answers, if anything."""
    what, who, lease_s = action
    if what == "event":
        return who, []
    generation = twin.generations.get(who, 0)
    request: Request
    if what == "subscribe":
        request = Subscribe(
            id=who, generation=generation + 1, nonce="n", topics=("T", "X"), lease_s=lease_s, stamps_ends={}
        )
        twin.subscribe(who, lease_s * 1_000, time_ms)
        answer = ("granted", who, lease_s)
    elif what == "unsubscribe":
        request = Unsubscribe(id=who, generation=generation + 1, nonce="n")
        answer = ("unsubscribed", who, 0) if twin.unsubscribe(who) else ("refused", who, 0)
    else:
        request = Renew(id=who, generation=max(generation, 1), nonce="n")
        end_ms = twin.renew(who, time_ms)
        answer = ("refused", who, 0) if end_ms is None else ("renewed", who, end_ms)
    return encode_request(request), [answer]


def told(answer: Answer) -> tuple[str, str, int]:
    """An answer in the twin's terms."""
    if isinstance(answer, Grant):
        return "granted", answer.id, answer.lease_s
    if isinstance(answer, Renewed):
        return "renewed", answer.id, answer.expires_ms
    if isinstance(answer, Ended):
        return answer.reason, answer.id, 0
    assert isinstance(answer, Rejection)
    return "refused", answer.id, 0


@given(history=batches, always_hot=st.sampled_from([0, 1, 64]), begun_ms=st.sampled_from([0, 1_000_000]))
def test_leases_end_when_the_twin_says_so_over_restarts(
    history: list[tuple[int, list[Action]]], always_hot: int, begun_ms: int
) -> None:
    twin, job, time_ms = ReferenceLeases(), Job(configs()[0]), begun_ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "RENEWALS_ALWAYS_HOT", always_hot)
        for later_ms, listed in history:
            time_ms += later_ms
            answers = [("expired", id_, 0) for id_ in twin.begin(time_ms)]
            values = []
            for action in listed:
                value, more = expected(twin, time_ms, action)
                values.append(value)
                answers += more
            assert [told(answer) for answer in job.run(time_ms, values).answers] == answers


@given(history=batches, shards=st.integers(2, 3))
def test_every_shard_knows_the_same_leases(history: list[tuple[int, list[Action]]], shards: int) -> None:
    twin, jobs, time_ms = ReferenceLeases(), [Job(config) for config in configs(shards=shards)], 0
    for later_ms, listed in history:
        time_ms += later_ms
        twin.begin(time_ms)
        values = [expected(twin, time_ms, action)[0] for action in listed]
        assert len({job.run(time_ms, values).cold_changed for job in jobs}) == 1
        states = [job.state() for job in jobs]
        assert all(state.cold.subscriptions == states[0].cold.subscriptions for state in states)
        assert all(np.array_equal(state.expiries(), states[0].expiries()) for state in states)


def subscribe(id_: str, lease_s: int = 10) -> bytes:
    return encode_request(Subscribe(id=id_, generation=1, nonce="n", topics=("T",), lease_s=lease_s, stamps_ends={}))


def renew(id_: str) -> bytes:
    return encode_request(Renew(id=id_, generation=1, nonce="n"))


def test_renewals_alone_leave_the_cold_state_unwritten_and_end_in_their_batch() -> None:
    job = Job(configs()[0])
    assert job.run(0, [subscribe("r"), subscribe("s")]).cold_changed
    quiet = len(job.hot)
    for time_ms in (5_000, 9_000):
        effects = job.run(time_ms, [renew("r")])
        assert [type(answer) for answer in effects.answers] == [Renewed]
        assert not effects.cold_changed
    assert 0 < len(job.hot) - quiet < 40
    assert [told(answer) for answer in job.run(10_000, []).answers] == [("expired", "s", 0)]
    assert job.run(18_999, []).answers == ()
    assert [told(answer) for answer in job.run(19_000, []).answers] == [("expired", "r", 0)]


def test_renewed_expiries_go_along_with_a_cold_state_that_is_written_anyway() -> None:
    job = Job(configs()[0])
    job.run(0, [subscribe("r"), subscribe("s")])
    job.run(5_000, [renew("r")])
    assert len(job.state().hot.renewed.number) == 1
    assert job.run(6_000, [subscribe("t"), renew("s")]).cold_changed
    state = job.state()
    assert len(state.hot.renewed.number) == 0
    held = state.cold.subscriptions
    assert [held[id_].expires_ms for id_ in "rst"] == [15_000, 16_000, 16_000]


def test_the_cold_state_is_written_once_half_of_the_leases_are_renewed() -> None:
    job, ids = Job(configs()[0]), [f"s{number}" for number in range(200)]
    job.run(0, [*map(subscribe, ids)])
    changed = [job.run(1_000 + at, [*map(renew, ids[at : at + 10])]).cold_changed for at in range(0, 200, 10)]
    assert changed == [False] * 10 + [True] + [False] * 9


def test_a_renewal_without_a_lease_is_answered_and_changes_nothing() -> None:
    job = Job(configs()[0])
    job.run(0, [subscribe("r", lease_s=0)])
    before = job.state()
    effects = job.run(5_000, [renew("r")])
    assert [told(answer) for answer in effects.answers] == [("renewed", "r", 5_000)]
    assert not effects.cold_changed
    assert np.array_equal(job.state().expiries(), before.expiries())
    assert job.run(10**9, []).answers == ()


def test_only_the_process_that_holds_the_lease_renews_it() -> None:
    asked: list[Request] = [
        Subscribe(id="r", generation=1, nonce="n", topics=("T",), lease_s=10, stamps_ends={}),
        Renew(id="r", generation=1, nonce="another"),
        Renew(id="r", generation=1, nonce="n"),
    ]
    rows = [Row(f"{DOMAIN}.control", 0, at, at, control=encode_request(one)) for at, one in enumerate(asked)]
    _, (effects,) = run([rows], configs())
    assert [type(answer) for answer in effects.answers] == [Grant, Rejection, Renewed]
