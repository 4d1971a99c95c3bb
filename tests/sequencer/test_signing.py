"""Signed requests: what is not signed by who may ask for it has no effect, and is answered with the reason."""

import json
from dataclasses import replace

import pytest
from engine_world import configs, run
from hypothesis import given, strategies as st

from totalorder.errors import SettingsError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import State, initial_state, step
from totalorder.sequencer.wire.control import (
    Grant,
    Rejection,
    Renew,
    Repeated,
    Request,
    Retire,
    Retired,
    Subscribe,
    Unsigned,
    Unsubscribe,
    encode_request,
    parse_request,
    signer_of,
)
from totalorder.sequencer.wire.signing import RETIRE, Signatures, Signer, key_of

KEY, OTHER = "k" * 32, "o" * 64
SIGNATURES = Signatures(keys=(KEY,), domain="d")
SUBSCRIBE = Subscribe(id="s", generation=1, nonce="n", topics=("T", "été"), lease_s=9, stamps_ends={0: 7})
RETIRING = Retire(id="s", nonce="n", topic="k", topic_id="uuid", seen={0: 3})
REQUESTS: list[Request] = [
    SUBSCRIBE,
    Unsubscribe(id="s", generation=1, nonce="n"),
    Renew(id="s", generation=1, nonce="n"),
    RETIRING,
]


def signer(of: Request, key: str = KEY, domain: str = "d") -> Signer:
    return Signer(key=key, domain=domain, signer=signer_of(of))


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_is_signed_comes_out_as_it_went_in(request_: Request) -> None:
    value = encode_request(request_, signer(request_))
    assert parse_request(value, SIGNATURES) == request_
    assert parse_request(value) == request_, "who wants no signature passes it over"
    own_key = key_of(KEY, domain="d", signer=signer_of(request_))
    assert encode_request(request_, signer(request_, own_key)) == value


@pytest.mark.parametrize("request_", REQUESTS)
def test_what_is_not_signed_or_otherwise_is_refused(request_: Request) -> None:
    signed = json.loads(encode_request(request_, signer(request_)))
    odd: list[object] = [None, "", 7, [], "ü" * 64, "0" * 64, signed["signature"].upper(), signed["signature"][:-1]]
    values = [json.dumps(signed | {"signature": value}).encode() for value in odd]
    values += [
        encode_request(request_),
        encode_request(request_, signer(request_, key=OTHER)),
        encode_request(request_, signer(request_, domain="other")),
        encode_request(request_, Signer(key=KEY, domain="d", signer="another")),
    ]
    for value in values:
        with pytest.raises(Unsigned, match="not signed with") as caught:
            parse_request(value, SIGNATURES)
        assert (caught.value.id, caught.value.nonce) == ("s", "n")


def test_each_part_of_a_request_is_signed() -> None:
    value = json.loads(encode_request(SUBSCRIBE, signer(SUBSCRIBE)))
    assert parse_request(json.dumps(value, indent=1).encode(), SIGNATURES) == SUBSCRIBE, "the form does not matter"
    changes: dict[str, object] = {
        "id": "t",
        "generation": 2,
        "nonce": "m",
        "topics": ["T"],
        "lease_s": 8,
        "stamps_ends": {"0": 6},
    }
    for name, other in changes.items():
        with pytest.raises(Unsigned):
            parse_request(json.dumps(value | {name: other}).encode(), SIGNATURES)
    ended = value | {"kind": "unsubscribe"}
    for name in ("topics", "lease_s", "stamps_ends"):
        del ended[name]
    with pytest.raises(Unsigned):
        parse_request(json.dumps(ended).encode(), SIGNATURES)


def test_a_tenant_with_the_key_of_its_id_signs_for_nobody_else_and_retires_nothing() -> None:
    own_key = key_of(KEY, domain="d", signer="tenant")
    for request in REQUESTS:
        with pytest.raises(SettingsError, match="is that of id 'tenant', and not"):
            signer(request, own_key)
    digits = own_key.rpartition(":")[2]
    for request in REQUESTS:  # one who writes records by hand
        value = encode_request(request, signer(request, f"{signer_of(request)}:{digits}"))
        with pytest.raises(Unsigned):
            parse_request(value, SIGNATURES)
    retire = replace(RETIRING, id="tenant")
    with pytest.raises(Unsigned, match="the domain's control key"):
        parse_request(encode_request(retire, Signer(key=own_key, domain="d", signer="tenant")), SIGNATURES)


