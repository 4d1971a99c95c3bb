"""The driver asks for snapshots, marks those that are whole, and removes what is of no use any more."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from secure_broker import ACLS, LOGIN, USER, SecureBroker
from spark_job import records
from structlog.testing import capture_logs

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import make_settings
from totalorder.errors import BrokerUnavailable, Error
from totalorder.sequencer.snapshot import SnapshotMark, decode_mark
from totalorder.sequencer.wire.control import claim_in
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming import claims, past, writing
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.preflight import own_topics
from totalorder.streaming.progress import BatchProgress
from totalorder.streaming.record import DomainRecord, EventTopic
from totalorder.streaming.snapshots import EVERY_S, FIRST_S, Snapshots
from totalorder.streaming.store import LocalStore
from totalorder.streaming.topics import Topics

pytestmark = pytest.mark.broker


class Driver:
    """A driver whose Spark is played by the test: `planned` writes Spark's log, `over` tells of a finished batch."""

    def __init__(
        self, broker: LocalBroker, domain: str, root: Path, *, login: str = "", kafka: dict[str, str] | None = None
    ) -> None:
        """By the plain port, or that of a `login` with these settings."""
        self.now_s, self._plain = 1_000.0, broker.bootstrap_servers
        self.settings = make_settings(
            domain=domain,
            bootstrap_servers=login or broker.bootstrap_servers,
            kafka=kafka or {},
            topics=("events",),
            stamps_partitions=2,
            checkpoint_dir=str(root),
        )
        self.names, self.store = self.settings.own_topics, LocalStore(root)
        self.topics = Topics(self.settings)
        self.topics.create(own_topics(self.settings))
        self.record = DomainRecord.begin(
            self.settings,
            topics=[EventTopic(name="events", topic_id="id-e", starts={1: 5})],
            own_ids={self.names.control: "id-c"},
        )
        claims.hold(self.settings, self.record)
        self.made = Snapshots(self.settings, structlog.get_logger(), now_s=lambda: self.now_s)

    def see_to_it(self) -> None:
        self.made.see_to_it(self.record, self.store, self.topics)

    def planned(self, number: int) -> None:
        end = BatchEnd(cut=number + 1, order=0, ends={0: (number,), 1: (10, 20)})
        lines = ["v1", json.dumps({"batchTimestampMs": 7}), json.dumps(end.encode())]
        self.store.write(f"query/offsets/{number}", "\n".join(lines))

    def over(self, number: int, asked_at: int | None = None) -> None:
        figures: dict[str, Any] = {"batch": number + 1, "asked_at": asked_at}
        self.made.note(BatchProgress(planned=number, figures=figures, durations_ms={}, looks={}))

    def asks(self) -> list[int]:
        """Where it asked, the first claim left out."""
        found = records(self._plain, self.names.control)
        return [record.offset for record in found if claim_in(record.value) is not None][1:]

    def told(self) -> list[SnapshotMark | None]:
        found = [(record.value, dict(record.headers)) for record in self.state()]
        return [decode_mark(*one, self.settings.domain) for one in found if one[1]["kind"] != b"probe"]

    def state(self) -> list[Any]:
        return list(records(self._plain, self.names.state))

    def part(self) -> None:
        """As a worker writes it, for the driver to pass over."""
        writing.write(self.settings, self.names.state, b"x", [("kind", b"part"), ("version", b"1")])


@pytest.fixture
def driver(broker: LocalBroker, unique_name: Callable[[str], str], tmp_path: Path) -> Driver:
    return Driver(broker, unique_name("snapshots"), tmp_path)


def test_it_asks_a_minute_after_the_start_and_then_each_ten_where_there_was_a_batch(driver: Driver) -> None:
    driver.now_s += FIRST_S
    assert not driver.made.is_due, "there was no batch yet"
    driver.over(0)
    assert driver.made.is_due
    driver.see_to_it()
    (asked_at,) = driver.asks()
    assert not driver.made.is_due
    driver.planned(1)
    driver.over(1, asked_at - 1)
    assert not driver.made.is_due, "that was not its own"
    driver.over(1, asked_at)
    assert driver.made.is_due
    driver.see_to_it()
    driver.now_s += EVERY_S
    assert not driver.made.is_due, "nothing came since"
    driver.over(2)
    assert driver.made.is_due
    driver.see_to_it()
    assert len(driver.asks()) == 2
    driver.now_s += EVERY_S
    assert driver.made.is_due, "it heard nothing, and asks again"


