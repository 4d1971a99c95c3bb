"""Runs the job: lock, preflight, session, query, and the watch over topics while it runs."""

import contextlib
import math
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.config import Settings
from totalorder.control_keys import read_signatures
from totalorder.errors import Error, PreflightFailed, StateError
from totalorder.librdkafka_settings import consumer_settings
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming import claims, preflight
from totalorder.streaming.batch_log import BatchLog
from totalorder.streaming.checkpoint import (
    QUERY,
    RECORD,
    CheckpointFacts,
    CheckpointLock,
    read_checkpoint,
    read_seeds,
    settle,
)
from totalorder.streaming.claims import FirstClaim
from totalorder.streaming.failures import error_from, explained, is_passing, say_trace, text_of, words_of
from totalorder.streaming.handover import Handover
from totalorder.streaming.patience import BrokerWatch, Patience, borne
from totalorder.streaming.preflight import Facts, TopicFacts
from totalorder.streaming.progress import ProgressReader
from totalorder.streaming.query import start_query
from totalorder.streaming.record import FIRST_INCARNATION, DomainRecord, changed
from totalorder.streaming.session import is_local, is_submitted, prepare, start_session, stop_session
from totalorder.streaming.snapshots import Snapshots
from totalorder.streaming.standstill import Standstill
from totalorder.streaming.store import HadoopStore, LocalStore, Store
from totalorder.streaming.topics import Topics
from totalorder.streaming.warmup import await_worker
from totalorder.streaming.watchdog import Status, Watchdog, ask
from totalorder.streaming.written import Tail, Written, read_written

READY = "sequencer ready"
"""Event of the log line that says that the first batch may come."""
_MOST_NAMES = 20
_ALIVE_POLL_S = 0.1
_READY_POLL_S = 0.02
_BATCH_GRACE_S = 20.0
_READY_TIMEOUT_S = 120.0
_REVIVALS_S = 300.0
"""How long a query that failed by what may pass is started again and again, without a batch between."""
_REVIVAL_PAUSE_S = 1.0
_AWAY_POLL_S = 2.0
_FORMER_DRIVER_S = 60.0
"""How long the Java of a driver that was killed may take to be gone."""


@dataclass(frozen=True, kw_only=True)
class Processed:
    """What this run has done so far; `g` is the last position of π."""

    batches: int = 0
    events: int = 0
    controls: int = 0
    unroutable: int = 0
    unsigned: int = 0
    g: int = 0


