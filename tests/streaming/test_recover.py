"""A checkpoint made anew from a real broker's log, wherever the job that wrote there was killed."""

import random
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from recovery_world import canonical
from spark_job import read_log, records
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.config import Settings, make_settings
from totalorder.errors import Contradiction, PreflightFailed, StateError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import EngineConfig, initial_state, step
from totalorder.sequencer.shards import with_counts
from totalorder.sequencer.snapshot import SnapshotMark, encode_mark, encode_parts
from totalorder.sequencer.state import State, decode_cold, decode_hot
from totalorder.sequencer.wire.codec import WireRecord, encode_stamps
from totalorder.sequencer.wire.control import (
    Claim,
    Renew,
    Retire,
    Skip,
    Subscribe,
    Unsubscribe,
    answer_key,
    claim_in,
    encode_answer,
    encode_claim,
    encode_request,
)
from totalorder.sequencer.wire.cuts import Cut, CutEncoder
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming import claims, past
from totalorder.streaming.checkpoint import RECORD, read_checkpoint, read_seeds
from totalorder.streaming.cut.rows import seed_in
from totalorder.streaming.preflight import own_topics
from totalorder.streaming.record import FIXED, DomainRecord
from totalorder.streaming.recover import Report, recover
from totalorder.streaming.store import LocalStore

pytestmark = pytest.mark.broker
SETTLE_S = 0.05
OWNER = "lost"


