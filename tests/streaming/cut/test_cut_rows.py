"""What a row of the source holds: a chunk or a plan, and no passwords."""

import json
import random

import pytest
from chunked import chunk_of
from hypothesis import given, strategies as st

from totalorder.config import make_settings
from totalorder.errors import StateError
from totalorder.sequencer.batch import Row
from totalorder.streaming.cut.chunk import encode
from totalorder.streaming.cut.ranges import Range, ReadPlan, SliceEnd
from totalorder.streaming.cut.rows import Seed, chunks_of, decode_plan, encode_plan, encode_seed, seed_in
from totalorder.streaming.cut.source_settings import SourceSettings

SECRET = "hidden-word"
KAFKA = {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": f'x.PlainLoginModule required password="{SECRET}";'}
SETTINGS = SourceSettings.of(make_settings(topics=("a",), checkpoint_dir="x", kafka=KAFKA), "folder")


@st.composite
def plans(draw: st.DrawFn) -> ReadPlan:
    rng = random.Random(draw(st.integers(0, 2**32)))
    ranges = []
    for topic in draw(st.lists(st.text(max_size=9), max_size=4)):
        ends = sorted(rng.sample(range(1, 2**40), rng.randint(1, 4)))
        slices = tuple(SliceEnd(number, end) for number, end in enumerate(ends, rng.randint(0, 9)))
        part = rng.randint(0, 2**31 - 1)
        ranges.append(Range(topic=topic, topic_id=f"id-{part}", partition=part, begin=0, end=ends[-1], slices=slices))
    order = draw(st.lists(st.text(max_size=5), max_size=3))
    return SETTINGS.plan(cut=rng.randint(0, 2**50), topic_order=order, ranges=ranges)


@given(plans())
def test_a_plan_comes_back_with_what_leads_to_kafka_which_is_not_in_the_row(plan: ReadPlan) -> None:
    data = encode_plan(plan)
    assert decode_plan(data, SETTINGS) == plan
    assert SECRET.encode() not in data


def test_a_chunk_comes_back() -> None:
    chunk = chunk_of([Row("a", 0, 5, 1_000, "a", 7)])
    (found,) = chunks_of(encode(chunk), SETTINGS)
    assert encode(found) == encode(chunk)


@given(st.integers(0, 2**20), st.binary(), st.binary())
def test_a_seed_comes_back_and_nothing_else_is_one(shard: int, hot: bytes, cold: bytes) -> None:
    data = encode_seed(Seed(shard, hot, cold))
    assert seed_in(data) == Seed(shard, hot, cold)
    assert hot.startswith(data[:5]) or seed_in(hot) is None
    with pytest.raises(StateError, match="cut short"):
        seed_in(data[: 5 + len(hot) // 2])


def damaged() -> dict[str, bytes]:
    part = Range(topic="a", topic_id="id", partition=0, begin=0, end=2, slices=(SliceEnd(0, 2),))
    whole = encode_plan(SETTINGS.plan(cut=1, topic_order=(), ranges=[part]))
    head = whole[: whole.index(b"{")]
    content = json.loads(whole[len(head) :])

    def changed(place: int, value: object) -> bytes:
        fields = list(content["ranges"][0])
        fields[place] = value
        return head + json.dumps({**content, "ranges": [fields]}).encode()

    return {
        "shorter": whole[:-1],
        "another version": head[:-1] + b"\x09" + whole[len(head) :],
        "no object": head + b"[]",
        "no ranges": head + b'{"cut": 1, "order": []}',
        "a partition that is none": changed(2, "0"),
        "a slice that is none": changed(5, [[0]]),
        "an offset that is none": changed(4, None),
        "nothing": b"",
    }


@pytest.mark.parametrize("name", damaged())
def test_damaged_plans_are_refused(name: str) -> None:
    with pytest.raises(StateError, match="cannot be read"):
        decode_plan(damaged()[name], SETTINGS)
    with pytest.raises(StateError, match="cannot be read"):
        list(chunks_of(damaged()[name], SETTINGS))
