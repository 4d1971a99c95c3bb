"""A domain that a former commit left goes on under this one: job, subscribers, recovery, lineage. Or it is refused by
the version of what it holds. `make vectors ARGS="--keep NAME"` keeps one more.
"""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from format_vectors import KEPT, READ_TOO, VERSIONS, read
from kept_domain import (
    ARCHIVE,
    AUDIT,
    BILLING,
    TOPICS,
    KeptDomain,
    catch_up,
    place,
    publish,
    subscriber,
    take,
    unpacked,
)
from pyspark.sql import SparkSession
from spark_job import DomainLog, read_log

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import Error, StateError
from totalorder.sinks.audit import Auditor, choose
from totalorder.streaming.recover import recover
from totalorder.streaming.runner import Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.timeout(900)]
ARCHIVES = {path.parent.name: path for path in sorted(KEPT.glob(f"*/{ARCHIVE}"))}


def is_read(folder: Path) -> bool:
    """Whether all of its formats are still read by this program; some there were none of yet."""
    forms = read(folder)
    return all(
        forms[form]["version"] in {VERSIONS[form], *READ_TOO.get(form, ())} for form in forms.keys() & VERSIONS.keys()
    )


IS_READ = {name: is_read(path.parent) for name, path in ARCHIVES.items()}


*FORMER, NEWEST = ARCHIVES


@pytest.mark.parametrize("name", [*(pytest.param(name, marks=pytest.mark.long) for name in FORMER), NEWEST])
def test_it_goes_on_or_is_refused_by_a_version(name: str, spark: SparkSession, tmp_path: Path) -> None:
    domain = unpacked(ARCHIVES[name], tmp_path)
    with LocalBroker(data_dir=domain.broker) as broker:
        if IS_READ[name]:
            recovers(domain, broker.bootstrap_servers)
            goes_on(domain, broker.bootstrap_servers, spark)
            return
        with pytest.raises(Error, match="version"):
            goes_on(domain, broker.bootstrap_servers, spark)


def recovers(domain: KeptDomain, servers: str) -> None:
    """The engine gives, from records and cuts, the stamps that are there."""
    anew = domain.settings(servers).model_copy(update={"checkpoint_dir": str(domain.root / "anew")})
    report = recover(anew, check=True, settle_s=0.1)
    assert (report.incarnation, report.g, report.topics, report.subscriptions) == (2, domain.story()["g"], 2, 2)
    assert (report.missing_answers, report.missing_stamps) == (0, 0)


def goes_on(domain: KeptDomain, servers: str, spark: SparkSession) -> None:
    owed, settings = domain.story()["owed"], domain.settings(servers)
    before = spark.read.format("delta").load(str(domain.tables / "events")).count()
    with (
        Sequencer(settings, spark=spark),
        subscriber(BILLING, TOPICS, servers) as billing,
        subscriber(AUDIT, TOPICS, servers) as audit,
        kafka_clients.producer(servers) as producer,
    ):
        publish(producer, range(18, 24))
        delivered = {id_: take(one, len(owed[id_]) + 6) for id_, one in ((BILLING, billing), (AUDIT, audit))}
        billing.ack(delivered[BILLING][-1])
        audit.ack(delivered[AUDIT][-1])
    for id_, events in delivered.items():
        assert [place(event) for event in events[:-6]] == owed[id_]
        assert sorted(event.key or b"" for event in events[-6:]) == [b"k%d" % number for number in range(18, 24)]
        assert all(
            event.headers == (("kind", b"kept"), ("odd", bytes([int(event.key[1:]), 255])))
            for event in events
            if event.key
        )
    assert [place(event) for event in delivered[BILLING][-6:]] == [place(event) for event in delivered[AUDIT][-6:]]
    assert_one_chain(read_log(settings))
    catch_up(domain.lineage(servers), spark)
    assert before == 18
    assert spark.read.format("delta").load(str(domain.tables / "events")).count() == 24
    assert_audits_hold(domain.tables, spark)


def assert_one_chain(log: DomainLog) -> None:
    """Batch follows batch, and digest digest, in each partition: across the day of the upgrade too."""
    batches = log.batches()
    assert list(batches) == list(range(1, len(batches) + 1))
    for one, other in pairwise(batches.values()):
        assert {part: each.digest for part, each in one.items()} == {
            part: each.previous_digest for part, each in other.items()
        }


def assert_audits_hold(tables: Path, spark: SparkSession) -> None:
    auditor = Auditor(spark.newSession(), str(tables))
    judged = [auditor.ask(audit) for audit in choose(())]
    assert {result.audit.name: result.rows for result in judged if result.verdict == "violated"} == {}
    assert sum(result.verdict == "holds" for result in judged) > 12


# --- what is refused --------------------------------------------------------------------------------------------------


def newer_record(checkpoint: Path) -> None:
    """`domain.json` of another version."""
    path = checkpoint / "domain.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1_000}))


def newer_ends(checkpoint: Path) -> None:
    """Spark's log, of which the third line is ours."""
    offsets = checkpoint / "query" / "offsets"
    path = offsets / str(max(int(one.name) for one in offsets.iterdir() if one.name.isdecimal()))
    head, metadata, ours, *rest = path.read_text().splitlines()
    ours = json.dumps(json.loads(ours) | {"version": 1_000})
    path.write_text("\n".join([head, metadata, ours, *rest]))


@pytest.mark.parametrize("raise_version", [newer_record, newer_ends])
def test_another_version_stops_the_job_before_it_stamps(raise_version: Callable[[Path], None], tmp_path: Path) -> None:
    (name, *_) = [name for name in ARCHIVES if IS_READ[name]]
    domain = unpacked(ARCHIVES[name], tmp_path)
    raise_version(domain.checkpoint)
    with LocalBroker(data_dir=domain.broker) as broker:
        settings = domain.settings(broker.bootstrap_servers)
        with kafka_clients.producer(broker.bootstrap_servers) as producer:
            publish(producer, range(18, 24))
        with pytest.raises(StateError, match=r"version 1000; this program reads"):
            Sequencer(settings).start()
        assert len(read_log(settings).events()) == 18