def test_the_mark_says_where_all_stands_and_what_is_older_is_removed(driver: Driver) -> None:
    writing.write(driver.settings, driver.names.stamps, b"before")
    for number in (0, 1):
        driver.over(number)
        driver.see_to_it()
        writing.write(driver.settings, driver.names.stamps, b"the batch")
        driver.part()
        driver.planned(number)
        driver.over(number, driver.asks()[-1])
        driver.see_to_it()
        part, mark = driver.told()
        assert part is None
        assert mark == SnapshotMark(
            domain=driver.settings.domain,
            incarnation=1,
            batch=number + 1,
            shards=1,
            cut=number + 1,
            ends={
                Source(driver.names.control, "id-c", 0): number,
                Source("events", "id-e", 0): 10,
                Source("events", "id-e", 1): 20,
            },
            starts={Source("events", "id-e", 1): 5},
            topic_order=driver.record.orders[0],
            stamps_begins=(1 + number, 0),
            stamps_ends=(2 + number, 0),
        )


def test_where_a_later_batch_is_planned_the_stamps_do_not_end_with_it(driver: Driver) -> None:
    driver.over(0)
    driver.see_to_it()
    driver.planned(0)
    driver.planned(1)
    driver.over(0, driver.asks()[0])
    driver.see_to_it()
    (mark,) = driver.told()
    assert mark is not None
    assert mark.stamps_ends is None


def test_a_log_that_spark_has_shortened_is_said_and_the_older_snapshot_stays(driver: Driver) -> None:
    driver.part()
    driver.over(0)
    driver.see_to_it()
    driver.over(0, driver.asks()[0])
    with capture_logs() as logs:
        driver.see_to_it()
    assert [(line["event"], line["batch"]) for line in logs] == [("snapshot left out", 1)]
    assert driver.told() == [None]
    assert not driver.made.is_due
    driver.now_s += EVERY_S
    assert driver.made.is_due