class Job:
    """What the lost job did: cuts, answers and stamps on the broker, of events of one topic with keys.

    `cut` publishes events and requests, and the cut that takes them; `stamp` writes what its batch gives, or a part.
    """

    def __init__(self, admin: KafkaAdminClient, producer: KafkaProducer, settings: Settings) -> None:
        self.settings, self.names, self._producer, self._admin = settings, settings.own_topics, producer, admin
        admin.create_topics(
            {
                made.name: {"num_partitions": made.partitions, "configs": dict(made.configs)}
                for made in own_topics(settings)
            }
        )
        admin.wait_for_topics(sorted(self.names.own()))
        topics = [self.names.control, *settings.topics]
        self.ids = {found["name"]: str(found["topic_id"]) for found in admin.describe_topics(topics)}
        self.sources = [Source(topic, self.ids[topic], part) for topic in topics for part in range(self._parts(topic))]
        fixed = {name: getattr(settings, name) for name in FIXED}
        self.config = EngineConfig(identity=OWNER, **fixed)
        self.states = [initial_state(replace(self.config, shard=shard)) for shard in range(settings.shards)]
        self.starts: dict[Source, int] = {}
        """Where the domain begins, if not at 0."""
        self._encoder = CutEncoder()
        self.cuts: list[Cut] = []
        self.rows: list[Row] = []
        self.time_ms = 10**12
        self.request(encode_claim(Claim(incarnation=1, owner=OWNER)))

    def _parts(self, topic: str) -> int:
        return 1 if topic == self.names.control else 2

    def _send(self, topic: str, value: bytes | None, partition: int, **more: object) -> tuple[int, int]:
        """Offset and time."""
        sent = self._producer.send(topic, value=value, partition=partition, **more).get(30)
        return sent.offset, sent.timestamp

    def request(self, value: bytes) -> None:
        offset, timestamp_ms = self._send(self.names.control, value, 0)
        topic_id = self.ids[self.names.control]
        self.rows.append(Row(self.names.control, 0, offset, timestamp_ms, control=value, topic_id=topic_id))

    def subscribe(self, id_: str, generation: int, topics: Sequence[str], lease_s: int = 0) -> None:
        wanted = tuple(sorted(topics))
        request = Subscribe(
            id=id_, generation=generation, nonce="n", topics=wanted, lease_s=lease_s, stamps_ends={0: 1}
        )
        self.request(encode_request(request))

    def publish(self, keys: str) -> None:
        """An event for each character; "-" names no topic."""
        (topic,) = self.settings.topics
        for at, key in enumerate(keys):
            value = b"%d" % at
            name = None if key == "-" else key.encode()
            offset, timestamp_ms = self._send(topic, value, at % 2, key=name, timestamp_ms=self.time_ms - at % 3)
            name_of = "" if key == "-" else key
            self.rows.append(
                Row(topic, at % 2, offset, timestamp_ms, name_of, zlib.crc32(value), topic_id=self.ids[topic])
            )

    def cut(self, keys: str = "", *, number: int | None = None) -> Cut:
        """Publishes events, and the cut that takes all that was published and is in no cut yet."""
        self.publish(keys)
        before = dict(zip(self.cuts[-1].sources, self.cuts[-1].ends.tolist(), strict=True)) if self.cuts else {}
        begins = [before.get(source, self.starts.get(source, 0)) for source in self.sources]
        ends = list(begins)
        for row in self.rows:
            place = self.sources.index(Source(row.kafka_topic, row.topic_id, row.partition))
            ends[place] = max(ends[place], row.offset + 1)
        made = Cut.of(
            domain=self.settings.domain,
            incarnation=1,
            cut=number or len(self.cuts) + 1,
            sources=self.sources,
            begins=begins,
            ends=ends,
            looks=(),
            topic_order=self.settings.topics,
        )
        self._wire(self.names.cuts, self._encoder.encode(made), 0)
        return made

    def _wire(self, topic: str, record: WireRecord, partition: int) -> None:
        self._send(topic, record.value, partition, headers=list(record.headers))

    def stamp(self, cut: Cut, *, answers: slice = slice(None), partitions: Sequence[int] = (0, 1)) -> list[State]:
        """The states after it."""
        self.time_ms += 1000
        batch = Batch.of(self.time_ms, self.rows, cut=cut.cut, topic_order=cut.topic_order)
        results = [step(state, batch, self.starts) for state in self.states]
        written = [answer for _, done in results for answer in done.answers]
        for answer in written[answers]:
            key = answer_key(answer)
            self._send(self.names.grants, encode_answer(answer), 0, key=key, timestamp_ms=self.time_ms)
        for _, done in results:
            for one in done.stamps:
                for part in encode_stamps(one) if one.partition in partitions else ():
                    self._wire(self.names.stamps, part, one.partition)
        return [state for state, _ in results]

    def run(self, keys: str) -> None:
        """A whole batch."""
        cut = self.cut(keys)
        self.states = self.stamp(cut)
        self.over(cut)

    def over(self, cut: Cut) -> None:
        self.cuts.append(cut)
        self.rows.clear()

    def ends_of(self, topic: str) -> dict[TopicPartition, int]:
        """Where a topic ends."""
        with kafka_clients.consumer(self.settings.bootstrap_servers) as consumer:
            partitions = consumer.partitions_for_topic(topic)
            ends: dict[TopicPartition, int] = consumer.end_offsets([TopicPartition(topic, at) for at in partitions])
            return ends

    def tell(self, *, is_last: bool = True, keys: Sequence[str] = (), **more: object) -> SnapshotMark:
        """A snapshot behind the last batch, asked for at rest; with `is_last` nothing was written behind that."""
        for state in self.states:
            for part in encode_parts(state, 500):
                self._wire(self.names.state, part, 0)
        cut, ends = self.cuts[-1], tuple(self.ends_of(self.names.stamps).values())
        told: dict[str, Any] = {
            "domain": self.settings.domain,
            "incarnation": 1,
            "batch": self.states[0].hot.batch,
            "shards": 2,
            "cut": cut.cut,
            "ends": dict(zip(cut.sources, cut.ends.tolist(), strict=True)),
            "starts": {},
            "topic_order": cut.topic_order,
            "stamps_begins": ends,
            "stamps_ends": ends if is_last else None,
            "keys": tuple(keys),
        }
        mark = SnapshotMark(**told | more)
        self._wire(self.names.state, encode_mark(mark), 0)
        return mark

    def expire(self) -> None:
        """Retention removes all that there is on stamps and cuts."""
        for topic in (self.names.stamps, self.names.cuts):
            self._admin.delete_records(self.ends_of(topic))


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


