"""Events that are put aside: what is written, when, and what is read again."""

import json
from typing import Any

import pytest
from logged import by_us
from run_faces import Face, rest, world_with
from sim_kafka import SimCrash
from sim_receipts import receipts_of
from sim_small import World

from totalorder.errors import BrokerUnavailable, Error, HandlerFailed, SettingsError, WireError
from totalorder.subscriber import Event, Lost, Retry
from totalorder.subscriber.parked import HEADER, KEY_HEADER, About, Parked
from totalorder.subscriber.transport import Partition, Record

PARKING = "s.parked"
AT = Partition(PARKING, 0)


@pytest.fixture(params=["run", "async run"])
def face(request: pytest.FixtureRequest) -> Face:
    return Face(request.param)


def world_to_park(count: int) -> World:
    world = world_with(count)
    world.kafka.create(PARKING, 1)
    world.kafka.policies[PARKING] = "compact"
    return world


def parked(world: World) -> list[Parked]:
    return [Parked.read(record) for record in world.kafka.ever(AT)]


def refuse(*values: bytes) -> Any:
    """A handler that cannot take some events, and stops at the last one, c3."""

    def handle(subscriber: Any, event: Event) -> None:
        if event.value == b"c3":
            subscriber.stop()
        if event.value in values:
            raise ValueError("no such customer")

    return handle


def test_a_parked_event_has_its_place_and_all_that_it_had_and_the_rest_goes_on(face: Face) -> None:
    world = world_to_park(1)
    headers = (("trace", b"7"), ("none", None), ("trace", b"8"))
    world.kafka.append(Partition("b", 1), key=b"k", value=b"b2", headers=headers, timestamp_ms=2)
    world.publish("c", "c3")
    face.run(world, refuse(b"b2"), retry=Retry(times=2), park=PARKING)
    (found,) = parked(world)
    assert (found.key, found.value, found.headers) == (b"k", b"b2", headers)
    (g,) = (receipt.g for receipt in receipts_of(world.kafka, "s") if receipt.topic == "b")
    assert found.about == About(
        domain="d",
        id="s",
        g=g,
        n=1,
        topic="b",
        kafka_topic="b",
        topic_id=world.kafka.ids["b"],
        partition=1,
        offset=0,
        timestamp_ms=2,
        attempts=3,
        error="ValueError: no such customer",
        parked_ms=found.about.parked_ms,
    )
    assert found.about.parked_ms >= 1_000_000
    assert [receipt.topic for receipt in receipts_of(world.kafka, "s")] == ["a", "b", "c"]
    assert rest(world) == []
    assert face.left is None


@pytest.mark.parametrize("value", [None, b"", b"\x00" * 10])
def test_values_of_every_kind_come_back(face: Face, value: bytes | None) -> None:
    """A record without a value would take the event back."""
    world = world_to_park(0)
    world.kafka.append(Partition("b", 0), value=value)
    world.publish("c", "c3")

    def handle(subscriber: Any, event: Event) -> None:
        refuse(b"c3")(subscriber, event)
        raise ValueError("no")

    face.run(world, handle, park=PARKING)
    assert [found.value for found in parked(world)] == [value, b"c3"]
    assert all(record.value is not None for record in world.kafka.ever(AT))


def test_it_is_there_before_it_is_acknowledged(face: Face) -> None:
    world = world_to_park(3)
    transport = world.transport()
    face.run(world, refuse(b"b2"), settings={"transport": transport, "receipts": False}, park=PARKING)
    behind = transport.sent[transport.sent.index(PARKING) + 1 :]
    assert "d.positions" in behind


@pytest.mark.parametrize("error", [BrokerUnavailable("gone"), Error("too large")])
def test_what_cannot_be_parked_is_not_acknowledged(face: Face, error: Error) -> None:
    world = world_to_park(3)
    transport = world.transport()
    transport.refused = {PARKING: error}
    with pytest.raises(type(error), match="gone" if isinstance(error, BrokerUnavailable) else r"b#1 .*max\.message"):
        face.run(world, refuse(b"b2"), settings={"transport": transport}, park=PARKING)
    assert [event.value for event in rest(world)] == [b"b2", b"c3"]


def test_a_crash_before_it_is_acknowledged_parks_it_again_under_the_same_key() -> None:
    world = world_to_park(3)
    transport = world.transport()
    subscriber = world.subscriber("abc", transport=transport)

    def handle(event: Event) -> None:
        if event.value == b"b2":
            transport.crash_in = 2  # it is written, and what comes next is not
        refuse(b"b2")(subscriber, event)

    with pytest.raises(SimCrash):
        subscriber.run(handle, park=PARKING)
    Face("run").run(world, refuse(b"b2"), park=PARKING)
    keys = [record.key for record in world.kafka.ever(AT)]
    assert keys == [b"s/b/%b/0/0" % world.kafka.ids["b"].encode()] * 2
    assert rest(world) == []


def test_without_a_place_to_park_nothing_begins(face: Face) -> None:
    world = world_to_park(3)
    for park, said in (
        ("nowhere", "there is no Kafka topic 'nowhere'.*totalorder parked create nowhere"),
        ("a", "which the subscriber reads"),
        ("d.control", "or the domain writes"),
        ("", "park is ''"),
    ):
        with pytest.raises(SettingsError, match=said):
            face.run(world, refuse(), park=park)
    assert len(rest(world)) == 3


