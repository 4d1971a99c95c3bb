"""Makes the checkpoint of a domain anew from Kafka, where the domain's own is lost, damaged or old (docs/adr/0016).

In this order, so that it can be killed at any moment and run again: the next incarnation is claimed on control, which
ends a job that still runs; what that one had begun comes to rest; the past is read, from the newest snapshot on that
agrees with stamps; what its last batch lacks on grants and stamps is written, under the old incarnation and with equal
digests (completing.py); the states are written, and last the domain's record, without which the directory is no
checkpoint (recovered.py).
"""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from totalorder.config import Settings
from totalorder.control_keys import read_signatures
from totalorder.errors import BrokerUnavailable, Error, PreflightFailed, StateError
from totalorder.sequencer.recovery import ControlLog, Recovery, StampsLog, require_all
from totalorder.sequencer.snapshot import Snapshot, SnapshotMark, cut_of
from totalorder.sequencer.state import EngineConfig
from totalorder.sequencer.wire.cuts import Cut
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming import claims, past, preflight, recovered
from totalorder.streaming.checkpoint import QUERY, RECORD, CheckpointLock
from totalorder.streaming.completing import AGAIN, Completing, Last, write
from totalorder.streaming.failures import explained
from totalorder.streaming.preflight import TopicFacts
from totalorder.streaming.reading import Ranges
from totalorder.streaming.record import FIRST_INCARNATION, FIXED, DomainRecord
from totalorder.streaming.session import prepare, start_session, stop_session
from totalorder.streaming.store import HadoopStore, LocalStore, Store
from totalorder.streaming.topics import Topics
from totalorder.words import few

SETTLE_S = 5.0
"""How long nothing may have been written before what is there counts as all."""
_SAY_EVERY_S = 5.0
_LOCK_S = 5.0
_MOST_NAMED = 10
_MOST_SNAPSHOTS = 4
"""So many are tried, newest first; there are two at most, unless somebody else writes there, or the sequencer may not
delete there."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was recovered, or would be. `g` is the last position of π, `missing` how many answers and stamps partitions
    the last batch lacked; `cut` is the last one that is over. `snapshot` is the batch of the snapshot with which it
    began, 0 for none. `incarnation` is the new one.
    """

    domain: str
    incarnation: int
    batch: int
    g: int
    cut: int
    topics: int
    subscriptions: int
    missing_answers: int
    missing_stamps: int
    snapshot: int


def recover(
    settings: Settings, *, check: bool = False, say: Callable[[str], None] = lambda _: None, settle_s: float = SETTLE_S
) -> Report:
    """Makes `settings.checkpoint_dir` the domain's checkpoint; with `check` it writes nothing anywhere, and tells.

    `say` is given a line now and then. StateError, WireError or Contradiction where the past is not whole;
    PreflightFailed where the directory holds something, or topics are not as they must be; BrokerUnavailable.
    """
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_store(settings, check=check))
        if store.read(RECORD) is not None or store.names(f"{QUERY}/offsets"):
            raise PreflightFailed(
                f"{settings.checkpoint_dir} holds a checkpoint: where that is damaged or old, move it away first",
                remedy="",
            )
        topics = stack.enter_context(contextlib.closing(Topics(settings)))
        found = topics.facts(settings.own_topics.own())
        preflight.check_own(settings, found)
        return _Recovering(settings, topics, found, store, say).run(check=check, settle_s=settle_s)


@contextlib.contextmanager
def _store(settings: Settings, *, check: bool) -> Iterator[Store]:
    """The checkpoint's directory, locked where it is a local one."""
    if settings.checkpoint_is_local:
        directory = Path(settings.checkpoint_dir)
        with contextlib.nullcontext() if check else CheckpointLock(directory, _LOCK_S):
            yield LocalStore(directory)
        return
    prepare(settings.master)
    spark = start_session(settings)
    try:
        yield HadoopStore(spark, settings.checkpoint_dir)
    except (PySparkException, Py4JError) as error:
        raise explained(error, "the recovery") from error
    finally:
        stop_session(spark)


