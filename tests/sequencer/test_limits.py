"""The limits of README.md, as the engine holds them: what is within is served, what is beyond is refused by name, and
what was there before goes on.
"""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from engine_world import configs

from totalorder.errors import LimitExceeded, StateError
from totalorder.sequencer import draft, registry
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.state import State
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Subscribe,
    encode_request,
)
from totalorder.sequencer.wire.limits import (
    MAX_CONTROL_BYTES,
    MAX_SUBSCRIPTIONS,
    MAX_TOPIC_CHARS,
    MAX_TOPICS_PER_DOMAIN,
    MAX_TOPICS_PER_SUBSCRIPTION,
)
from totalorder.streaming.cut.offset import MAX_PLACES

(CONFIG,) = configs(shards=1)


def asked(offset: int, id_: str, topics: Sequence[str], generation: int = 1) -> Row:
    request = Subscribe(id=id_, generation=generation, nonce="n", topics=tuple(topics), lease_s=0, stamps_ends={})
    return control(offset, encode_request(request))


def control(offset: int, value: bytes) -> Row:
    return Row("d.control", 0, offset, 1, control=value)


def event(offset: int, topic: str) -> Row:
    return Row("all", 0, offset, 1, topic, 7)


def run(*batches: Sequence[Row], state: State | None = None) -> tuple[State, Effects]:
    """The state behind the batches, and what the last one gave."""
    state = state or initial_state(CONFIG)
    for rows in batches:
        state, effects = step(state, Batch.of(10, rows), {})
    return state, effects


def answers(effects: Effects) -> list[type[Answer]]:
    return [type(answer) for answer in effects.answers]


def test_the_page_has_the_limits() -> None:
    assert (MAX_TOPICS_PER_DOMAIN, MAX_TOPICS_PER_SUBSCRIPTION, MAX_SUBSCRIPTIONS) == (1_000_000, 1_000, 2_000_000)
    assert (MAX_TOPIC_CHARS, MAX_CONTROL_BYTES, MAX_PLACES) == (255, 1_000_000, 100_000)


def test_a_domain_full_of_topics_refuses_requests_for_more_and_stops_at_an_event_of_one_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(draft, "MAX_TOPICS_PER_DOMAIN", 3)
    state, effects = run(
        [event(0, "a"), asked(0, "s", ["a", "b", "c"])],
        [asked(1, "t", ["c", "d"]), asked(2, "u", ["c"]), event(1, "c")],
    )
    assert answers(effects) == [Rejection, Grant]
    assert "more than 3 pub/sub topics, its limit" in effects.answers[0].reason  # type: ignore[union-attr]
    assert state.cold.topics == ("a", "b", "c")
    with pytest.raises(LimitExceeded, match="Name topics by something with fewer values"):
        run([event(2, "d")], state=state)
    after, _ = run([event(2, "b")], state=state)
    assert after.hot.clocks.tolist() == [1, 1, 1]


def test_a_subscription_of_a_thousand_topics_is_granted_and_of_one_more_refused() -> None:
    names = [f"t{number}" for number in range(MAX_TOPICS_PER_SUBSCRIPTION + 1)]
    _, effects = run([asked(0, "s", names[1:]), asked(1, "t", names)])
    assert answers(effects) == [Grant, Rejection]
    assert "1001 topics; the limit is 1000" in effects.answers[1].reason  # type: ignore[union-attr]


def test_a_domain_full_of_subscriptions_refuses_another_and_serves_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "MAX_SUBSCRIPTIONS", 2)
    _, effects = run(
        [asked(0, "s", ["a"]), asked(1, "t", ["a"])], [asked(2, "u", ["a"]), asked(3, "s", ["b"], generation=2)]
    )
    assert answers(effects) == [Rejection, Grant]
    assert "holds 2 subscriptions, its limit" in effects.answers[0].reason  # type: ignore[union-attr]


def test_a_name_of_255_characters_is_a_topic_and_of_one_more_none() -> None:
    longest = "😀" * MAX_TOPIC_CHARS
    _, effects = run([asked(0, "s", [longest]), asked(1, "t", [longest + "x"]), event(0, longest)])
    assert answers(effects) == [Grant, Rejection]
    assert "is not a usable name" in effects.answers[1].reason  # type: ignore[union-attr]
    (stamped,) = [one for one in effects.stamps if len(one.rows)]
    assert list(stamped.names.values()) == [longest]


def test_a_control_record_of_a_million_bytes_is_read_and_of_one_more_answered_with_a_rejection() -> None:
    request = asked(0, "s", ["a"]).control
    assert request is not None
    longest = request.ljust(MAX_CONTROL_BYTES)
    _, effects = run([control(0, longest), control(1, longest + b" "), asked(2, "t", ["a"])])
    assert answers(effects) == [Grant, Rejection, Grant]
    assert "more than 1000000 bytes" in effects.answers[1].reason  # type: ignore[union-attr]


def test_another_number_of_stamps_partitions_is_another_domain() -> None:
    state, _ = run([event(0, "a")])
    with pytest.raises(StateError, match="the checkpoint was made with stamps_partitions = 4, and this run has 5"):
        state.require(replace(CONFIG, stamps_partitions=5))


def test_a_renewal_comes_too_late_in_the_batch_at_whose_time_its_lease_is_over() -> None:
    """A batch's time is that of its beginning: a job that stood still for longer than a lease ends it."""
    request = Subscribe(id="s", generation=1, nonce="n", topics=("a",), lease_s=10, stamps_ends={})
    state, _ = step(initial_state(CONFIG), Batch.of(1_000, [control(0, encode_request(request))]), {})
    renewal = control(1, encode_request(Renew(id="s", generation=1, nonce="n")))
    _, in_time = step(state, Batch.of(10_999, [renewal]), {})
    assert answers(in_time) == [Renewed]
    _, too_late = step(state, Batch.of(11_000, [renewal]), {})
    assert answers(too_late) == [Ended, Rejection]