def test_after_a_wrong_place_to_park_the_subscriber_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    world = world_to_park(3)
    subscriber = world.subscriber("abc")
    for park in ("nowhere", "a", "d.control", ""):
        with pytest.raises(SettingsError):
            subscriber.run(print, park=park, signals=False)
    assert "has stopped" not in caplog.text
    values = []
    while (event := subscriber.poll(3)) is not None:
        values.append(event.value)
        subscriber.ack(event)
    assert len(values) == 3
    subscriber.close()
    assert rest(world) == []


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("delete", "'s.parked', which is not compacted .cleanup.policy=delete.: .*totalorder parked create"),
        ("compact,delete", "cleanup.policy=compact,delete"),
    ],
)
def test_what_expires_or_has_events_of_its_own_is_not_parked_on(face: Face, policy: str, said: str) -> None:
    """A topic of another team's events, of this domain or of none, is no place to write to."""
    world = world_to_park(3)
    world.kafka.policies[PARKING] = policy
    with pytest.raises(SettingsError, match=said):
        face.run(world, refuse(b"b2"), park=PARKING)
    assert parked(world) == []
    assert len(rest(world)) == 3


def test_who_may_not_see_whether_it_expires_is_told_once(face: Face, caplog: pytest.LogCaptureFixture) -> None:
    world = world_to_park(3)
    world.kafka.policies[PARKING] = ""
    face.run(world, refuse(b"b2"), park=PARKING)
    assert len(parked(world)) == 1
    said = [line for line in by_us(caplog) if "ACLs" in line]
    assert said == [
        "ACLs hide the settings of Kafka topic 's.parked': if it is not compacted, what is parked there expires"
    ]


def test_a_notice_of_loss_is_not_parked(face: Face) -> None:
    world = world_to_park(3)
    world.tick(0)
    world.kafka.trim(Partition("b", 0), 1)

    def handle(_: Any, event: Event | Lost) -> None:
        if isinstance(event, Lost):
            raise ValueError("lost")

    with pytest.raises(HandlerFailed, match="what is lost of b"):
        face.run(world, handle, settings={"on_lost": "skip"}, park=PARKING)


def test_an_error_of_any_length_and_kind_of_text_is_kept_in_part(face: Face) -> None:
    world = world_to_park(3)

    def handle(subscriber: Any, event: Event) -> None:
        refuse()(subscriber, event)
        raise ValueError("\ud800" + "x" * 1_000_000)

    face.run(world, handle, park=PARKING)
    errors = [found.about.error for found in parked(world)]
    assert len(errors) == 3
    assert all(error.startswith("ValueError: ?xx") and len(error) == 1_000 for error in errors)


def good() -> Record:
    about = About(
        domain="d", id="s", g=3, n=1, topic="b", kafka_topic="b", topic_id="i", partition=0, offset=4, timestamp_ms=5,
        attempts=1, error="ValueError", parked_ms=6,
    )  # fmt: skip
    value, headers = Parked(about=about, key=b"k", value=b"v", headers=(("h", None),)).written()
    return Record(PARKING, 0, 9, about.key, value, tuple(headers), 0)


def test_the_bytes_are_those_of_the_page() -> None:
    record = good()
    assert (record.key, record.value) == (b"s/b/i/0/4", b"v")
    assert record.headers[:2] == (("h", b""), ("totalorder.key", b"k"))
    name, told = record.headers[2]
    assert name == "totalorder.parked"
    assert told == (
        b'{"v":1,"domain":"d","id":"s","g":3,"n":1,"topic":"b","kafka_topic":"b","topic_id":"i","partition":0,"offset":4,'
        b'"timestamp_ms":5,"attempts":1,"error":"ValueError","parked_ms":6,"null_value":false,"null_headers":[0]}'
    )


def with_head(**changes: Any) -> Record:
    record = good()
    head = json.loads(record.headers[-1][1] or b"") | changes
    return record._replace(
        headers=(*record.headers[:-1], (HEADER, json.dumps({k: v for k, v in head.items() if v != "absent"}).encode()))
    )


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (good()._replace(headers=()), "last headers"),
        (good()._replace(headers=((KEY_HEADER, b"k"), (HEADER, b"{}"), ("more", b""))), "last headers"),
        (good()._replace(headers=((KEY_HEADER, b"k"), (HEADER, None))), "Expecting value"),
        (good()._replace(headers=((KEY_HEADER, b"k"), (HEADER, b"\xff"))), "utf-8"),
        (good()._replace(headers=((KEY_HEADER, b"k"), (HEADER, b"[" * 60_000))), "nested too deep"),
        (good()._replace(headers=((KEY_HEADER, b"k"), (HEADER, b'"' + b"x" * 2_000_000))), "may have 1048576"),
        (good()._replace(headers=((KEY_HEADER, b"k"), (HEADER, b"[1]"))), "not of version 1"),
        (with_head(v=2), "not of version 1"),
        (good()._replace(key=b"s/b/i/0/5"), "its key is another event's"),
        (good()._replace(key=None), "its key is another event's"),
        (with_head(offset=-4), "-4 is not an integer"),
        (with_head(g=1.5), "1.5 is not an integer"),
        (with_head(topic=7), "7 is not text"),
        (with_head(error="absent"), "says nothing of 'error'"),
        (with_head(null_value=True), "null which is not empty"),
        (with_head(null_value=1), "does not say what was null"),
        (with_head(null_headers=[1]), "null which is not empty"),
        (with_head(null_headers=[2]), "null which is not empty"),
        (with_head(null_headers=[-1]), "null which is not empty"),
        (with_head(null_headers=["0"]), "does not say what was null"),
        (with_head(null_headers=0), "does not say what was null"),
    ],
)
def test_what_is_none_of_ours_is_told_with_the_reason(record: Record, said: str) -> None:
    with pytest.raises(WireError, match=said):
        Parked.read(record)


def test_what_says_more_is_read() -> None:
    assert Parked.read(with_head(more=1)) == Parked.read(good())