@pytest.fixture
def begun(
    broker: LocalBroker,
    kafka_admin: KafkaAdminClient,
    producer: KafkaProducer,
    new_topic: Callable[..., str],
    unique_name: Callable[[str], str],
    tmp_path: Path,
) -> Job:
    """It has claimed the domain, and planned nothing."""
    settings = make_settings(
        domain=unique_name("recover"),
        bootstrap_servers=broker.bootstrap_servers,
        topics=(new_topic("all", partitions=2, retention_ms="-1"),),  # its events are old
        topic_by="key",
        stamps_partitions=2,
        shards=2,
        keyframe_every=3,
        checkpoint_dir=str(tmp_path / "state"),
    )
    return Job(kafka_admin, producer, settings)


@pytest.fixture
def job(begun: Job) -> Job:
    """Two batches of it are over."""
    begun.subscribe("r", 1, "ab")
    begun.run("abgab-")
    begun.subscribe("s", 1, "bg", lease_s=100)
    begun.request(b"junk")
    begun.run("gab")
    return begun


def recovered(settings: Settings) -> tuple[DomainRecord, list[State]]:
    """The record, and the states that the first batch will have."""
    store = LocalStore(Path(settings.checkpoint_dir))
    record = read_checkpoint(store, "here").record
    assert record is not None
    seeds = [seed_in(data) for data in read_seeds(store, record, "here")]
    planted = [State(hot=decode_hot(seed.hot), cold=decode_cold(seed.cold)) for seed in seeds if seed is not None]
    states = list(map(with_counts, planted))
    assert [(state.cold.config.shard, state.cold.config.identity) for state in states] == [
        (0, record.identity),
        (1, record.identity),
    ]
    return record, states


def assert_recovered(job: Job, states: list[State], end: Cut, report: Report) -> None:
    """What was recovered is `states`, and goes on behind `end`; nothing is missing on the broker any more."""
    record, found = recovered(job.settings)
    expected = []
    for state in states:
        config = replace(state.cold.config, identity=record.identity, incarnation=2)
        expected.append(replace(state, cold=replace(state.cold, config=config)))
    assert canonical(found) == canonical(expected)
    assert record.beginning is not None
    assert (record.beginning.cut, record.incarnation) == (end.cut, report.incarnation) == (end.cut, 2)
    assert record.beginning.flat.tolist() == end.ends.tolist()
    assert claims.known(job.settings)[2].owner == record.identity
    log = read_log(job.settings)
    last = max(log.batches())
    assert last == report.batch == states[0].hot.batch
    assert set(log.batches()[last]) == {0, 1}
    assert max(answer.g for answer in log.answers) == states[0].hot.control_g


def test_of_whole_batches(job: Job) -> None:
    report = recover(job.settings, settle_s=SETTLE_S)
    assert_recovered(job, job.states, job.cuts[-1], report)
    assert (report.topics, report.subscriptions, report.missing_stamps) == (3, 2, 0)


def test_of_a_cut_of_which_nothing_is_written_it_is_planned_anew(job: Job) -> None:
    job.subscribe("t", 1, "a")
    job.cut("abg")
    assert_recovered(job, job.states, job.cuts[-1], recover(job.settings, settle_s=SETTLE_S))


