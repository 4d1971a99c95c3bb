"""State bytes: they come back as they were, and damage or another version is named."""

import random
from dataclasses import replace

import pytest
from engine_world import configs, rows_of, run
from hypothesis import given, strategies as st
from reference import Event, Item, change, events

from totalorder.errors import StateError
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.state import (
    EngineConfig,
    State,
    decode_cold,
    decode_hot,
    encode_cold,
    encode_hot,
)

topics = st.sampled_from("TXYZ")
histories: st.SearchStrategy[list[Item]] = st.lists(
    st.one_of(topics.map(Event), st.builds(change, st.sampled_from("rs"), st.sets(topics))), min_size=1, max_size=25
)


def through_bytes(state: State) -> State:
    return State(hot=decode_hot(encode_hot(state.hot)), cold=decode_cold(encode_cold(state.cold)))


@given(items=histories, m=st.sampled_from([1, 2]), rng=st.randoms(use_true_random=False))
def test_a_state_that_went_through_bytes_goes_on_alike(items: list[Item], m: int, rng: random.Random) -> None:
    rows = rows_of(items)
    at = rng.randint(0, len(rows))
    (state,), _ = run([rows[:at]], configs(m=m))
    rest = Batch.of(10**6, rows[at:])
    kept, done = step(state, rest, {})
    read, again = step(through_bytes(state), rest, {})
    assert [batch.digest for batch in done.stamps] == [batch.digest for batch in again.stamps]
    assert done.answers == again.answers
    assert encode_hot(kept.hot) == encode_hot(read.hot)
    assert encode_cold(kept.cold) == encode_cold(read.cold)


def test_a_step_leaves_the_state_before_it_alone() -> None:
    (state,), _ = run([rows_of([change("r", "TX"), *events("TX")])], configs())
    before = encode_hot(state.hot), encode_cold(state.cold)
    step(state, Batch.of(10**6, rows_of([change("s", "TZ"), *events("TXZ" * 3)])[3:]), {})
    assert (encode_hot(state.hot), encode_cold(state.cold)) == before


def test_a_batch_without_news_leaves_the_cold_state_untouched() -> None:
    rows = rows_of(events("TTTTTT"))
    _, effects = run([rows[:3], rows[3:]], configs())
    assert [effect.cold_changed for effect in effects] == [True, False]


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_damage_is_named(at: int, bit: int) -> None:
    (state,), _ = run([rows_of([change("r", "TX"), *events("TX")])], configs())
    for data, read in ((encode_hot(state.hot), decode_hot), (encode_cold(state.cold), decode_cold)):
        broken = bytearray(data)
        broken[at % len(data)] ^= 1 << bit
        with pytest.raises(StateError):
            read(bytes(broken))
        with pytest.raises(StateError):
            read(data[: at % len(data)])


def test_another_version_is_named() -> None:
    data = bytearray(encode_hot(initial_state(configs()[0]).hot))
    data[4] = 9
    with pytest.raises(StateError, match="has version 9; this program reads version 3"):
        decode_hot(bytes(data))


@pytest.mark.parametrize(
    ("name", "other"),
    [("domain", "e"), ("stamps_partitions", 5), ("min_subscriptions", 2), ("identity", "x"), ("topic_by", "topic")],
)
def test_another_fixed_setting_is_refused_by_name(name: str, other: object) -> None:
    config = configs()[0]
    with pytest.raises(StateError, match=f"made with {name} = "):
        initial_state(config).require(replace(config, **{name: other}))  # type: ignore[arg-type]
    initial_state(config).require(config)


@pytest.mark.parametrize(
    "odd",
    [
        {"stamps_partitions": 0},
        {"shards": 5},
        {"shard": 1},
        {"min_subscriptions": 3},
        {"keyframe_every": 0},
    ],
)
def test_settings_out_of_range_make_no_config(odd: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be|out of range"):
        EngineConfig(domain="d", identity="i", **odd)  # type: ignore[arg-type]
