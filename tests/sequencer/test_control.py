"""Control records are hostile until shown to be requests; answers survive the wire."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st
from sources import src

from totalorder.errors import WireError
from totalorder.sequencer.wire.control import (
    Answer,
    BadRequest,
    Claim,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Repeated,
    Request,
    Retire,
    Retired,
    Skip,
    Skipped,
    Subscribe,
    Unsubscribe,
    answer_key,
    claim_in,
    decode_answer,
    encode_answer,
    encode_claim,
    encode_request,
    parse_request,
)
from totalorder.sequencer.wire.limits import MAX_CONTROL_BYTES, MAX_TOPICS_PER_SUBSCRIPTION

GOOD: dict[str, Any] = {
    "v": 1,
    "kind": "subscribe",
    "id": "billing",
    "generation": 1,
    "nonce": "abc",
    "topics": ["orders"],
    "lease_s": 60,
    "stamps_ends": {"0": 12},
}


def value(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_requests_come_out_as_they_went_in() -> None:
    requests: list[Request] = [
        Subscribe(id="a", generation=1, nonce="n", topics=("T", "é"), lease_s=5, stamps_ends={0: 3, 7: 0}),
        Unsubscribe(id="a", generation=2, nonce="n"),
        Renew(id="a", generation=2, nonce="n"),
        Retire(id="a", nonce="n", topic="orders", topic_id="7tqmyJG4TjCDl6Zpo8v2FA", seen={0: 3, 123_456_789: 0}),
        Skip(id="a", nonce="n", topic="orders", topic_id="7tqmyJG4TjCDl6Zpo8v2FA", partition=3, begin=0, end=2**62 - 1),
    ]
    assert [parse_request(encode_request(request)) for request in requests] == requests


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"v":1,"v":1}', "not JSON in UTF-8 with unique keys"),
        (b"[" * 100_000, "not JSON"),
        (b" " * (MAX_CONTROL_BYTES + 1), f"more than {MAX_CONTROL_BYTES} bytes"),
        (value(v=2), "version 2 is unknown"),
        (value(v=True), "version True is unknown"),
        (value(kind="drop"), "kind 'drop' is unknown"),
        (value(kind=["x"]), "kind ['x'] is unknown"),
        (value(extra=1), "fields are missing or unknown: 'extra'"),
        (value(id=""), "id is not"),
        (value(id="a/b"), "id is not"),
        (value(id="x" * 129), "id is not"),
        (value(id=7), "id is not"),
        (value(nonce="with space"), "nonce is not"),
        (value(generation=0), "generation 0 is not an integer from 1"),
        (value(generation=True), "generation True is not an integer"),
        (value(generation=1.0), "generation 1.0 is not an integer"),
        (value(generation=2**63), "is not an integer from 1"),
        (value(lease_s=-1), "lease_s -1 is not an integer from 0"),
        (value(topics=[]), "topics is not a list with at least one name"),
        (value(topics="orders"), "topics is not a list"),
        (value(topics=["a", "a"]), "a topic stands twice"),
        (value(topics=[""]), "topic '' is not a usable name"),
        (value(topics=["x" * 256]), "is not a usable name"),
        (value(topics=[None]), "topic None is not a usable name"),
        (b'{"v":1,"kind":"renew","id":"a","generation":NaN,"nonce":"n"}', "not JSON"),
        (value(topics=[f"t{i}" for i in range(MAX_TOPICS_PER_SUBSCRIPTION + 1)]), "the limit is 1000"),
        (value(stamps_ends={"-1": 0}), "stamps_ends is not"),
        (value(stamps_ends={"01": 0}), "stamps_ends is not"),
        (value(stamps_ends={"0": -1}), "stamps_ends is not"),
        (value(stamps_ends={"²": 1}), "stamps_ends is not"),
        (value(stamps_ends=[1]), "stamps_ends is not"),
    ],
)
def test_what_is_not_a_request_is_refused_with_its_reason(bad: bytes, reason: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(bad)
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 200


RETIRE: dict[str, Any] = {
    "v": 1,
    "kind": "retire",
    "id": "job",
    "nonce": "abc",
    "topic": "orders",
    "topic_id": "7tqmyJG4TjCDl6Zpo8v2FA",
    "seen": {"0": 12},
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"generation": 1}, "fields are missing or unknown: 'generation'"),
        ({"id": "a/b"}, "id is not"),
        ({"nonce": ""}, "nonce is not"),
        *(
            ({name: odd}, f"{name} {odd!r:.57}"[:40])
            for name in ("topic", "topic_id")
            for odd in ("", 7, None, ["a"], "é", "a\n", "x" * 250, "\ud800")
        ),
        ({"topic_id": "x" * 65}, "text of 1 to 64 characters"),
        ({"seen": []}, "seen is not"),
        ({"seen": None}, "seen is not"),
        ({"seen": {"-1": 1}}, "seen is not"),
        ({"seen": {"00": 1}}, "seen is not"),
        ({"seen": {"1234567890": 1}}, "seen is not"),
        ({"seen": {"²": 1}}, "seen is not"),
        ({"seen": {"": 1}}, "seen is not"),
        ({"seen": {"0": -1}}, "seen is not"),
        ({"seen": {"0": 2**63}}, "seen is not"),
        ({"seen": {"0": True}}, "seen is not"),
        ({"seen": {"0": 1.0}}, "seen is not"),
        ({"seen": {"0": None}}, "seen is not"),
    ],
)
def test_what_does_not_name_a_kafka_topic_retires_none(changed: dict[str, Any], reason: str) -> None:
    assert isinstance(parse_request(json.dumps(RETIRE).encode()), Retire)
    with pytest.raises(BadRequest) as caught:
        parse_request(json.dumps(RETIRE | changed).encode())
    assert reason in caught.value.reason
    assert len(caught.value.reason) < 200


SKIP: dict[str, Any] = {
    **{name: RETIRE[name] for name in ("v", "id", "nonce", "topic", "topic_id")},
    "kind": "skip",
    "partition": 0,
    "begin": 3,
    "end": 5,
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"topic": ""}, "text of 1 to 249 characters"),
        ({"topic_id": "é"}, "text of 1 to 64 characters"),
        ({"partition": -1}, "partition -1 is not an integer from 0"),
        ({"partition": 2**31}, "is not an integer from 0 to 2147483647"),
        ({"partition": "0"}, "partition '0' is not an integer"),
        ({"begin": -1}, "begin -1 is not an integer"),
        ({"begin": True}, "begin True is not an integer"),
        ({"end": 3}, "end 3 is not an integer from 4"),
        ({"end": 2**62}, "is not an integer from 4 to"),
        ({"seen": {}}, "missing or unknown: 'seen'"),
    ],
)
def test_what_is_no_range_of_offsets_is_not_passed_over(changed: dict[str, Any], reason: str) -> None:
    assert isinstance(parse_request(json.dumps(SKIP).encode()), Skip)
    with pytest.raises(BadRequest) as caught:
        parse_request(json.dumps(SKIP | changed).encode())
    assert reason in caught.value.reason


def test_a_lone_surrogate_cannot_name_a_topic() -> None:
    with pytest.raises(BadRequest, match="not a usable name"):
        parse_request(value(topics=["\ud800"]))


def test_a_refusal_names_the_sender_where_it_could_be_read() -> None:
    with pytest.raises(BadRequest) as caught:
        parse_request(value(topics=[]))
    assert (caught.value.id, caught.value.nonce) == ("billing", "abc")


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_never_raise_anything_else(junk: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_request(junk)


CLAIM: dict[str, Any] = {"v": 1, "kind": "claim", "incarnation": 1, "owner": "0123abcd"}


def test_a_claim_comes_out_as_it_went_in() -> None:
    claim = Claim(incarnation=2, owner="0123abcd")
    assert claim_in(encode_claim(claim)) == claim
    assert json.loads(encode_claim(claim)) == {**CLAIM, "incarnation": 2}


@pytest.mark.parametrize(
    "changed",
    [
        *({"v": 2}, {"v": True}, {"v": None}, {"kind": "Claim"}, {"kind": ["claim"]}, {"extra": 1}),
        *({"incarnation": 0}, {"incarnation": -1}, {"incarnation": True}, {"incarnation": "1"}, {"incarnation": 1.0}),
        *({"incarnation": 2**63}, {"owner": ""}, {"owner": "a b"}, {"owner": None}, {"owner": "x" * 65}),
        *({"owner": ["claim"]}, {"owner": "é"}),
    ],
)
def test_what_is_nearly_a_claim_is_none_and_is_refused_as_a_request(changed: dict[str, Any]) -> None:
    record = json.dumps({**CLAIM, **changed}).encode()
    assert claim_in(record) is None
    with pytest.raises(BadRequest):
        parse_request(record)


@pytest.mark.parametrize(
    "record",
    [
        *(
            None,
            b"",
            b'"claim"',
            b'["claim"]',
            b'{"kind":"claim"}',
            b'{"kind":"claim"',
            b"\xff" + json.dumps(CLAIM).encode(),
        ),
        json.dumps({**CLAIM, "kind": "claim"})[:-1].encode() + b',"kind":"claim"}',
        json.dumps(CLAIM).encode() + b" " * 600,
        b'{"v":1,"kind":"claim","incarnation":' + b"9" * 400 + b',"owner":"x"}',
        b'{"v":1,"kind":"claim","incarnation":1e999,"owner":"x"}',
        b"[" * 400 + b'"claim"',
    ],
)
def test_no_other_record_is_a_claim(record: bytes | None) -> None:
    assert claim_in(record) is None


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_a_claim_or_none(junk: bytes) -> None:
    assert claim_in(junk + b'"claim"' + junk) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(field=st.sampled_from(sorted(GOOD)), odd=json_values)
def test_any_value_in_any_field_is_taken_whole_or_refused(field: str, odd: Any) -> None:
    try:
        request = parse_request(value(**{field: odd}))
    except BadRequest:
        return
    assert isinstance(request, Subscribe)


@given(field=st.sampled_from(sorted(RETIRE)), odd=json_values)
def test_any_value_in_any_field_retires_or_is_refused(field: str, odd: Any) -> None:
    try:
        request = parse_request(json.dumps({**RETIRE, field: odd}).encode())
    except BadRequest:
        return
    assert isinstance(request, Retire)
    assert parse_request(encode_request(request)) == request


WHO: dict[str, Any] = {"id": "a", "generation": 2, "nonce": "n", "g": 9, "batch": 3, "incarnation": 1}
ANSWERS: list[Answer] = [
    Grant(
        **WHO,
        offset=4,
        topics=("T", "X"),
        former=("Z",),
        continuous=True,
        clock={"T": 1, "X": 0, "Z": 7},
        ids={"T": 0, "X": 2, "Z": 1},
        next_offsets={src("k"): 5},
        stamps_ends={0: 1},
        stamps_partitions=4,
        min_subscriptions=1,
        topic_by="topic",
        lease_s=0,
    ),
    Ended(**WHO, offset=-1, reason="expired", clock={"T": 3}),
    Renewed(**WHO, offset=5, expires_ms=77),
    Repeated(**WHO, offset=6, answered_g=2),
    Rejection(**WHO, offset=7, reason="because"),
    Retired(
        **{name: value for name, value in WHO.items() if name != "generation"},
        offset=8,
        topic="k",
        topic_id="uuid",
        lost={0: (3, 5), 7: (0, 1)},
    ),
    Skipped(
        **{name: value for name, value in WHO.items() if name != "generation"},
        offset=9,
        topic="k",
        topic_id="uuid",
        lost={7: (3, 5)},
    ),
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_answers_come_out_as_they_went_in(answer: Answer) -> None:
    assert decode_answer(encode_answer(answer)) == answer


def test_only_a_grant_or_an_end_may_replace_a_grant_in_a_compacted_topic() -> None:
    assert [answer_key(answer) for answer in ANSWERS] == [
        b"a",
        b"a",
        b"renew/a",
        b"reject/6",
        b"reject/7",
        b"retired/k/uuid",
        b"skipped/9",
    ]


@pytest.mark.parametrize(
    "bad",
    [b"", b"{}", b"[]", b"null", b'{"v":1,"kind":"grant"}', b'{"v":1,"kind":"ended","g":1}', b'{"v":7,"kind":"grant"}'],
)
def test_what_is_not_an_answer_is_refused(bad: bytes) -> None:
    with pytest.raises(WireError):
        decode_answer(bad)


@pytest.mark.parametrize("answer", ANSWERS[-2:])
@pytest.mark.parametrize("field", ["g", "offset", "lost", "id", "nonce", "topic", "topic_id", "batch", "incarnation"])
def test_an_answer_on_a_topic_with_a_field_of_another_kind_is_refused(field: str, answer: Answer) -> None:
    record = json.loads(encode_answer(answer))
    odd_ranges = ([3], [3, 3], [-1, 3], ["1", 3], [3, 2**63])
    for odd in (None, 1.5, {"0": 1}, {"x": [1, 3]}, [[1]], *({"0": bounds} for bounds in odd_ranges)):
        with pytest.raises(WireError):
            decode_answer(json.dumps({**record, field: odd}).encode())


@pytest.mark.parametrize(
    "odd", [{"k": 5}, [["k", 0, 5]], [["k", "i", 0]], [["k", "i", 0, -1]], [["k", 7, 0, 5]], [["k", "i", "0", 5]]]
)
def test_a_grant_that_begins_at_no_event_partition_is_refused(odd: object) -> None:
    record = json.loads(encode_answer(ANSWERS[0]))
    with pytest.raises(WireError):
        decode_answer(json.dumps(record | {"next_offsets": odd}).encode())


@pytest.mark.parametrize("field", ["g", "clock", "ids", "topics", "next_offsets", "id"])
def test_a_grant_with_a_field_of_another_kind_is_refused(field: str) -> None:
    record = json.loads(encode_answer(ANSWERS[0]))
    for odd in (None, 1.5, {"T": "1"}, [[1]]):
        with pytest.raises(WireError):
            decode_answer(json.dumps({**record, field: odd}).encode())