@pytest.mark.parametrize(
    ("answers", "partitions"),
    [
        (slice(None), [1]),  # some of the stamps
        (slice(1), [1]),  # and some of the answers
        (slice(0), [0, 1]),  # no answers, which the job sends first, but need not be there first
        (slice(2), [0, 1]),
        (slice(2), []),  # answers alone, which do not tell the batch's time
    ],
)
def test_the_last_batch_is_completed(job: Job, answers: slice, partitions: list[int]) -> None:
    job.subscribe("t", 1, "a")
    job.request(encode_request(Renew(id="s", generation=1, nonce="n")))
    job.request(encode_request(Unsubscribe(id="r", generation=2, nonce="n")))
    cut = job.cut("ab-ggab")
    expected = job.stamp(cut, answers=answers, partitions=partitions)
    report = recover(job.settings, settle_s=SETTLE_S)
    assert (report.missing_answers, report.missing_stamps) == (3 - len(range(*answers.indices(3))), 2 - len(partitions))
    assert_recovered(job, expected, cut, report)


def test_a_check_tells_and_writes_nothing_and_what_was_recovered_can_be_lost_again(job: Job) -> None:
    cut = job.cut("ab-ggab")
    expected = job.stamp(cut, partitions=[1])
    before = [len(list(records(job.settings.bootstrap_servers, topic))) for topic in sorted(job.names.own())]
    looked = recover(job.settings, check=True)
    assert not Path(job.settings.checkpoint_dir).exists()
    after = [len(list(records(job.settings.bootstrap_servers, topic))) for topic in sorted(job.names.own())]
    assert before == after
    report = recover(job.settings, settle_s=SETTLE_S)
    assert report == looked
    assert_recovered(job, expected, cut, report)
    again = recover(job.settings.model_copy(update={"checkpoint_dir": f"{job.settings.checkpoint_dir}-2"}), settle_s=0)
    assert again == replace(report, incarnation=3, missing_answers=0, missing_stamps=0)


@pytest.mark.parametrize("check", [True, False])
def test_settings_that_leave_out_what_the_domain_reads_are_refused(job: Job, check: bool) -> None:
    """The job would refuse the checkpoint that was made with them."""
    job.run("ab")
    (topic,) = job.settings.topics
    others = job.settings.model_copy(update={"topics": ("other", "another")})
    with pytest.raises(StateError, match=f"reads {topic}, which the settings leave out.*--topics"):
        recover(others, check=check, settle_s=SETTLE_S)
    assert not (Path(job.settings.checkpoint_dir) / RECORD).exists()
    more = job.settings.model_copy(update={"topics": (topic, "another")})
    assert recover(more, check=check, settle_s=SETTLE_S).topics == 3


def test_topics_that_have_left_are_not_read_again(job: Job) -> None:
    """Of a topic that was retired, and of one that the last cut has no longer."""
    (topic,) = job.settings.topics
    source = job.sources[-1]
    job.request(encode_request(Retire(id="x", nonce="n", topic=topic, topic_id="former", seen={0: 3})))
    job.run("a")
    del job.sources[1:]
    job.request(b"junk")
    cut = job.cut()
    job.states = job.stamp(cut)
    job.over(cut)
    recover(job.settings, settle_s=SETTLE_S)
    record, (state, _) = recovered(job.settings)
    assert [(found.name, found.topic_id, found.state) for found in record.topics] == [
        (topic, source.topic_id, "gone"),
        (topic, "former", "retired"),
    ]
    assert record.beginning is not None
    assert list(record.beginning.ends) == [0]
    assert len(state.cold.sources) == 2


def test_what_the_last_batch_passed_over_is_not_read(job: Job, kafka_admin: KafkaAdminClient) -> None:
    """Kafka has it no longer; the batch is on one stamps partition, and has nothing but the requests that say so."""
    (topic,) = job.settings.topics
    job.publish("ab")
    lost = list(job.rows)
    for row in lost:
        where = {"topic": topic, "topic_id": row.topic_id, "partition": row.partition}
        job.request(encode_request(Skip(id="x", nonce="n", **where, begin=row.offset, end=row.offset + 1)))  # type: ignore[arg-type]
    cut = job.cut()
    kafka_admin.delete_records({TopicPartition(topic, row.partition): row.offset + 1 for row in lost})
    job.rows[:] = [row for row in job.rows if row not in lost]
    expected = job.stamp(cut, partitions=[1])
    assert_recovered(job, expected, cut, recover(job.settings, settle_s=SETTLE_S))


