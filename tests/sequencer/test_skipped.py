"""What was lost before it was stamped, as the engine puts it into the order."""

from collections.abc import Sequence
from typing import Any

import pytest
from engine_world import BATCH_MS, DOMAIN, configs, run
from hypothesis import given, settings, strategies as st
from sources import src

from totalorder.errors import StateError
from totalorder.sequencer import engine
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.wire.control import (
    Answer,
    Rejection,
    Retire,
    Retired,
    Skip,
    Skipped,
    Subscribe,
    encode_request,
    skips_in,
)
from totalorder.sequencer.wire.signing import Signatures

KEY = "0123456789abcdef0123456789abcdef"


def event(offset: int, at: int, *, partition: int = 0, topic: str = "k") -> Row:
    return Row(topic, partition, offset, at, "T", topic_id=f"id-{topic}")


def asked(offset: int, value: bytes, at: int) -> Row:
    return Row(f"{DOMAIN}.control", 0, offset, at, control=value)


def skip(begin: int, end: int, *, partition: int = 0, topic: str = "k", topic_id: str = "") -> bytes:
    where: dict[str, Any] = {"topic": topic, "topic_id": topic_id or f"id-{topic}", "partition": partition}
    return encode_request(Skip(id="job", nonce="n", **where, begin=begin, end=end))


def answers(batches: Sequence[Sequence[Row]]) -> list[Answer]:
    _, effects = run(batches, configs(partitions=1))
    return [answer for each in effects for answer in each.answers]


def test_it_stands_where_it_was_told_and_the_partition_goes_on_behind_it() -> None:
    first = [event(0, 1), event(1, 2)]
    second = [asked(0, skip(2, 9), 3)]
    third = [event(9, 4)]
    states, effects = run([first, second, third], configs(partitions=1))
    (told,) = effects[1].answers
    assert isinstance(told, Skipped)
    assert (told.g, told.offset, told.topic, told.topic_id, told.lost) == (3, 0, "k", "id-k", {0: (2, 9)})
    assert [each.stamps[0].g for each in effects] == [2, 3, 4]
    assert [each.stamps[0].control_g for each in effects] == [0, 3, 3]
    assert [dict(each.stamps[0].next_offsets) for each in effects] == [{src("k"): 2}, {src("k"): 9}, {src("k"): 10}]
    assert states[0].hot.next_offsets.tolist() == [10]


def test_a_grant_behind_it_begins_behind_it() -> None:
    subscribe = encode_request(Subscribe(id="r", generation=1, nonce="n", topics=("T",), lease_s=0, stamps_ends={}))
    _, grant = answers([[asked(0, skip(0, 7, partition=3), 1), asked(1, subscribe, 2)]])
    assert grant.next_offsets == {src("k", 3): 7}  # type: ignore[union-attr]


def test_it_is_told_once() -> None:
    """The job may say it again, when it was killed in between; and say more."""
    said = answers([[event(0, 1)], [asked(0, skip(1, 5), 2), asked(1, skip(1, 5), 3)], [asked(2, skip(1, 8), 4)]])
    assert [answer.lost for answer in said if isinstance(answer, Skipped)] == [{0: (1, 5)}, {}, {0: (5, 8)}]


def test_what_was_stamped_is_not_called_lost() -> None:
    (told,) = answers([[event(0, 1), event(3, 2)], [asked(0, skip(0, 6), 3)]])
    assert isinstance(told, Skipped)
    assert told.lost == {0: (4, 6)}


def test_a_partition_begins_where_the_domain_recorded_it() -> None:
    state = initial_state(configs(partitions=1)[0])
    _, done = step(state, Batch.of(BATCH_MS, [asked(0, skip(0, 9), 1)]), {src("k"): 5})
    (told,) = done.answers
    assert isinstance(told, Skipped)
    assert told.lost == {0: (5, 9)}


def test_what_comes_of_it_all_the_same_stops_the_job() -> None:
    with pytest.raises(StateError, match=r"offset 3 of k\[0\] comes a second time; 9 was to be next"):
        run([[asked(0, skip(0, 9), 1)], [event(3, 2)]], configs())


def test_nothing_more_of_a_retired_topic_is_lost() -> None:
    retire = encode_request(Retire(id="job", nonce="n", topic="k", topic_id="id-k", seen={0: 4}))
    rows = [[event(0, 1)], [asked(0, retire, 2), asked(1, skip(1, 9), 3)], [asked(2, skip(1, 9), 4)]]
    told, *refused = answers(rows)
    assert isinstance(told, Retired)
    assert [(type(answer), getattr(answer, "reason", "")) for answer in refused] == [
        (Rejection, "the topic was retired")
    ] * 2


