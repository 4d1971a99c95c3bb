"""A whole domain as a commit left it: Kafka's data, the checkpoint and the lineage tables, in one archive.

format_vectors.py has examples of each format; this is what they come to together, on the day of an upgrade. Stamps,
positions and checkpoint name Kafka topics by their ids, which the broker gives and nobody chooses: so records are kept
as the broker's own files. `keep` lives the story once, tests/integration/test_kept_domains.py goes on with it.
"""

import fnmatch
import json
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kafka import KafkaProducer
from spark_job import read_log
from spark_shared import settings_for, shared_session
from waiting import wait_until

import totalorder as to
from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings
from totalorder.sinks.runner import Lineage
from totalorder.sinks.settings import LineageSettings
from totalorder.streaming.checkpoint import RECORD
from totalorder.streaming.runner import Sequencer

ARCHIVE = "domain.tar.xz"
DOMAIN, TOPICS = "shop", ("orders", "payments")
BILLING, AUDIT = "billing", "audit"
WAIT_S = 200.0
_LEFT_OUT = (
    *("broker.log*", "server.properties", "in-use.lock", "lock"),  # made at each start, and they know the machine
    ".*.crc",  # Hadoop's check sums: what has none is read without
)


@dataclass(frozen=True, kw_only=True)
class KeptDomain:
    """A domain that nobody runs, in a folder."""

    root: Path

    @property
    def broker(self) -> Path:
        """The broker's data."""
        return self.root / "broker"

    @property
    def checkpoint(self) -> Path:
        """The job's."""
        return self.root / "checkpoint"

    @property
    def tables(self) -> Path:
        """The root of the lineage tables."""
        return self.root / "tables"

    def settings(self, bootstrap_servers: str) -> Settings:
        """The job's settings; those that the checkpoint fixed are as they were."""
        record = self.checkpoint / RECORD
        fixed = json.loads(record.read_text(encoding="utf-8"))["fixed"] if record.exists() else {}
        given = {"topics": TOPICS, "topic_settings": {"stamps_retention_ms": -1}}
        more = {name: value for name, value in fixed.items() if name != "domain"} | given
        return settings_for(DOMAIN, bootstrap_servers, self.checkpoint, **more)

    def lineage(self, bootstrap_servers: str) -> LineageSettings:
        """The lineage job's settings."""
        return LineageSettings(
            tables=str(self.tables), domain=DOMAIN, bootstrap_servers=bootstrap_servers, interval_s=0
        )

    def story(self) -> dict[str, Any]:
        """`g`: the last position of π. `owed`: by id, what comes next, each as `place` has it."""
        found: dict[str, Any] = json.loads((self.root / "story.json").read_text(encoding="utf-8"))
        return found


def subscriber(id_: str, topics: Sequence[str], bootstrap_servers: str) -> to.Subscriber:
    """One whose subscription never expires: years lie between two starts."""
    return to.Subscriber(
        topics, id=id_, domain=DOMAIN, bootstrap_servers=bootstrap_servers, lease_s=0, start_timeout_s=WAIT_S
    )


def take(of: to.Subscriber, count: int) -> list[to.Event]:
    """The next events, so many."""
    found: list[to.Event] = []
    while len(found) < count:
        event = of.poll(WAIT_S)
        assert event is not None, f"{len(found)} of {count} events came"
        found.append(event)
    return found


def place(event: to.Event) -> list[Any]:
    """As `story` has it."""
    return [event.kafka_topic, event.partition, event.offset, event.n, event.g, event.tag]


def publish(producer: KafkaProducer, numbers: Iterable[int]) -> None:
    """Events on both partitions of both topics, with keys and headers; the value is the number, of each fifth null."""
    for number in numbers:
        producer.send(
            TOPICS[number % 2],
            key=b"k%d" % number,
            value=b"%d" % number if number % 5 else None,
            headers=[("kind", b"kept"), ("odd", bytes([number, 255]))],
            partition=number % 4 // 2,
        )
    producer.flush(30)


def catch_up(settings: LineageSettings, spark: Any) -> None:
    """Writes to the tables what Kafka has."""
    with Lineage(settings, until_caught_up=True, spark=spark) as lineage:
        lineage.wait()
        lineage.check_caught_up()


def unpacked(archive: Path, root: Path) -> KeptDomain:
    """A copy of a kept domain."""
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="data")
    return KeptDomain(root=root)


def keep(archive: Path) -> None:
    """Lives the story with this commit, and keeps what it leaves."""
    with tempfile.TemporaryDirectory(prefix="totalorder-kept-") as folder:
        _live(KeptDomain(root=Path(folder)))
        with tarfile.open(archive, "w:xz", preset=9) as packed:
            packed.add(folder, ".", filter=_kept)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """An entry of the archive without its owner, or None for what is left out."""
    name = Path(entry.name).name
    if any(fnmatch.fnmatchcase(name, pattern) for pattern in _LEFT_OUT):
        return None
    return entry.replace(uid=0, gid=0, uname="", gname="", deep=False)


def _live(domain: KeptDomain) -> None:
    """Two subscribers whose sets differ: one does not acknowledge all that it got, the other one changes its set. What
    comes behind that neither has got, and lineage has all.
    """
    with LocalBroker(data_dir=domain.broker) as broker:
        servers = broker.bootstrap_servers
        with kafka_clients.admin(servers) as admin:
            admin.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "-1"}} for name in TOPICS})
        settings = domain.settings(servers)
        with (
            Sequencer(settings, spark=shared_session()) as sequencer,
            kafka_clients.producer(servers) as producer,
            subscriber(BILLING, TOPICS, servers) as billing,
            subscriber(AUDIT, TOPICS[1:], servers) as audit,
        ):
            publish(producer, range(6))
            _abort(servers)  # leaves a gap in the offsets
            publish(producer, range(6, 12))
            mine, theirs = take(billing, 12), take(audit, 6)
            billing.ack(mine[6])
            audit.ack(theirs[-1])
            audit.subscribe(TOPICS)
            publish(producer, range(12, 18))
            wait_until(lambda: sequencer.processed.events == 18, "all is stamped", bound_s=WAIT_S)
        catch_up(domain.lineage(servers), shared_session())
        later: list[list[Any]] = sorted(
            ([*source, n, g, None] for source, (_, n, g) in read_log(settings).events().items() if g > mine[-1].g),
            key=lambda event: event[4],
        )
        owed = {BILLING: [*([*place(event)[:-1], "redelivered"] for event in mine[7:]), *later], AUDIT: later}
        story = {"g": later[-1][4], "owed": owed}
    (domain.root / "story.json").write_text(json.dumps(story, indent=1) + "\n", encoding="utf-8")


def _abort(servers: str) -> None:
    """An event that was never published, and the marker that says so."""
    publisher = Producer({"bootstrap.servers": servers, "transactional.id": DOMAIN})
    publisher.init_transactions(60)
    publisher.begin_transaction()
    publisher.produce(TOPICS[0], value=b"never", partition=0)
    publisher.flush(60)
    publisher.abort_transaction(60)