def test_of_two_contents_of_a_cut_the_one_that_ran_counts(job: Job) -> None:
    """A process died behind its cut; the next one planned anew. Then a loser's cut came last."""
    job.cut("ab")
    ran = job.cut("ga")
    expected = job.stamp(ran, partitions=[0])
    job.publish("bbb")
    job.cut(number=ran.cut)
    assert_recovered(job, expected, ran, recover(job.settings, settle_s=SETTLE_S))


def test_what_is_not_its_events_any_more_is_refused(job: Job) -> None:
    cut = job.cut("abg")
    job.rows[:] = [row._replace(crc=5) for row in job.rows]
    job.stamp(cut, partitions=[0])
    with pytest.raises(StateError, match="batch 3 was begun, and what is there of it does not come out again"):
        recover(job.settings, settle_s=SETTLE_S)
    assert not (Path(job.settings.checkpoint_dir) / RECORD).exists()


def test_behind_a_snapshot_the_past_is_not_needed(job: Job) -> None:
    job.expire()
    with pytest.raises(StateError, match="has no cuts"):
        recover(job.settings, check=True)
    job.tell(is_last=False)
    job.run("bag")
    report = recover(job.settings, settle_s=SETTLE_S)
    assert_recovered(job, job.states, job.cuts[-1], report)
    assert report.snapshot == report.batch - 1


def test_from_a_snapshot_the_last_batch_is_completed(job: Job) -> None:
    job.tell()
    job.expire()
    job.subscribe("t", 1, "a")
    cut = job.cut("ab-ggab")
    expected = job.stamp(cut, answers=slice(0), partitions=[1])
    report = recover(job.settings, settle_s=SETTLE_S)
    assert (report.missing_answers, report.missing_stamps) == (1, 1)
    assert_recovered(job, expected, cut, report)


def test_a_domain_that_slept_longer_than_stamps_are_kept_is_recovered_from_its_snapshot(job: Job) -> None:
    job.tell()
    job.expire()
    assert not list(records(job.settings.bootstrap_servers, job.names.cuts))
    report = recover(job.settings, settle_s=SETTLE_S)
    assert (report.snapshot, report.batch, report.missing_stamps) == (2, 2, 0)
    record, found = recovered(job.settings)
    assert [state.hot.g for state in found] == [state.hot.g for state in job.states]
    assert record.beginning is not None
    assert record.beginning.flat.tolist() == job.cuts[-1].ends.tolist()
    assert record.orders == (job.settings.topics,)
    assert [topic.name for topic in record.read_topics] == list(job.settings.topics)


@pytest.mark.parametrize("is_last", [True, False])
def test_stamps_that_are_gone_behind_a_snapshot_are_missed(job: Job, is_last: bool) -> None:
    """By their offsets alone, since nothing else is there."""
    job.tell(is_last=is_last)
    job.run("b")
    job.expire()
    with pytest.raises(StateError, match=r"begins at offset \d+ by now, and is needed from offset \d+ on"):
        recover(job.settings, check=True)


def test_what_a_replaced_job_wrote_late_behind_a_snapshot_takes_nothing_away(job: Job) -> None:
    job.tell()
    for record in list(records(job.settings.bootstrap_servers, job.names.stamps)):
        if dict(record.headers)["batch"] == b"1":
            job._send(job.names.stamps, record.value, record.partition, headers=record.headers)
    report = recover(job.settings, settle_s=SETTLE_S)
    assert (report.snapshot, report.batch, report.missing_stamps) == (2, 2, 0)
    assert_recovered(job, job.states, job.cuts[-1], report)