def test_keys_are_replaced_without_a_gap() -> None:
    both = Signatures(keys=(OTHER, KEY), domain="d")
    for key in (KEY, OTHER):
        assert parse_request(encode_request(SUBSCRIBE, signer(SUBSCRIBE, key)), both) == SUBSCRIBE
    assert both.signer(RETIRE) == Signer(key=OTHER, domain="d", signer=RETIRE)


@given(key=st.one_of(st.text(max_size=80), st.text("0123456789abcdef:/s", min_size=60, max_size=80)))
def test_what_is_no_key_is_refused_and_never_shown(key: str) -> None:
    shown, secret = "", key.rpartition(":")[2]
    try:
        shown = repr(Signer(key=key, domain="d", signer="s"))
    except SettingsError as error:
        shown = str(error)
    assert len(secret) < 8 or secret not in shown


def test_the_key_of_an_id_is_not_taken_for_the_domains_own() -> None:
    with pytest.raises(SettingsError, match="this is the key of id 'tenant', and the domain's own") as caught:
        Signatures(keys=(key := key_of(KEY, domain="d", signer="tenant"),), domain="d")
    assert key.rpartition(":")[2] not in str(caught.value)


def test_no_key_is_shown() -> None:
    assert KEY not in repr(SIGNATURES)
    with pytest.raises(SettingsError, match="32 to 512") as caught:
        Signatures(keys=("short secret",), domain="d")
    assert "secret" not in str(caught.value)


# --- in the engine ----------------------------------------------------------------------------------------------------


def asked(state: State, *values: bytes, keys: Signatures | None = SIGNATURES) -> tuple[State, list[object], int]:
    """The answers to these control records in a batch of their own."""
    (config,) = configs()
    rows = [Row(f"{config.domain}.control", 0, place, control=value) for place, value in enumerate(values)]
    after, effects = step(state, Batch.of(1_000, rows), {}, signatures=keys)
    return after, list(effects.answers), effects.unsigned


def test_nobody_ends_the_subscription_of_another() -> None:
    (config,) = configs()
    assert config.domain == "d"
    state, (grant,), unsigned = asked(initial_state(config), encode_request(SUBSCRIBE, signer(SUBSCRIBE)))
    assert isinstance(grant, Grant)
    end = Unsubscribe(id="s", generation=2, nonce="evil")
    forged = [
        encode_request(end),
        encode_request(end, signer(end, OTHER)),
        encode_request(replace(SUBSCRIBE, generation=2, nonce="evil")),
        encode_request(REQUESTS[-1]),
    ]
    after, answers, unsigned = asked(state, *forged)
    assert unsigned == 4
    assert all(isinstance(answer, Rejection) and "not signed" in answer.reason for answer in answers)
    assert after.cold.subscriptions == state.cold.subscriptions
    assert after.cold.retired == {}
    _, (ended,), _ = asked(state, forged[0], keys=None)
    assert not isinstance(ended, Rejection), "without keys anybody may"


def test_what_was_signed_once_does_nothing_when_it_is_played_again() -> None:
    """All of it, in any order: a generation comes once."""
    (config,) = configs()
    life: list[Request] = [
        SUBSCRIBE,
        replace(SUBSCRIBE, generation=2, nonce="m", topics=("X",)),
        Unsubscribe(id="s", generation=3, nonce="m"),
        replace(SUBSCRIBE, generation=4, nonce="p"),
    ]
    values = [encode_request(request, signer(request)) for request in life]
    state, answers, _ = asked(initial_state(config), *values)
    assert not any(isinstance(answer, Rejection) for answer in answers)
    after, answers, unsigned = asked(state, *values, *reversed(values))
    assert after.cold.subscriptions == state.cold.subscriptions
    assert {type(answer) for answer in answers} == {Rejection, Repeated}
    assert unsigned == 0


def test_the_sequencer_retires_what_it_signs_itself() -> None:
    (config,) = configs()
    (state,), _ = run([[Row("k", 0, 0, topic="k", topic_id="uuid")]], configs())
    request = replace(RETIRING, id="sequencer")
    _, (retired,), _ = asked(state, encode_request(request, SIGNATURES.signer(RETIRE)))
    assert isinstance(retired, Retired)
    assert config.domain == SIGNATURES.domain