class Sequencer:
    """One run of the job. `start`, then `wait` or `stop`; also a context manager.

    With `spark` given, that session is used and left running; it must have been started with `session.static_conf`.
    `on_abandoned` is called when the job has failed and a thread of this process will not return from a call to Spark:
    a process that has nothing else to do should end then.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        spark: SparkSession | None = None,
        on_abandoned: Callable[[Error], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.processed = Processed()
        self._given_spark = spark
        self._spark = spark
        self._log = structlog.get_logger().bind(domain=settings.domain)
        self._stopping = threading.Event()
        self._done = threading.Event()
        self._failure: Error | None = None
        self._lock: CheckpointLock | None = None
        self._topics: Topics | None = None
        self._signatures: Signatures | None = None
        self._handover: Handover | None = None
        self._query: StreamingQuery | None = None
        self._progress: ProgressReader | None = None
        self._watcher: threading.Thread | None = None
        self._refused: set[str] = set()
        self._compacted: set[str] = set()
        self._ready = False
        self._revivals = Patience(_REVIVALS_S, apart_s=_REVIVALS_S)
        self._broker = BrokerWatch(self._log)
        self._standstill = Standstill(self._log, settings.standstill_timeout_s)
        owns_java = spark is None and not is_submitted()
        self._watchdog = Watchdog(self, self._standstill, self._log, owns_java=owns_java)
        self._on_abandoned = on_abandoned
        self._step: str | None = None
        self._newest: int | None = None
        self._batches = BatchLog(self._log, verbose=settings.verbose, stood_s=self._standstill.take_longest_s)

    def __enter__(self) -> "Sequencer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts, and returns when the first batch may come. Raises PreflightFailed, BrokerUnavailable, StateError.

        Where Spark takes minutes for that it returns before; `sequencer ready` is logged when it is so.
        """
        self._watchdog.start()
        try:
            self._prepare()
            self._begin_query()
            while not self._is_running():
                self._begin_query()
        except BaseException as error:
            # Before Java is gone, which has to be asked for the reason.
            told = self._told(error) if isinstance(error, Exception) else error
            self._release()
            self._done.set()
            if not self._stopping.is_set() or not isinstance(told, Error) or told is self._watchdog.verdict:
                raise told from (error.__cause__ if told is error else error)
            self._log.warning("stopped before it was ready", reason=told.what)
            return
        self._watcher = threading.Thread(target=self._watch, name="totalorder-watch", daemon=True)
        self._watcher.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits until the job has ended; False when it has not within `timeout_s`. Raises what made it fail."""
        ended = self._done.wait(timeout_s)
        if ended and self._failure is not None:
            raise self._failure
        return ended

    def stop(self) -> None:
        """Stops after the current batch; one that takes too long is broken off, and runs again at the next start."""
        self._stopping.set()
        if self._watcher is not None:
            self._done.wait()

    @property
    def broker_is_away(self) -> bool:
        """Whether the broker did not answer when it was asked last; it is borne for a while."""
        return self._broker.is_away

    @property
    def stands_still_s(self) -> float:
        """For how many seconds nothing has moved, once that was told; 0 while all is well. See `standstill`."""
        return self._standstill.lasts_s

    def request_stop(self) -> None:
        """Asks for a stop without waiting for it; for signal handlers."""
        self._stopping.set()

    # --- start --------------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        settings = self.settings
        # What these refuse is told before Spark starts.
        consumer_settings(settings.bootstrap_servers, settings.kafka)
        self._signatures = read_signatures(settings.control_key_file, settings.domain)
        self._snapshots = Snapshots(settings, self._log, keys=self._signatures.prints if self._signatures else ())
        if self._spark is None:
            prepare(settings.master)
        if settings.checkpoint_is_local:
            self._lock = CheckpointLock(Path(settings.checkpoint_dir), _FORMER_DRIVER_S)
        else:
            self._log.warning(
                "no lock", checkpoint=settings.checkpoint_dir, reason="run one sequencer on a URI, no more"
            )
            self._session()
        self._topics = Topics(settings)
        self._store = self._make_store()
        self._record, self._tails = borne(
            partial(self._preflight, self._topics), settings.broker_timeout_s, self._stopping
        )
        settle(self._store, self._query_checkpoint())

    def _make_store(self) -> Store:
        if self.settings.checkpoint_is_local:
            return LocalStore(Path(self.settings.checkpoint_dir))
        return HadoopStore(self._session(), self.settings.checkpoint_dir)

    @property
    def _disks(self) -> tuple[str, ...]:
        """Where this machine's part of the job writes."""
        settings = self.settings
        temporary = settings.spark.get("spark.local.dir", tempfile.gettempdir()).split(",")
        return (settings.checkpoint_dir, *temporary) if settings.checkpoint_is_local else tuple(temporary)

    def _session(self) -> SparkSession:
        if self._spark is None:
            fd = self._lock.fd if self._lock else None
            with self._within("the start of Spark"):
                self._spark = start_session(self.settings, inherited_fd=fd, stopping=self._stopping)
        return self._spark

    def _preflight(self, topics: Topics) -> tuple[DomainRecord, Mapping[int, Tail]]:
        """Vets, creates the domain's topics and writes its record; returns it, and the ends of stamps."""
        settings = self.settings
        checkpoint = read_checkpoint(self._store, settings.checkpoint_dir)
        record, facts = checkpoint.record, self._vetted_facts(topics, checkpoint)
        if record is None:
            facts = self._with_own_topics(topics, facts)
        fit, unfit = preflight.fit(settings, facts)
        self._say_unfit({name: (facts.topics[name].topic_id, problems) for name, problems in unfit.items()})
        if record is None:
            record = self._begin_domain(facts)
        else:
            record = self._claimed(record, facts)
            topics.create(own for own in preflight.missing_own(settings, facts) if own.name not in record.topic_ids)
            record = self._without_gone(record, topics, {name: topic.topic_id for name, topic in facts.topics.items()})
            record = self._without_lost(record, facts.topics, checkpoint, facts.written)
            record = self._admit(record, {name: facts.topics[name].topic_id for name in fit})
        return record, facts.written.tails

    def _vetted_facts(self, topics: Topics, checkpoint: CheckpointFacts) -> Facts:
        """What there is now; PreflightFailed where the job may not run on it."""
        settings, record = self.settings, checkpoint.record
        names = settings.own_topics.own() | set(settings.topics) | topics.selected_ids().keys()
        found = topics.facts(names | (record.topic_ids.keys() if record else set()))
        claim = None
        if (record is None or record.claim is None) and settings.own_topics.control in found:
            claim = claims.first_claim(settings, record.incarnation if record else FIRST_INCARNATION)
        facts = Facts(
            topics=found,
            checkpoint=checkpoint,
            written=read_written(settings, {name: len(topic.latest) for name, topic in found.items()}),
            claim=claim,
            successor=self._successor(checkpoint) if settings.own_topics.control in found else None,
            there=() if found.keys() >= set(settings.topics) else topics.names(),
        )
        preflight.check(settings, facts)
        return facts

    def _successor(self, checkpoint: CheckpointFacts) -> FirstClaim | None:
        """The claim of a checkpoint that took the domain over, as far as batches have not read control."""
        if checkpoint.record is None:
            return None
        control = self.settings.own_topics.control
        reached = checkpoint.next_offsets.get(Source(control, checkpoint.record.own_ids.get(control, ""), 0), 0)
        return claims.successor(self.settings, checkpoint.record, reached)

    def _with_own_topics(self, topics: Topics, facts: Facts) -> Facts:
        """The facts once the domain's own topics are there; another sequencer may have made some in the same moment,
        otherwise than these settings say.
        """
        missing = preflight.missing_own(self.settings, facts)
        if not missing:
            return facts
        topics.create(missing)
        self._log.info("topics created", topics=[topic.name for topic in missing])
        return self._vetted_facts(topics, facts.checkpoint)

    def _begin_domain(self, facts: Facts) -> DomainRecord:
        settings = self.settings
        # The job never reads these, so another topic of that name is as good; a missing one is made at each start.
        known = settings.own_topics.own() - {settings.own_topics.receipts, settings.own_topics.state}
        ids = {name: topic.topic_id for name, topic in facts.topics.items() if name in known}
        record = DomainRecord.begin(settings, topics=preflight.first_topics(settings, facts), own_ids=ids)
        try:
            claimed = self._claimed(record, facts)
        except PreflightFailed:
            if self._store.read(RECORD) == record.encode():
                self._store.remove(RECORD)
            raise
        self._log.info("domain begins", claim=claimed.claim)
        return claimed

    def _claimed(self, record: DomainRecord, facts: Facts) -> DomainRecord:
        """The record with the claim by which its checkpoint holds the domain; PreflightFailed where another does.

        The record is written first: a claim without one would keep the domain for nobody.
        """
        if record.claim is not None:
            return record
        self._store.write(RECORD, record.encode())
        first = facts.claim or claims.hold(self.settings, record)
        record = replace(record, claim=first.offset)
        self._store.write(RECORD, record.encode())
        return record

    def _without_gone(self, record: DomainRecord, topics: Topics, present: Mapping[str, str]) -> DomainRecord:
        """The record where topics that Kafka has no longer are gone, written if it changed; `present` has ids by name.

        StateError where the settings do not let them go.
        """
        missed = {topic.name: topic for topic in preflight.gone(record, present)}
        names = topics.gone({name: topic.topic_id for name, topic in missed.items()}) if missed else set()
        if not names:
            return record
        if self.settings.on_topic_deleted == "stop":
            raise changed(min(names), is_there=min(names) in present)
        for name in sorted(names):
            self._log.error("topic deleted", topic=name, id=missed[name].topic_id, created_again=name in present)
        record = record.leaving({missed[name].topic_id for name in names}, "gone")
        self._store.write(RECORD, record.encode())
        return record

    def _without_lost(
        self, record: DomainRecord, found: Mapping[str, TopicFacts], checkpoint: CheckpointFacts, written: Written
    ) -> DomainRecord:
        """The record with what retention has removed before it was stamped, written if it changed. A batch that is
        planned, and takes some of that, is planned anew, or StateError.
        """
        if self.settings.on_data_loss == "fail":
            return record
        lost = preflight.losses(record, found, checkpoint.next_offsets)
        if preflight.must_plan_anew(self.settings, record, lost, checkpoint, written):
            self._store.remove(f"{QUERY}/offsets/{checkpoint.planned}")
        for source, (begin, end) in sorted(lost.items()):
            place = {"topic": source.topic, "id": source.topic_id, "partition": source.partition}
            why = "removed from Kafka before they were stamped"
            self._log.error("events lost", **place, first=begin, last=end - 1, reason=why)
        if lost:
            record = record.losing(lost)
            self._store.write(RECORD, record.encode())
        return record

    def _admit(self, record: DomainRecord, new: dict[str, str]) -> DomainRecord:
        """The record with these topics, and with the present list of those that decide ties; written if it changed."""
        admitted = record.admitting(new).ordering(self.settings.topic_order)
        if admitted != record:
            self._store.write(RECORD, admitted.encode())
        if new:
            self._log.info("topics admitted", topics=_few(new))
        return admitted

    def _say_unfit(self, topics: Mapping[str, tuple[str, list[str]]]) -> None:
        """Names each topic that may not be admitted once, with its problems; `topics` has its id by name."""
        for name, (topic_id, problems) in topics.items():
            if topic_id not in self._refused:
                self._refused.add(topic_id)
                self._log.error("topic refused", topic=name, problems=problems)

    def _begin_query(self) -> None:
        """Starts the query and waits until it is ready; after a request to stop it does neither."""
        self._query, self._ready = None, False
        self._remove_handover()
        try:
            if not self._stopping.is_set():
                self._start_query(self._session())
        except (PySparkException, Py4JError) as error:
            told, text = self._told(error), text_of(error)
            self._attempt(self._stop_query)
            self._revive_or_raise(told, text)

    def _start_query(self, spark: SparkSession) -> None:
        if self._stopping.is_set():
            return
        self._handover = Handover.make()
        self._handover.tell(self._record)
        self._handover.give_seeds(read_seeds(self._store, self._record, self.settings.checkpoint_dir))
        with self._within("the start of the query"):
            self._query = start_query(
                spark,
                self.settings,
                self._record,
                handover=self._handover,
                tails=self._tails,
                signatures=self._signatures,
                checkpoint=self._query_checkpoint(),
            )
        self._progress = ProgressReader(self._query, self._handover.looks)
        self._await_ready(self._query)

    def _query_checkpoint(self) -> str:
        directory = self.settings.checkpoint_dir
        return str(Path(directory).absolute() / QUERY) if self.settings.checkpoint_is_local else f"{directory}/{QUERY}"

    def _await_ready(self, query: StreamingQuery) -> None:
        """Returns when it is ready, has ended or has to, or takes long."""
        deadline = time.monotonic() + _READY_TIMEOUT_S
        while not self._look_if_ready(query) and query.isActive and not self._stopping.wait(_READY_POLL_S):
            self._watchdog.require_movement()
            if time.monotonic() > deadline:
                self._log.warning("the first batch takes long", waited_s=_READY_TIMEOUT_S)
                return

    def _look_if_ready(self, query: StreamingQuery) -> bool:
        """Whether the first trigger has come to its end and a Python worker has answered.

        Of a new domain the first trigger is an empty batch, which also warms Spark up.
        """
        if not self._ready and query.isActive and self._is_first_trigger_over(query):
            with self._within("the start of the query"):
                await_worker(self._session(), query)
            self._ready = True
            topics = _few(self._record.event_topics)
            word = "the first batch takes Spark some seconds more, and a busy machine a minute"
            self._log.info(READY, topics=topics, checkpoint=self.settings.checkpoint_dir, then=word)
        return self._ready

    def _is_first_trigger_over(self, query: StreamingQuery) -> bool:
        """Whether it came to its end, with or without a batch."""
        assert self._handover is not None
        return query.lastProgress is not None or self._handover.is_first_trigger_over

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        look_at = time.monotonic() + self.settings.topic_poll_s
        try:
            while not self._stopping.wait(_ALIVE_POLL_S):
                self._watchdog.require_movement()
                self._report()
                if not self._is_running():
                    self._begin_query()
                elif time.monotonic() >= look_at or self._is_told_of_changes():
                    answered = self._broker.answers(self._look)
                    look_at = time.monotonic() + min(self.settings.topic_poll_s, math.inf if answered else _AWAY_POLL_S)
                elif self._snapshots.is_due:
                    self._broker.answers(self._see_to_snapshots)
        except Exception as error:
            self._fail(self._told(error))
        finally:
            try:
                self._release()
            finally:
                self._failure = self._failure or self._watchdog.verdict  # one that stood still at its end
                self._done.set()

    def _see_to_snapshots(self) -> None:
        assert self._topics is not None
        self._snapshots.see_to_it(self._record, self._store, self._topics)

    def _is_told_of_changes(self) -> bool:
        return self._handover is not None and self._handover.take_topics_changed()

    def _is_running(self) -> bool:
        """False when the query is to be started: it ended by something that this may heal. Raises what else ended it.

        While no broker answers it cannot be told: then too it is True, and asked again.
        """
        query = self._query
        if self._stopping.is_set():
            return True
        if query is None:
            return False
        if query.isActive:
            self._look_if_ready(query)
            return True
        failure = query.exception()
        text = words_of(failure) if failure is not None else "it ended without a reason"
        # Changed topics may be the cause. A batch that runs again without one must not differ from what is stamped.
        before = self._record
        if not self._broker.answers(self._take_stock):
            return True
        if self._record != before:
            self._log.warning("starting the query again", reason="a topic is gone, or events are")
        else:
            self._revive_or_raise(error_from(text, self._disks), text)
        return False

    def _revive_or_raise(self, error: Error, text: str) -> None:
        """Returns, after a pause, when the query may be started again; `text` is what Spark said."""
        self._watchdog.require_movement()
        if is_passing(text) and self._revivals.bears(time.monotonic()):
            left_s = round(self._revivals.left_s)
            self._log.warning("starting the query again", reason=error.what, gives_up_in_s=left_s)
            self._stopping.wait(_REVIVAL_PAUSE_S)
            return
        say_trace(self._log, text)
        raise error

    def _take_stock(self) -> None:
        """Before the query starts again: which topics are gone, and events, and what stamps hold by now."""
        assert self._topics is not None
        self._take_leave()
        written = read_written(self.settings, preflight.written_partitions(self.settings))
        self._tails = written.tails
        if self.settings.on_data_loss == "record":
            checkpoint = read_checkpoint(self._store, self.settings.checkpoint_dir)
            found = self._topics.facts(self._record.event_topics)
            self._hand_over(self._without_lost(self._record, found, checkpoint, written))

    def _look(self) -> None:
        """Looks at the topics: of those that are gone leave is taken, one that became compacted is told, a new one is
        vetted and admitted.
        """
        assert self._topics is not None
        self._take_leave()
        self._warn_of_compaction(self._topics)
        known = self._record.known_ids | self._refused
        new = {
            name: topic_id
            for name, topic_id in self._topics.selected_ids().items()
            if name not in self._record.event_topics and topic_id not in known
        }
        admitted = self._vetted(self._topics, new)
        if admitted:
            self._hand_over(self._admit(self._record, admitted))

    def _take_leave(self) -> None:
        """Notes which event topics are gone; StateError for one of the domain's own."""
        assert self._topics is not None
        present = self._topics.ids(self._record.topic_ids)
        for name, topic_id in self._record.own_ids.items():
            if present.get(name) != topic_id:
                raise changed(name, is_there=name in present, is_own=True)
        self._hand_over(self._without_gone(self._record, self._topics, present))

    def _hand_over(self, record: DomainRecord) -> None:
        """The record holds from now on, and is written already."""
        if record != self._record:
            self._record = record
            if self._handover is not None:
                self._handover.tell(record)

    def _note_retired(self, retired: Sequence[Mapping[str, Any]]) -> None:
        """Topics of which nothing more is stamped."""
        if not retired:
            return
        for topic in retired:
            say = self._log.error if topic["lost"] else self._log.info
            say(
                "topic retired",
                topic=topic["topic"],
                id=topic["topic_id"],
                g=topic["g"],
                lost=topic["lost"] or "none that was seen",
            )
        record = self._record.leaving({topic["topic_id"] for topic in retired}, "retired")
        if record != self._record:
            self._store.write(RECORD, record.encode())
            self._hand_over(record)

    def _note_skipped(self, skipped: Sequence[Mapping[str, Any]]) -> None:
        """Losses that have their place now."""
        for loss in skipped:
            self._log.error("loss recorded", topic=loss["topic"], id=loss["topic_id"], g=loss["g"], lost=loss["lost"])

    def _warn_of_compaction(self, topics: Topics) -> None:
        """Names once each topic that is read and has become compacted: what it removes unread is never stamped."""
        policies = topics.policies(self._record.event_topics)
        compacted = {name for name, policy in policies.items() if "compact" in policy}
        for name in sorted(compacted - self._compacted):
            self._log.error(
                "topic compacted", topic=name, policy=policies[name], remedy="set cleanup.policy to delete at once"
            )
        self._compacted = compacted

    def _vetted(self, topics: Topics, new: dict[str, str]) -> dict[str, str]:
        """Those of the new topics that may be admitted; the others are named once, and the job runs on without them."""
        found = topics.facts(new) if new else {}
        problems = {name: (facts.topic_id, list(preflight.vet_new(name, facts))) for name, facts in found.items()}
        self._say_unfit({name: (topic_id, texts) for name, (topic_id, texts) in problems.items() if texts})
        return {name: topic_id for name, (topic_id, texts) in problems.items() if not texts}

    def _fail(self, error: Error) -> None:
        if not self._stopping.is_set():
            self._failure = error

    def _told(self, error: Exception) -> Error:
        """In totalorder's terms; a standstill that ended the job is the cause of what fails with it."""
        return self._watchdog.verdict or explained(error, "the sequencer", self._disks)

    # --- for its watch ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _within(self, step: str) -> Iterator[None]:
        """Within, a call to Spark takes its time."""
        self._step = step
        try:
            yield
        finally:
            self._step = None

    def ask(self) -> Status:
        """See `watchdog.Watched`."""
        return ask(self._query)

    def step(self, status: Status) -> str | None:
        """See `watchdog.Watched`."""
        if self._step is not None or status.where is None:
            return self._step
        batch = "the first batch since the start" if self._newest is None else f"the batch behind batch {self._newest}"
        return None if self.broker_is_away else f"{batch}, {status.where}"

    def may_end(self, status: Status) -> bool:
        """See `watchdog.Watched`: tasks of a cluster run elsewhere."""
        assert self._spark is not None or not status.stages
        master = self._spark.sparkContext.master if self._spark is not None else None
        return not status.stages or is_local(master or self.settings.master)

    def abandon(self, error: Error) -> None:
        """See `watchdog.Watched`. The lock stays: what does not answer may wake up, and go on."""
        self._failure = error
        self._done.set()
        self._on_abandoned(error)

    def _report(self) -> None:
        """Logs and counts the batches that have come to their end."""
        if self._progress is None:
            return
        for batch in self._progress.read():
            self._revivals.end()
            self._snapshots.note(batch)
            if batch.figures["is_batch"]:
                self._newest = batch.figures["batch"]
                self._count(batch.figures)
                self._note_retired(batch.figures["retired"])
                self._note_skipped(batch.figures["skipped"])
                self._batches.add(batch)
        self._batches.say_if_due()

    def _count(self, figures: dict[str, Any]) -> None:
        before = self.processed
        if figures["g_last"] < before.g:
            raise StateError("a batch went backwards", remedy="Stop and look at the checkpoint")
        self.processed = Processed(
            batches=before.batches + 1,
            events=before.events + figures["events"],
            controls=before.controls + figures["controls"],
            unroutable=before.unroutable + figures["unroutable"],
            unsigned=before.unsigned + figures["unsigned"],
            g=figures["g_last"],
        )

    # --- end ----------------------------------------------------------------------------------------------------------

    def _stop_query(self) -> None:
        """Lets the current batch end, and breaks it off if it takes too long: it would run again."""
        query = self._query
        if query is None:
            return
        deadline = time.monotonic() + _BATCH_GRACE_S
        while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
            time.sleep(0.005)
        query.stop()
        self._query = None
        self._report()
        self._remove_handover()

    def _remove_handover(self) -> None:
        if self._handover is not None:
            self._handover.remove()
            self._handover = None

    def _release(self) -> None:
        with self._within("its end"):
            self._end()
        self._watchdog.stop()

    def _end(self) -> None:
        for step in (
            self._stop_query,
            self._remove_handover,
            self._batches.say,
            self._stop_spark,
            self._close_topics,
            self._unlock,
        ):
            self._attempt(step)
        with contextlib.suppress(OSError):  # the pipe for the log may be gone with spark-submit's Java
            self._log.info("sequencer stopped", batches=self.processed.batches, g=self.processed.g)

    def _attempt(self, step: Callable[[], None]) -> None:
        """One that fails is logged: it hides neither what ended the job nor the steps behind it."""
        try:
            step()
        except Exception as error:
            with contextlib.suppress(OSError):
                self._log.warning("while stopping", step=step.__name__.strip("_"), error=text_of(error)[:200])

    def _stop_spark(self) -> None:
        if self._given_spark is None and self._spark is not None:
            stop_session(self._spark)
            self._spark = None

    def _close_topics(self) -> None:
        if self._topics is not None:
            self._topics.close()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.release()


def _few(names: Collection[str]) -> list[str]:
    """The first of them, for a log line: a pattern may have ten thousand."""
    more = len(names) - _MOST_NAMES
    return [*sorted(names)[:_MOST_NAMES], *([f"and {more:,} more"] if more > 0 else [])]