def test_an_older_snapshot_stands_in_for_one_that_is_of_no_use(job: Job) -> None:
    job.tell(is_last=False)
    job.expire()
    job.run("bag")
    told: list[str] = []
    states = job.states
    job.states = [replace(one, hot=replace(one.hot, g=one.hot.g + 1)) for one in states]
    job.tell()
    forged = [dict.fromkeys(one.hot.digests, "f" * 32) for one in states]
    job.states = [replace(one, hot=replace(one.hot, digests=those)) for one, those in zip(states, forged, strict=True)]
    job.tell()
    job._send(job.names.state, b"{}", 0, headers=[("kind", b"mark"), ("version", b"1")])
    job.states = states
    report = recover(job.settings, settle_s=SETTLE_S, say=told.append)
    assert report.snapshot == 2
    assert len([text for text in told if "the snapshot of batch 3 is left out" in text]) == 2
    assert_recovered(job, states, job.cuts[-1], report)


def test_of_marks_the_newest_are_held_however_many_there_are(job: Job) -> None:
    """Who may write there must not fill a recovery's memory with marks."""
    told = [job.tell(keys=[str(number)]) for number in range(5)]
    assert past.marks(job.settings, 3) == told[:1:-1]


def test_a_snapshot_that_ends_elsewhere_than_its_cut_is_refused(job: Job) -> None:
    ends = dict(zip(job.cuts[-1].sources, job.cuts[-1].ends.tolist(), strict=True))
    job.tell(ends={source: end + (source.partition == 1) for source, end in ends.items()})
    with pytest.raises(StateError, match="ends otherwise on Kafka than its snapshot says"):
        recover(job.settings, check=True)


def test_a_domain_of_before_snapshots_is_recovered_from_its_first_batch(job: Job) -> None:
    job._admin.delete_topics([job.names.state])
    wait_until(lambda: job.names.state not in job._admin.list_topics(), "the topic is gone")
    report = recover(job.settings, settle_s=SETTLE_S)
    assert report.snapshot == 0
    assert_recovered(job, job.states, job.cuts[-1], report)


def test_where_the_domain_began_is_in_its_first_cut_whatever_came_behind_it(
    begun: Job, kafka_admin: KafkaAdminClient
) -> None:
    """Another process planned that cut first, and died; partitions that come later begin at 0."""
    begun.publish("abgab")
    for row in begun.rows:
        if row.kafka_topic != begun.names.control:
            begun.starts[Source(row.kafka_topic, row.topic_id, row.partition)] = row.offset + 1
    begun.rows = [row for row in begun.rows if row.kafka_topic == begun.names.control]
    begun.cut("a")  # nobody runs it
    begun.subscribe("r", 1, "ab")
    begun.run("ab")
    (topic,) = begun.settings.topics
    kafka_admin.create_partitions({topic: 3})
    begun.sources.append(Source(topic, begun.ids[topic], 2))
    begun.run("gab")
    report = recover(begun.settings, settle_s=SETTLE_S)
    assert report.snapshot == 0
    assert sorted(begun.starts.values()) == [2, 3]
    assert recovered(begun.settings)[0].starts == begun.starts
    assert_recovered(begun, begun.states, begun.cuts[-1], report)


def test_without_its_first_cut_nobody_knows_where_the_domain_began(job: Job, kafka_admin: KafkaAdminClient) -> None:
    job._encoder = CutEncoder()  # a process that begins writes a key cut
    job.run("ab")
    kafka_admin.delete_records({TopicPartition(job.names.cuts, 0): 2})
    with pytest.raises(StateError, match="does not begin with cut 1 any more"):
        recover(job.settings, settle_s=SETTLE_S)