def test_control_is_no_event_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    (refused,) = answers([[asked(0, skip(0, 9, topic=f"{DOMAIN}.control"), 1)]])
    assert isinstance(refused, Rejection)
    assert "no event topic" in refused.reason
    monkeypatch.setattr(engine, "MAX_KAFKA_TOPICS", 1)
    refused, told = answers([[event(0, 1)], [asked(0, skip(0, 9, topic="more"), 2)], [asked(1, skip(1, 9), 3)]])
    assert isinstance(refused, Rejection)
    assert isinstance(told, Skipped)


def test_who_has_not_the_domains_key_passes_over_nothing() -> None:
    signatures = Signatures(keys=(KEY,), domain=DOMAIN)
    state = initial_state(configs(partitions=1)[0])
    state, done = step(state, Batch.of(BATCH_MS, [asked(0, skip(0, 9), 1)]), {}, signatures=signatures)
    (refused,) = done.answers
    assert isinstance(refused, Rejection)
    assert "the domain's control key" in refused.reason
    assert state.cold.sources == ()
    request = Skip(id="job", nonce="n", topic="k", topic_id="id-k", partition=0, begin=0, end=9)
    signed = encode_request(request, signatures.signer("/retire"))
    _, done = step(state, Batch.of(BATCH_MS, [asked(1, signed, 1)]), {}, signatures=signatures)
    assert isinstance(done.answers[0], Skipped)


def test_who_has_not_the_domains_key_retires_no_topic_that_comes_in_the_same_batch() -> None:
    """Events of a topic that was not seen before lie behind the refused request: they are stamped all the same."""
    signatures = Signatures(keys=(KEY,), domain=DOMAIN)
    forged = encode_request(Retire(id="job", nonce="n", topic="k", topic_id="id-k", seen={0: 0}))
    batch = Batch.of(BATCH_MS, [asked(0, forged, 1), event(0, 2)])
    _, done = step(initial_state(configs(partitions=1)[0]), batch, {}, signatures=signatures)
    (refused,) = done.answers
    assert isinstance(refused, Rejection)
    assert done.stamps[0].rows.g.tolist() == [2]


@pytest.mark.parametrize("word", [b"retire", rb"\u0072etire"])
def test_what_comes_behind_the_end_of_its_topic_is_given_no_number(word: bytes) -> None:
    """However the request is written: what no stamp shows a recovery cannot tell."""
    value = encode_request(Retire(id="job", nonce="n", topic="k", topic_id="id-k", seen={0: 0}))
    batch = Batch.of(BATCH_MS, [asked(0, value.replace(b"retire", word), 1), event(0, 2)])
    state, done = step(initial_state(configs(partitions=1)[0]), batch, {})
    assert isinstance(done.answers[0], Retired)
    assert state.cold.topics == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans(), st.integers(1, 3)), max_size=20), st.data())
def test_cuts_and_shards_change_nothing(items: list[tuple[str, bool, int]], data: st.DataObject) -> None:
    """Where batches end, and how many shards there are: the same losses at the same positions, and the same ends."""
    reached: dict[str, int] = {}
    rows: list[Row] = []
    for at, (topic, is_loss, count) in enumerate(items):
        begin = reached.get(topic, 0)
        reached[topic] = begin + (count if is_loss else 1)
        value = skip(begin, begin + count, topic=topic)
        controls = sum(row.control is not None for row in rows)
        rows.append(asked(controls, value, at) if is_loss else event(begin, at, topic=topic))
    cut = data.draw(st.integers(0, len(rows)))
    whole = run([rows], configs())
    for shards in (1, 3):
        states, effects = run([rows[:cut], rows[cut:]], configs(shards=shards))
        told = [answer for each in effects for answer in each.answers]
        assert [(a.g, a.lost) for a in told if isinstance(a, Skipped)] == [
            (a.g, a.lost) for each in whole[1] for a in each.answers if isinstance(a, Skipped)
        ]
        ends = dict(zip(states[0].cold.sources, states[0].hot.next_offsets.tolist(), strict=True))
        names = {states[0].cold.kafka_topics[rank].name: end for (rank, _), end in ends.items()}
        assert names == reached


def test_one_whose_kind_is_written_with_escapes_is_one_too() -> None:
    """JSON may be written so, and recovery reads what the job read: both find it, or neither."""
    escaped = skip(0, 7).replace(b'"skip"', b'"\\u0073\\u006bip"')
    assert escaped != skip(0, 7)
    assert [each.end for each in skips_in([b"junk", escaped, b"\\u", skip(0, 8)])] == [7, 8]
    (told,) = answers([[asked(0, escaped, 1)]])
    assert isinstance(told, Skipped)
    assert told.lost == {0: (0, 7)}


def test_one_that_is_not_signed_counts_for_nothing_where_it_must_be() -> None:
    signatures = Signatures(keys=(KEY,), domain=DOMAIN)
    assert list(skips_in([skip(0, 7)], signatures)) == []