def test_who_may_not_delete_says_so_and_goes_on(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.over(0)
    driver.see_to_it()
    driver.planned(0)
    driver.over(0, driver.asks()[0])

    def refuse(*_: object) -> None:
        raise Error("not allowed")

    monkeypatch.setattr(driver.topics, "trim", refuse)
    with capture_logs() as logs:
        driver.see_to_it()
    assert [line["event"] for line in logs] == ["older snapshots stay"]
    assert len(driver.told()) == 1


def test_a_broker_that_is_away_is_asked_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver.over(0)
    driver.see_to_it()
    driver.planned(0)
    driver.over(0, driver.asks()[0])

    def away(*_: object) -> None:
        raise BrokerUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(writing, "write", away)
        with pytest.raises(BrokerUnavailable):
            driver.see_to_it()
    assert not driver.made.is_due
    driver.now_s += 10
    assert driver.made.is_due
    driver.see_to_it()
    assert len(driver.told()) == 1


def test_topics_are_trimmed_up_to_an_offset(driver: Driver, kafka_admin: KafkaAdminClient) -> None:
    for _ in range(3):
        driver.part()
    driver.topics.trim(driver.names.state, 2)
    assert len(driver.state()) == 1
    assert driver.names.state in kafka_admin.list_topics()


def test_where_it_may_not_write_it_says_so_and_asks_for_nothing(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a batch that has to would never end."""

    def refuse(settings: object, topic: str, *_: object) -> int:
        assert topic == driver.names.state
        raise Error("not allowed")

    driver.over(0)
    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(writing, "write", refuse)
        driver.see_to_it()
    assert [(line["event"], line["reason"]) for line in logs] == [("no snapshot", "not allowed")]
    assert driver.asks() == []
    assert not driver.made.is_due
    driver.now_s += EVERY_S
    assert driver.made.is_due


# --- by ACLs ----------------------------------------------------------------------------------------------------------


class Acls:
    """What `USER` may do with topics of a domain: what docs/operating.md gives to the sequencer."""

    def __init__(self, admin: KafkaAdminClient, names: DomainTopics) -> None:
        self._admin = admin
        read_and_written = (names.control, names.stamps, names.grants, names.cuts, names.state)
        for topic in read_and_written:
            for operation in (ACLOperation.READ, ACLOperation.WRITE):
                self.let(operation, topic)
        self.let(ACLOperation.DELETE, names.state)
        everything = ResourcePattern(ResourceType.TOPIC, "*")
        for operation in (ACLOperation.CREATE, ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS):
            self._add(operation, everything, ACLPermissionType.ALLOW)

    def let(self, operation: ACLOperation, topic: str, permission: ACLPermissionType = ACLPermissionType.ALLOW) -> None:
        self._add(operation, ResourcePattern(ResourceType.TOPIC, topic), permission)

    def deny(self, operation: ACLOperation, topic: str) -> None:
        self.let(operation, topic, ACLPermissionType.DENY)

    def _add(self, operation: ACLOperation, pattern: ResourcePattern, permission: ACLPermissionType) -> None:
        made = self._admin.create_acls([ACL(f"User:{USER}", "*", operation, permission, pattern)])
        assert not made["failed"]


@pytest.fixture(scope="module")
def strict() -> Iterator[SecureBroker]:
    with SecureBroker(settings=ACLS) as running:
        yield running


@pytest.fixture
def restricted(
    strict: SecureBroker, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[tuple[Driver, Acls]]:
    """A driver that may do what the table in docs/operating.md says."""
    domain = unique_name("acls")
    with kafka_clients.admin(strict.bootstrap_servers) as admin:
        acls = Acls(admin, DomainTopics(domain=domain))
        yield Driver(strict, domain, tmp_path, login=strict.login, kafka=LOGIN), acls


def snapshot(driver: Driver) -> list[Any]:
    """Sees to one; the log."""
    with capture_logs() as logs:
        driver.over(0)
        driver.see_to_it()
        driver.planned(0)
        driver.over(0, next(iter(driver.asks()), None))
        driver.see_to_it() if driver.made.is_due else None
    return logs


def test_what_the_sequencer_is_given_is_enough_for_snapshots(restricted: tuple[Driver, Acls]) -> None:
    driver, _ = restricted
    assert snapshot(driver) == []
    assert len(driver.told()) == 1
    assert len(driver.state()) == 1, "the probe is removed"


def test_who_may_not_write_state_by_acls_is_told_so_and_asks_for_nothing(restricted: tuple[Driver, Acls]) -> None:
    driver, acls = restricted
    acls.deny(ACLOperation.WRITE, driver.names.state)
    (line,) = snapshot(driver)
    assert (line["event"], line["topic"]) == ("no snapshot", driver.names.state)
    assert "Allow the sequencer to read and write there" in line["remedy"]
    assert driver.asks() == []


def test_who_may_not_delete_from_state_by_acls_is_told_so_and_the_snapshot_is_there(
    restricted: tuple[Driver, Acls],
) -> None:
    driver, acls = restricted
    acls.deny(ACLOperation.DELETE, driver.names.state)
    (line,) = snapshot(driver)
    assert (line["event"], line["topic"]) == ("older snapshots stay", driver.names.state)
    assert len(driver.told()) == 1


def test_who_may_not_read_state_by_acls_recovers_nothing_without_it(restricted: tuple[Driver, Acls]) -> None:
    """A snapshot that cannot be seen must not count as one that is not there."""
    driver, acls = restricted
    assert snapshot(driver) == []
    acls.deny(ACLOperation.READ, driver.names.state)
    with pytest.raises(Error, match=driver.names.state) as told:
        past.marks(driver.settings, 1)
    assert not isinstance(told.value, BrokerUnavailable)