def test_stamps_that_are_gone_as_a_whole_are_missed_where_cuts_and_grants_do_not_tell(
    begun: Job, kafka_admin: KafkaAdminClient
) -> None:
    """Nobody has subscribed, and cuts have outlived stamps: that is no domain of which nothing was stamped yet."""
    begun.run("ab")
    begun.run("ba")
    kafka_admin.delete_records({at: end for at, end in begun.ends_of(begun.names.stamps).items() if at.partition == 1})
    with pytest.raises(StateError, match=r"stamps\[1\] begins at offset \d+ by now"):
        recover(begun.settings, settle_s=SETTLE_S)
    kafka_admin.delete_records(begun.ends_of(begun.names.stamps))
    with pytest.raises(StateError, match=r"stamps\[0\] begins at offset \d+ by now"):
        recover(begun.settings, settle_s=SETTLE_S)


def test_a_claim_of_which_nothing_came_is_no_past(begun: Job) -> None:
    with pytest.raises(StateError, match=r"has no cuts: nothing of domain .* was ever stamped"):
        recover(begun.settings, check=True)


def test_a_directory_that_holds_a_checkpoint_and_other_settings_are_refused(job: Job) -> None:
    job.run("abgabgabgabgabg")
    for name, value in (("min_subscriptions", 2), ("keyframe_every", 5), ("topic_by", "topic")):
        with pytest.raises(StateError, match=name):
            recover(job.settings.model_copy(update={name: value}), check=True)
    with pytest.raises(PreflightFailed, match="has 2 partitions and must have 3"):
        recover(job.settings.model_copy(update={"stamps_partitions": 3}), check=True)
    assert sum(claim_in(found.value) is not None for found in records(
        job.settings.bootstrap_servers, job.names.control
    )) == 1  # fmt: skip
    recover(job.settings, settle_s=SETTLE_S)
    with pytest.raises(PreflightFailed, match="holds a checkpoint"):
        recover(job.settings, settle_s=SETTLE_S)


@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_checkpoint_behind_a_uri_is_made_by_spark(job: Job, tmp_path: Path) -> None:
    def recovering(uri: str) -> subprocess.CompletedProcess[str]:
        settings = job.settings
        command = [str(Path(sys.executable).with_name("totalorder")), "recover", "--checkpoint-dir", uri]
        command += ["--domain", settings.domain, "--bootstrap-servers", settings.bootstrap_servers]
        command += ["--topics", settings.topics[0], "--topic-by", "key", "--keyframe-every", "3", "--shards", "2"]
        command += ["--stamps-partitions", "2", "--master", "local[1]"]
        return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)

    refused = recovering("nowhere://bucket/state")
    assert refused.returncode == 2, refused.stderr
    assert "checkpoint_dir nowhere://bucket/state is nothing that Spark reaches: No FileSystem" in refused.stderr
    assert "Traceback" not in refused.stderr
    made = recovering((tmp_path / "state").as_uri())
    assert made.returncode == 0, made.stderr
    assert f"Recovered into {(tmp_path / 'state').as_uri()}, as incarnation 2" in made.stdout
    _, states = recovered(job.settings)
    assert [state.hot.g for state in states] == [state.hot.g for state in job.states]
    again = recovering((tmp_path / "state").as_uri())
    assert again.returncode == 1
    assert "holds a checkpoint" in again.stderr


def test_a_second_writer_is_no_past(job: Job) -> None:
    job.time_ms += 1
    cut = job.cut("ab")
    job.stamp(cut)
    job.stamp(cut, partitions=[0])
    with pytest.raises(Contradiction, match="twice"):
        recover(job.settings, check=True)


def test_a_seed_that_is_damaged_is_refused(job: Job) -> None:
    recover(job.settings, settle_s=SETTLE_S)
    seed = Path(job.settings.checkpoint_dir) / "seed-1"
    text = seed.read_text()
    for damaged in (text[:-4], "?" + text[1:], random.Random(1).choice("AB") + text[1:] + "AAAA"):
        seed.write_text(damaged)
        with pytest.raises(StateError, match="seed-1 is damaged"):
            recovered(job.settings)
    seed.unlink()
    with pytest.raises(StateError, match="seed-1 is missing"):
        recovered(job.settings)
