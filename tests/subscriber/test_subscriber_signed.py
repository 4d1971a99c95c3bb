"""A domain that takes signed requests alone, as its subscribers see it."""

import pytest
from sim_small import World, take

from totalorder.errors import Rejected, SettingsError
from totalorder.sequencer.wire.control import Unsubscribe, encode_request
from totalorder.sequencer.wire.signing import Signatures, Signer, key_of
from totalorder.subscriber.session_settings import SessionSettings
from totalorder.subscriber.transport import Partition

KEY = "k" * 40
OWN = key_of(KEY, domain="d", signer="s")


def signed_world() -> World:
    world = World()
    world.sequencer.signatures = Signatures(keys=(KEY,), domain="d")
    return world


@pytest.mark.parametrize("key", [KEY, OWN])
def test_who_has_a_key_lives_as_ever(key: str) -> None:
    """Subscribes, renews, changes, is taken over, ends."""
    world = signed_world()
    first = world.subscriber("a", control_key=key, lease_s=60)
    world.publish("a")
    assert [event.value for event in take(first, 1)] == [b"a1"]
    for _ in range(5):
        first.poll(40)
    first.subscribe(["a", "b"])
    world.publish("b")
    assert [event.value for event in take(first, 1)] == [b"b2"]
    second = world.subscriber("b", control_key=key)
    world.publish("b")
    assert [event.value for event in take(second, 1)] == [b"b3"]
    second.unsubscribe()
    assert second.poll(1) is None


def test_who_has_none_or_another_s_is_told() -> None:
    world = signed_world()
    with pytest.raises(Rejected, match=r"not signed with the control key of this id \(control_key\)"):
        world.subscriber("a")
    with pytest.raises(Rejected, match="not signed"):
        world.subscriber("a", control_key="x" * 40)
    with pytest.raises(SettingsError, match="control_key is that of id 's', and not of id 't'"):
        world.subscriber("a", id="t", control_key=OWN)
    with pytest.raises(SettingsError, match="neither"):
        world.subscriber("a", control_key="s:7")


def test_another_tenant_cannot_end_it() -> None:
    world = signed_world()
    first = world.subscriber("a", control_key=OWN)
    end = Unsubscribe(id="s", generation=2, nonce="evil")
    world.kafka.append(Partition("d.control", 0), value=encode_request(end), timestamp_ms=0)
    theirs = Signer(key="x" * 40, domain="d", signer="s")
    world.kafka.append(Partition("d.control", 0), value=encode_request(end, theirs), timestamp_ms=0)
    world.publish("a")
    assert [event.value for event in take(first, 1)] == [b"a1"]


def test_no_key_is_shown() -> None:
    settings = SessionSettings(id="s", domain="d", control_key=OWN)
    assert OWN.rpartition(":")[2] not in repr(settings) + repr(settings.signer())
