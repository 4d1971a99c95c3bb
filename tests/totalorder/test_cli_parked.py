"""`totalorder parked` on a Kafka in memory."""

import json
import random
from collections.abc import Callable

import pytest
from sim_kafka import SimKafka, SimTransport

from totalorder.cli.app import main
from totalorder.subscriber.parked import About, Headers, Parked
from totalorder.subscriber.transport import Partition

Run = Callable[..., tuple[int, str, str]]
PARKING = "billing.parked"


@pytest.fixture
def kafka() -> SimKafka:
    kafka = SimKafka()
    kafka.create(PARKING, 2)
    kafka.policies[PARKING] = "compact"
    kafka.create("orders", 2)
    kafka.create("retry", 1)
    return kafka


@pytest.fixture
def run(kafka: SimKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `totalorder parked`; its exit code, output and errors."""

    def call(*words: str) -> tuple[int, str, str]:
        made: list[SimTransport] = []

        def connect(*_: object) -> SimTransport:
            made.append(SimTransport(kafka, random.Random(7), lambda _: None, most=2))
            return made[0]

        monkeypatch.setattr("totalorder.subscriber.clients.transport_of", lambda _: connect)
        with pytest.raises(SystemExit) as done:
            main(["parked", *words])
        code = int(done.value.code or 0)
        assert [transport.closed for transport in made] == [True] * (code != 2), "wrong usage asks Kafka nothing"
        return code, *capsys.readouterr()

    return call


def park(
    kafka: SimKafka,
    offset: int,
    *,
    value: bytes | None = b"v",
    at: int = 0,
    headers: Headers = (),
    kafka_topic: str = "orders",
    error: str = "ValueError: no",
) -> None:
    about = About(
        domain="d", id="billing", g=offset + 2, n=offset + 1, topic="orders", kafka_topic=kafka_topic, topic_id="i",
        partition=1, offset=offset, timestamp_ms=5, attempts=3, error=error, parked_ms=1_700_000_000_000,
    )  # fmt: skip
    written, all_headers = Parked(about=about, key=b"k%d" % offset, value=value, headers=headers).written()
    kafka.append(Partition(PARKING, at), key=about.key, value=written, headers=all_headers)


def places(run: Run) -> list[str]:
    code, out, _ = run("list", PARKING, "--json")
    assert code == 0
    return [json.loads(line)["at"] for line in out.splitlines()]


def test_list_shows_what_lies_there(kafka: SimKafka, run: Run) -> None:
    park(kafka, 4)
    park(kafka, 7, at=1, value=None, headers=(("h", b"\xff"),))
    park(kafka, 4, error="ValueError: \x1b[31mstill\nno")  # parked again behind a crash: it stands once
    code, out, err = run("list", PARKING)
    assert (code, err) == (0, "")
    by = "by billing 2023-11-14T22:13:20+00:00, attempt 3: ValueError: "
    first, second = out.splitlines()
    assert first == f"     0@1  orders#5 (orders[1]@4, g 6)  {by}" + r"\x1b[31mstill\nno"
    assert second == f"     1@0  orders#8 (orders[1]@7, g 9)  {by}no"
    code, out, err = run("list", PARKING, "--json")
    told = json.loads(out.splitlines()[1])
    assert told["headers"] == [{"name": "h", "value_base64": "/w=="}]
    assert (told["at"], told["value"], told["key"], told["offset"]) == ("1@0", None, "k7", 7)


def test_replay_publishes_a_new_event_and_takes_the_parked_one_back(kafka: SimKafka, run: Run) -> None:
    headers: Headers = (("h", b"1"), ("h", b""))
    for offset, value in enumerate((b"v", None, b"")):
        park(kafka, offset, value=value, headers=headers)
    code, out, _ = run("replay", PARKING, "0@1", "0@0", "0@1")
    assert code == 0
    assert out.splitlines() == [
        "0@1: orders#2 (orders[1]@1, g 3) is published again, as a new event at orders[1]@0",
        "0@0: orders#1 (orders[1]@0, g 2) is published again, as a new event at orders[1]@1",
    ]
    published = [(record.key, record.value, record.headers) for record in kafka.ever(Partition("orders", 1))]
    assert published == [(b"k1", None, headers), (b"k0", b"v", headers)]
    assert places(run) == ["0@2"]
    assert run("replay", PARKING, "--all", "--to", "retry")[0] == 0
    for command in ("replay", "drop"):
        assert run(command, PARKING, "--all") == (0, "", f"nothing is parked on {PARKING}\n")
    assert [record.key for record in kafka.ever(Partition("retry", 0))] == [b"k2"]
    assert places(run) == []


def test_what_kafka_python_cannot_write_is_written_by_the_other_client(kafka: SimKafka, run: Run) -> None:
    headers: Headers = (("h", None),)
    park(kafka, 0, headers=headers)
    code, out, err = run("replay", PARKING, "--all")
    assert (code, out) == (1, "")
    assert "orders#1 (orders[1]@0, g 2) has a header without a value" in err
    assert "--client confluent" in err
    assert places(run) == ["0@0"]
    assert run("replay", PARKING, "--all", "--client", "confluent")[0] == 0
    assert [record.headers for record in kafka.ever(Partition("orders", 1))] == [headers]
    assert places(run) == []


def test_drop_gives_up(kafka: SimKafka, run: Run) -> None:
    for offset in range(3):
        park(kafka, offset)
    code, out, _ = run("drop", PARKING, "0@1")
    assert (code, out) == (0, "0@1: orders#2 (orders[1]@1, g 3) is dropped\n")
    assert places(run) == ["0@0", "0@2"]
    kafka.compact(Partition(PARKING, 0))
    assert places(run) == ["0@0", "0@2"]
    assert run("drop", PARKING, "--all")[0] == 0
    assert places(run) == []
    assert kafka.ever(Partition("orders", 1)) == []
    park(kafka, 1)
    assert len(places(run)) == 1


def test_what_is_none_of_ours_is_told_and_passed_over(kafka: SimKafka, run: Run) -> None:
    at = Partition(PARKING, 0)
    park(kafka, 1)
    key = kafka.ever(at)[0].key
    kafka.append(at, key=key, value=b"other", headers=(("totalorder.parked", b"{}"),))
    kafka.append(at, key=None, value=b"\x1b[31m", headers=(("totalorder.key", None), ("totalorder.parked", b'"\x1b')))
    kafka.append(at, key=None, value=None)
    code, out, err = run("list", PARKING)
    assert code == 0
    assert out.startswith("     0@0  orders#2")
    assert len(out.splitlines()) == 1
    told = err.splitlines()
    assert [line.partition(",")[0] for line in told] == [f"passed over {PARKING}[0]@{offset}" for offset in (1, 2)]
    assert "\x1b" not in err
    assert run("drop", PARKING, "--all")[1].count("dropped") == 1


@pytest.mark.parametrize("policy", ["compact", "compact,delete", ""])
@pytest.mark.parametrize(("count", "told"), [(2_500, 10), (3, 3)])
def test_a_topic_of_other_records_is_told_in_a_few_lines(
    kafka: SimKafka, run: Run, policy: str, count: int, told: int
) -> None:
    kafka.policies["orders"] = policy
    for number in range(count):
        kafka.append(Partition("orders", number % 2), key=b"k", value=b"an event")
    code, out, err = run("list", "orders")
    assert (code, out) == (0, "")
    *few, last, nothing = err.splitlines()
    assert len(few) == told
    assert all(line.startswith("passed over orders[") for line in few)
    assert last == (
        f"orders has {count:,} records that are no parked events, all passed over: is it the topic that run() was "
        "given as `park`?"
    )
    assert nothing == "nothing is parked on orders"


@pytest.mark.parametrize("words", [("list", "orders"), ("replay", "orders", "--all"), ("drop", "orders", "0@0")])
def test_a_topic_of_events_is_known_without_reading_it(kafka: SimKafka, run: Run, words: tuple[str, ...]) -> None:
    for number in range(2_500):
        kafka.append(Partition("orders", number % 2), key=b"k", value=b"an event")
    code, out, err = run(*words)
    assert (code, out) == (1, "")
    assert err == (
        "totalorder: orders has no parked events: it is not compacted (cleanup.policy=delete), and run() parks on no "
        "such topic. Give the one that run() was given as `park`\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("replay", PARKING), 2, "Give one of both: places as `list` names them, or --all"),
        (("drop", PARKING, "0@0", "--all"), 2, "Give one of both: places as `list` names them, or --all"),
        (("replay", PARKING, "0@0", "0@9", "nonsense"), 1, "nothing is parked at 0@9, nonsense of billing.parked"),
    ],
)
def test_mistakes_are_told(kafka: SimKafka, run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    park(kafka, 0)
    found, out, err = run(*words)
    assert (found, out) == (code, "")
    assert said in err
    assert places(run) == ["0@0"]
    assert kafka.ever(Partition("orders", 1)) == []


@pytest.mark.parametrize(
    ("topic", "said"), [("shop.control", "belongs to a domain"), ("gone", "there is no topic gone")]
)
def test_what_cannot_be_published_stays(kafka: SimKafka, run: Run, topic: str, said: str) -> None:
    """Who may write to the topic has the operator write nowhere of his choice where much hangs on it."""
    kafka.create("shop.control", 1)
    park(kafka, 0, kafka_topic=topic)
    code, out, err = run("replay", PARKING, "--all")
    assert (code, out) == (1, "")
    assert said in err
    assert kafka.ever(Partition("shop.control", 0)) == []
    assert places(run) == ["0@0"]
