"""Of several sequencers with checkpoints of their own one holds the domain, however their starts interleave."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest
from spark_job import records

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings, make_settings
from totalorder.errors import Error, PreflightFailed
from totalorder.sequencer.wire.control import Claim, claim_in, encode_claim
from totalorder.streaming import claims
from totalorder.streaming.checkpoint import LOCK, RECORD
from totalorder.streaming.preflight import NewTopic, own_topics
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.runner import Sequencer
from totalorder.streaming.topics import Topics

pytestmark = pytest.mark.broker
ANOTHERS = "belongs to another checkpoint than .*: to the one whose domain.json has the identity"


class Starts:
    """Starts of sequencers of one domain up to the point at which Spark would begin."""

    def __init__(self, servers: str, domain: str, topic: str, root: Path) -> None:
        self.given: dict[str, object] = {
            "domain": domain,
            "bootstrap_servers": servers,
            "topics": (topic,),
            "stamps_partitions": 2,
        }
        self.root = root
        self.control = f"{domain}.control"

    def settings(self, name: str, **more: object) -> Settings:
        return make_settings(**self.given | more, checkpoint_dir=str(self.root / name))

    def start(self, name: str) -> DomainRecord:
        """Its record; or raises why it may not run."""
        sequencer = Sequencer(self.settings(name))
        try:
            sequencer._prepare()
        finally:
            sequencer._release()
        return self.record(name)

    def refused(self, name: str, holder: DomainRecord) -> None:
        with pytest.raises(PreflightFailed, match=f"{ANOTHERS} {holder.identity}"):
            self.start(name)

    def record(self, name: str) -> DomainRecord:
        return DomainRecord.decode((self.root / name / RECORD).read_text(encoding="utf-8"), name)

    def files(self, name: str) -> list[str]:
        return [path.name for path in (self.root / name).iterdir()]

    def claims(self) -> Sequence[Claim | None]:
        return [claim_in(record.value) for record in records(self.settings("x").bootstrap_servers, self.control)]

    def send(self, *values: bytes) -> None:
        """To control, which is made where it is not there."""
        with kafka_clients.producer(self.settings("x").bootstrap_servers) as producer:
            for value in values:
                producer.send(self.control, value=value, partition=0).get(30)


@pytest.fixture
def starts(
    broker: LocalBroker, new_topic: Callable[..., str], unique_name: Callable[[str], str], tmp_path: Path
) -> Starts:
    return Starts(broker.bootstrap_servers, unique_name("claim"), new_topic("a"), tmp_path)


class Killed(BaseException):
    """Nothing of the program runs after it."""


@contextmanager
def before_claiming(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> Iterator[None]:
    """When the next start has looked at everything and is about to write its claim."""
    real = claims.hold

    def hold(settings: Settings, record: DomainRecord) -> object:
        monkeypatch.setattr(claims, "hold", real)
        happens()
        return real(settings, record)

    monkeypatch.setattr(claims, "hold", hold)
    yield
    assert claims.hold is real


def kill() -> None:
    raise Killed


def test_of_those_begun_at_the_same_moment_one_holds_the_domain(starts: Starts) -> None:
    names = ["p", "q", "r"]
    together = Barrier(len(names))

    def start(name: str) -> DomainRecord | Error:
        together.wait(30)
        try:
            return starts.start(name)
        except Error as error:
            return error

    with ThreadPoolExecutor(len(names)) as threads:
        results = dict(zip(names, threads.map(start, names), strict=True))
    holders = [name for name, result in results.items() if isinstance(result, DomainRecord)]
    assert len(holders) == 1, results
    holder = starts.record(holders[0])
    for name, result in results.items():
        if name not in holders:
            assert isinstance(result, PreflightFailed)
            assert holder.identity in str(result)
            assert starts.files(name) == [LOCK]
            starts.refused(name, holder)
            assert starts.files(name) == [LOCK]
    assert starts.start(holders[0]) == holder


def test_a_second_one_is_refused_before_it_writes_anything_and_the_first_starts_again(starts: Starts) -> None:
    first = starts.start("first")
    for _ in range(2):
        starts.refused("second", first)
    assert starts.files("second") == [LOCK]
    assert starts.start("first") == first
    assert starts.claims() == [Claim(incarnation=1, owner=first.identity)]
    assert first.claim == 0


def test_one_that_comes_between_the_look_and_the_claim_of_another(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with before_claiming(monkeypatch, lambda: starts.start("quick")), pytest.raises(PreflightFailed, match=ANOTHERS):
        starts.start("slow")
    quick = starts.record("quick")
    assert starts.files("slow") == [LOCK]
    assert [claim and claim.owner == quick.identity for claim in starts.claims()] == [True, False]
    starts.refused("slow", quick)
    assert starts.start("quick") == quick


def test_one_that_was_killed_before_its_claim_loses_the_domain_or_goes_on(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    with before_claiming(monkeypatch, kill), pytest.raises(Killed):
        starts.start("killed")
    killed = starts.record("killed")
    assert killed.claim is None
    with before_claiming(monkeypatch, lambda: starts.start("other")), pytest.raises(PreflightFailed, match=ANOTHERS):
        starts.start("killed")
    starts.refused("killed", starts.record("other"))
    assert starts.record("killed").identity == killed.identity


def test_one_that_was_killed_behind_its_claim_goes_on_with_it(starts: Starts) -> None:
    begun = starts.start("killed")
    path = starts.root / "killed" / RECORD
    content = json.loads(path.read_text(encoding="utf-8"))
    del content["claim"]  # as before the claim's offset was noted, and in a record of an older program
    path.write_text(json.dumps(content), encoding="utf-8")
    starts.refused("other", begun)
    assert starts.start("killed") == begun
    assert len(starts.claims()) == 1


def test_no_other_record_on_control_takes_the_domain(starts: Starts, broker: LocalBroker) -> None:
    junk = [b"", b"claim", b'{"kind":"claim"}', json.dumps({"v": 1, "kind": "claim", "owner": "x"}).encode()]
    later = encode_claim(Claim(incarnation=2, owner="other"))
    with kafka_clients.admin(broker.bootstrap_servers) as admin:
        (wanted,) = [made for made in own_topics(starts.settings("x")) if made.name == starts.control]
        admin.create_topics({wanted.name: {"num_partitions": 1, "configs": dict(wanted.configs)}})
    starts.send(*junk, later)
    holder = starts.start("holder")
    assert holder.claim == len(junk) + 1
    starts.send(encode_claim(Claim(incarnation=1, owner="other")), *junk)
    assert starts.start("holder") == holder
    starts.refused("other", holder)


def test_one_whose_domain_was_taken_over_does_not_start(starts: Starts) -> None:
    holder = starts.start("holder")
    starts.send(encode_claim(Claim(incarnation=3, owner="nobody")))
    assert starts.start("holder") == holder
    starts.send(encode_claim(Claim(incarnation=2, owner="recovered")))
    with pytest.raises(PreflightFailed, match="taken over by the checkpoint with the identity recovered"):
        starts.start("holder")


def test_topics_that_another_made_in_the_same_moment_will_do_where_they_are_alike(
    starts: Starts, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Topics.create

    def create(topics: Topics, wanted: Iterable[NewTopic]) -> None:
        monkeypatch.setattr(Topics, "create", real)
        of_another = own_topics(starts.settings("x", stamps_partitions=3))
        topics.create(made for made in of_another if made.name.endswith((".control", ".stamps")))
        topics.create(wanted)

    monkeypatch.setattr(Topics, "create", create)
    with pytest.raises(PreflightFailed, match=r"1 problem:\n.*stamps has 3 partitions and must have 2"):
        starts.start("first")
    assert starts.files("first") == [LOCK]
    assert starts.claims() == []


def test_a_topic_that_cannot_be_made_is_named(starts: Starts) -> None:
    settings = starts.settings("x", topic_settings={"replication_factor": 7})
    topics = Topics(settings)
    try:
        with pytest.raises(Error, match=r"refused: InvalidReplicationFactorError: .*7"):
            topics.create(own_topics(settings))
    finally:
        topics.close()