class _Recovering:
    """One run of it."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        own: Mapping[str, TopicFacts],
        store: Store,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._topics, self._own, self._store, self._say = settings, topics, own, store, say

    def run(self, *, check: bool, settle_s: float) -> Report:
        """See `recover`."""
        settings = self._settings
        known = claims.known(settings)
        record = self._record(max([FIRST_INCARNATION, *known]) + 1)
        if not check:
            record = replace(record, claim=claims.hold(settings, record).offset)
            self._say(f"incarnation {record.incarnation} of domain {settings.domain} is claimed")
        ranges = past.written_ranges(settings) if check else past.settle(settings, settle_s, self._say)
        newest = past.newest_cuts(settings, ranges)
        marks = past.marks(settings, _MOST_SNAPSHOTS) if settings.own_topics.state in self._own else []
        if not marks:
            self._require_cuts(newest)
        with contextlib.ExitStack() as stack:
            first = known.get(FIRST_INCARNATION)
            made, log, snapshot = self._past(stack, ranges, marks, first.owner if first else record.identity)
            answered = past.answers_since(settings, ranges, made.batch)
            self._require_same_topics(answered.topic_by)
            completing = Completing(settings, self._topics, made, answered, self._say)
            last = completing.last(log, self._newest(newest, ranges, made, snapshot))
            self._require_selected(last.cut, made)
            begin = recovered.beginning(settings, made, last)
        if not check:
            self._require_quiet(ranges)
            write(settings, last)
            recovered.write(self._store, settings, made, last, record, begin)
        return self._report(made, last, record, snapshot)

    def _record(self, incarnation: int) -> DomainRecord:
        names = self._settings.own_topics
        left_out = {names.receipts, names.state}
        return DomainRecord(
            identity=secrets.token_hex(16),
            incarnation=incarnation,
            fixed={name: getattr(self._settings, name) for name in FIXED},
            own_ids={name: topic.topic_id for name, topic in self._own.items() if name not in left_out},
            topics=(),
            orders=((),),
        )

    # --- the past -----------------------------------------------------------------------------------------------------

    def _past(
        self, stack: contextlib.ExitStack, ranges: Ranges, marks: Sequence[SnapshotMark], identity: str
    ) -> tuple[Recovery, StampsLog, Snapshot | None]:
        """The domain as of the last batch that all stamps partitions have, what they have besides, and the snapshot
        with which it began: the newest one from which all follows that is on stamps. Where none does, the first batch
        is the beginning, if it is still there.
        """
        refused: Error | None = None
        for mark in marks:
            try:
                return self._behind(stack, ranges, mark)
            except BrokerUnavailable:
                raise
            except Error as error:
                self._say(f"the snapshot of batch {mark.batch:,} is left out: {error.what}")
                refused = refused or error
        try:
            return self._from_the_first(stack, ranges, identity)
        except BrokerUnavailable:
            raise
        except Error as error:
            raise refused or error from None

    def _behind(
        self, stack: contextlib.ExitStack, ranges: Ranges, mark: SnapshotMark
    ) -> tuple[Recovery, StampsLog, Snapshot]:
        settings, names = self._settings, self._settings.own_topics
        snapshot = past.snapshot(settings, mark)
        self._say(f"begins with the snapshot of batch {mark.batch:,}, cut {mark.cut:,}")
        (goes_on,) = (offset for source, offset in mark.ends.items() if source.topic == names.control)
        requests = stack.enter_context(contextlib.closing(past.requests(settings, goes_on)))
        made = Recovery.behind(snapshot, self._config(""), ControlLog(requests), self._signatures())
        log = StampsLog(settings.domain, settings.stamps_partitions, behind=snapshot)
        require_all(settings.domain, self._stamps_in(ranges), behind=mark)
        self._absorb(made, log, past.behind(ranges, mark, names.stamps))
        return made, log, snapshot

    def _from_the_first(
        self, stack: contextlib.ExitStack, ranges: Ranges, identity: str
    ) -> tuple[Recovery, StampsLog, None]:
        settings = self._settings
        requests = stack.enter_context(contextlib.closing(past.requests(settings, 0)))
        starts = self._starts(past.first_cut(settings, ranges))
        made = Recovery.from_the_first(self._config(identity), starts, ControlLog(requests), self._signatures())
        log = StampsLog(settings.domain, settings.stamps_partitions)
        require_all(settings.domain, self._stamps_in(ranges))
        self._absorb(made, log, ranges)
        return made, log, None

    def _stamps_in(self, ranges: Ranges) -> dict[int, tuple[int, int]]:
        """Where each stamps partition begins and ends. What goes after that was looked at is missed by the reader."""
        return {at.partition: bounds for at, bounds in ranges.items() if at.topic == self._settings.own_topics.stamps}

    def _absorb(self, made: Recovery, log: StampsLog, ranges: Ranges) -> None:
        """Goes on to the last batch that all stamps partitions have; `log` has what there is besides."""
        said_s = time.monotonic()
        for batch in past.batches(self._settings, ranges, log):
            made.absorb(batch)
            if time.monotonic() > said_s + _SAY_EVERY_S:
                said_s = time.monotonic()
                self._say(f"batch {made.batch:,}, position {batch[0].g:,} of the order")

    def _config(self, identity: str) -> EngineConfig:
        return EngineConfig(identity=identity, **{name: getattr(self._settings, name) for name in FIXED})

    def _signatures(self) -> Signatures | None:
        return read_signatures(self._settings.control_key_file, self._settings.domain)

    def _starts(self, first: Cut) -> dict[Source, int]:
        """Where event partitions begin that do not begin at 0."""
        control = self._settings.own_topics.control
        begins = zip(first.sources, first.begins.tolist(), strict=True)
        return {source: begin for source, begin in begins if begin and source.topic != control}

    def _newest(
        self, found: tuple[Cut, ...], ranges: Ranges, made: Recovery, snapshot: Snapshot | None
    ) -> tuple[Cut, ...]:
        """The contents of the newest cut: those `found`, or what goes on from the snapshot's, or that one itself."""
        if snapshot is None:
            self._require_cuts(found)
            return found
        own = cut_of(snapshot.mark)
        found = found or past.newest_cuts(self._settings, ranges, behind=own)
        if made.last or found[-1].cut != own.cut:
            return found
        if not any(_ends(own) == _ends(cut) for cut in found):
            raise StateError(f"cut {own.cut} ends otherwise on Kafka than its snapshot says", remedy=AGAIN)
        return (own,)

    def _require_cuts(self, found: tuple[Cut, ...]) -> None:
        if not found:
            raise StateError(
                f"{self._settings.own_topics.cuts} has no cuts: nothing of domain {self._settings.domain} was ever "
                "stamped, or they are gone",
                remedy="Where nothing was stamped, delete all topics of the domain, and begin it anew",
            )

    def _require_same_topics(self, topic_by: str | None) -> None:
        if topic_by not in (None, self._settings.topic_by):
            raise StateError(
                f"the domain has topic_by = {topic_by!r}", remedy=f"Set it so; given is {self._settings.topic_by!r}"
            )

    def _require_selected(self, cut: Cut, made: Recovery) -> None:
        """The job refuses settings that leave out a topic of its checkpoint that Kafka has. So does this, before there
        is a checkpoint.
        """
        cold, settings = made.state.cold, self._settings
        retired = {cold.kafka_topics[rank] for rank in cold.retired}
        read = {source.kafka_topic for source in cut.sources if source.topic != settings.own_topics.control} - retired
        absent = sorted(topic for topic in read if not settings.selects(topic.name))
        present = self._topics.ids(topic.name for topic in absent) if absent else {}
        if names := [topic.name for topic in absent if present.get(topic.name) == topic.topic_id]:
            raise StateError(
                f"domain {settings.domain} reads {few(names, _MOST_NAMED)}, which the settings leave out",
                remedy="Give topics (--topics) or topic_pattern (--topic-pattern) as the sequencer had it; one that is "
                "to leave the domain, `totalorder topics retire` takes out while the job runs",
            )

    # --- the end ------------------------------------------------------------------------------------------------------

    def _require_quiet(self, ranges: Ranges) -> None:
        if past.ends_of(past.written_ranges(self._settings)) != past.ends_of(ranges):
            raise StateError(
                f"something was written to {self._settings.own_topics.stamps}, grants or cuts while they were read",
                remedy="A sequencer of the domain still runs: stop it, and run this again",
            )

    def _report(self, made: Recovery, last: Last, record: DomainRecord, snapshot: Snapshot | None) -> Report:
        hot, cold = made.state.hot, made.state.cold
        return Report(
            domain=self._settings.domain,
            incarnation=record.incarnation,
            batch=hot.batch,
            g=hot.g,
            cut=last.cut.cut - (not last.is_over),
            topics=len(cold.topics),
            subscriptions=sum(not held.lapsed for held in cold.subscriptions.values()),
            missing_answers=len(last.answers),
            missing_stamps=len(last.stamps),
            snapshot=snapshot.mark.batch if snapshot else 0,
        )


def _ends(cut: Cut) -> dict[Source, int]:
    return dict(zip(cut.sources, cut.ends.tolist(), strict=True))
