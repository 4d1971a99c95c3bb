"""Judges a finished World by the records of its batches, and by what applications were handed and did.

It takes nothing from what the product saved. sim_truth.py says what should have come; this compares.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from sim_domain_checker import DomainChecker
from sim_followers import Life
from sim_lives import Slot
from sim_process import Process
from sim_receipts import Receipt, receipts_of
from sim_truth import Item, Told, Truth
from sim_world import World

from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber import Event, Lost
from totalorder.subscriber.transport import Partition

Place = tuple[Source, int]


def place(event: Event | Lost) -> Place:
    """Where the event's record is, or the first that is lost."""
    source = Source(event.kafka_topic, event.topic_id, event.partition)
    return source, event.first_offset if isinstance(event, Lost) else event.offset


@dataclass
class Stream:
    """What an id is owed in an order that is its own: all of it, or with m = 2 each topic by itself."""

    items: list[tuple[Item, bool]]
    """Whether each is owed for certain."""
    index: dict[Place, int]

    @classmethod
    def of(cls, items: list[tuple[Item, bool]]) -> "Stream":
        return cls(items, {item.place: at for at, (item, _) in enumerate(items)})

    def behind(self, g: int) -> int:
        """Index of the first one behind a position."""
        return next((at for at, (item, _) in enumerate(self.items) if item.g > g), len(self.items))


class Checker:
    """`check` raises AssertionError where the world broke the promise."""

    def __init__(self, world: World) -> None:
        self.world = world
        job = world.sequencer
        self.truth = Truth(job.batches, job.domain, job.names.control, job.starts)
        self.processes = [process for slot in world.slots for process in slot.processes]

    def check(self) -> int:
        """Every promise; returns how many events were delivered."""
        DomainChecker(self.world.sequencer, self.truth).check()
        for process in self.processes:
            self._check_events(process)
            self._check_end(process)
        for slot in self.world.slots:
            self._check_slot(slot)
        for follower in self.world.followers.all:
            for life in follower.lives:
                self._check_life(life)
        self._check_pairs()
        if self.world.domain.min_subscriptions == 1:
            self._check_circles()
        return sum(len(process.handed) for process in self.processes)

    # --- one process --------------------------------------------------------------------------------------------------

    def _check_events(self, process: Process) -> None:
        """What was handed out is what was published, with a true timestamp."""
        first = process.events[0].sequence if process.events and self._stores(process) else 1
        for number, event in enumerate(process.events, first):
            true = self.truth.by_place[place(event)]
            assert event.sequence == number, f"{event} is delivery {number}"
            if isinstance(event, Lost):
                self._check_lost(event, true)
                continue
            assert (event.g, event.n, event.topic, event.value) == (true.g, true.n, true.topic, true.value)
            assert event.entries.items() <= true.may.items(), f"{event} is {true}"

    def _check_lost(self, lost: Lost, true: Item) -> None:
        """What is called lost is not there any more, or was never stamped."""
        kafka, at = self.world.kafka, Partition(lost.kafka_topic, lost.partition)
        is_gone = kafka.ids.get(lost.kafka_topic) != lost.topic_id or lost.last_offset < kafka.begin(at)
        assert is_gone, f"{lost} is not lost"
        by_topic = self.world.domain.topic_by == "topic"
        topic = true.topic if true.topic else lost.kafka_topic if by_topic else None
        said = (true.g, true.n or None, topic, true.lost_to - 1 if true.lost_to else true.offset)
        assert (lost.g, lost.n, lost.topic, lost.last_offset) == said, f"{lost} is {true}"

    def _check_end(self, process: Process) -> None:
        """No process is told that it was replaced, or that its lease ran out, when that is not so."""
        chain = self.truth.chain(process.id)
        own = max((told.generation for told in chain if told.nonce == process.nonce), default=0)
        if process.ended == "Fenced":
            assert any(told.generation > own and told.nonce != process.nonce for told in chain), f"{process}: fenced"
        if process.ended == "SubscriptionEnded":
            assert any(told.kind == "Ended" for told in chain), f"{process}: ended"
        if process.ended == "Rejected":
            of = [told for told in self.truth.told if (told.kind, told.nonce) == ("Rejection", process.nonce)]
            assert any(told.offset not in self.world.keys.forged for told in of), f"{process}: rejected for another's"
        if process.ended == "unordered":
            vague = self.world.compacts_grants or any(told.said == "expired" for told in chain)
            assert vague, f"{process}: no order"
            assert self.world.domain.min_subscriptions == 2, f"{process}: with m = 1 there is always an order"

    # --- one subscriber -----------------------------------------------------------------------------------------------

    def _check_slot(self, slot: Slot) -> None:
        chain, forgets = self.truth.chain(slot.id), self.world.compacts_grants
        owed = self.truth.owed(chain, self._is_vague, forgets=forgets)
        if self.world.domain.min_subscriptions == 1:
            streams = [Stream.of(owed)]
        else:
            streams = [Stream.of([each for each in owed if each[0].topic == topic]) for topic in self.world.topics]
        known = {at for stream in streams for at in stream.index}
        for process in slot.processes:
            strange = [event for event in process.events if place(event) not in known]
            assert not strange, f"{process.nonce} was not owed {strange[0]}"
        for stream in streams:
            self._check_stream(slot, stream)
        self._check_tags(slot)
        self._check_receipts(slot)
        if slot.stores:
            self._check_effects(slot, streams[0])

    def _check_stream(self, slot: Slot, stream: Stream) -> None:
        """Each process delivers a gapless run of it, from where former ones were; the last one through its end."""
        runs = {}
        for process in slot.processes:
            runs[process.nonce] = run = [stream.index[at] for at in map(place, process.events) if at in stream.index]
            begin, end = self._allowed(slot, stream, process, runs)
            if run:
                assert run == self._gapless(stream, run), f"{process.nonce} is not in order, or leaves out: {run}"
                assert begin <= run[0] <= end, f"{process.nonce} begins at {run[0]}, should be within {begin}..{end}"
                if process.ended == "lost":
                    self._check_stopped(process, stream, run[-1] + 1)
        last = slot.processes[-1]
        done = max([self._allowed(slot, stream, last, runs)[1], *(run[-1] + 1 for run in [runs[last.nonce]] if run)])
        missing = [item for item, is_certain in stream.items[done:] if is_certain]
        assert not missing, f"{slot.id} never got {missing[0]} ({len(missing)} of {len(stream.items)})"

    def _check_stopped(self, process: Process, stream: Stream, begin: int) -> None:
        """What stopped it was a loss, and all that stands before was handed out."""
        for item, is_certain in stream.items[begin:]:
            if self._is_gone(item):
                return
            assert not is_certain, f"{process.nonce} was stopped by a loss, and {item} comes before"
        raise AssertionError(f"{process.nonce} was stopped by a loss, and there is none")

    def _is_gone(self, item: Item) -> bool:
        kafka, at = self.world.kafka, item.partition
        return item.lost_to > 0 or kafka.ids.get(at.topic) != at.topic_id or item.offset < kafka.begin(at)

    def _gapless(self, stream: Stream, run: Sequence[int]) -> list[int]:
        """The run as it should be: all from its first one on, but for what only a compacted answer said."""
        got = set(run)
        return [
            at
            for at in range(run[0], max(run) + 1)
            if at in got or stream.items[at][1] or not self.world.compacts_grants
        ]

    def _is_vague(self, told: Told) -> bool:
        """Whether its process may not know of it, and so have saved nothing: then nobody else knows for certain."""
        process = self.world.by_nonce.get(told.nonce)
        if process is None or not process.started_at:
            return True
        if not self.world.compacts_grants:
            return False
        return not process.has_ended if told.kind == "Ended" else told.generation not in process.known

    def _allowed(self, slot: Slot, stream: Stream, process: Process, runs: dict[str, list[int]]) -> tuple[int, int]:
        """The least and the largest index at which a process may begin."""
        if process.anew:
            bases = self._own_bases(stream, process)
            return min(bases, default=0), max(bases, default=0)
        low = high = 0
        for other in slot.processes:
            if other is process:
                continue
            until = min(
                (later.asked_at for later in slot.processes if later.asked_at > other.asked_at),
                default=self.world.moment,
            )
            until = min(until, process.asked_at)
            for at, index in self._marks(stream, other, runs.get(other.nonce, []), certain=True):
                low = max(low, index) if at < until else low
            begun = process.handed[0].at if process.handed else self.world.moment
            for at, index in self._marks(stream, other, runs.get(other.nonce, []), certain=False):
                high = max(high, index) if at <= begun else high
        high = max(low, high)
        while high < len(stream.items) and not stream.items[high][1]:
            high += 1
        return low, high

    def _own_bases(self, stream: Stream, process: Process) -> list[int]:
        """Where one that begins anew may begin: behind its first grant, or the first that it knew of. One that was over
        and forgotten before it was seen is asked for again.
        """
        grants = [told for told in self.truth.chain(process.id) if told.nonce == process.nonce and told.kind == "Grant"]
        if not self.world.compacts_grants:
            grants = grants[:1]
        elif process.known:
            grants = [told for told in grants if told.generation == min(process.known)]
        return [stream.behind(told.g) for told in grants]

    def _marks(
        self, stream: Stream, process: Process, run: Sequence[int], *, certain: bool
    ) -> Iterator[tuple[int, int]]:
        """(moment, index): from then on all before the index is done with, for certain or perhaps."""
        for at, count in process.durable if certain else process.acking:
            done = [stream.index[where] for where in map(place, process.events[:count]) if where in stream.index]
            if done:
                yield at, done[-1] + 1
        own = [told for told in self.truth.chain(process.id) if told.nonce == process.nonce]
        if process.anew and own and (process.started_at or not certain):
            for base in self._own_bases(stream, process):
                yield (process.started_at if certain else 0), base
        at = process.dropped_at if certain else process.dropping_at
        if at and own and own[-1].kind == "Ended":
            # Of a lease that ran out what lies behind is given up too, until the id is subscribed again.
            later = [told.g for told in self.truth.chain(process.id) if told.g > own[-1].g]
            lapsed = own[-1].said == "expired" and not certain
            yield at, stream.behind(own[-1].g if not lapsed else min(later, default=10**9))

    def _check_tags(self, slot: Slot) -> None:
        """Nothing comes twice without a tag; and none is tagged that no other process held ready."""
        untagged: dict[Place, str] = {}
        for process in slot.processes:
            held = max((other.seen_g for other in slot.processes if other is not process), default=0)
            for event in process.events:
                if event.tag is None:
                    where = place(event)
                    assert where not in untagged, f"{where} came untagged to {untagged[where]} and to {process.nonce}"
                    untagged[where] = process.nonce
                else:
                    assert event.g <= held, f"{event} is tagged, and nobody held it"

    def _stores(self, process: Process) -> bool:
        """Whether its application has the position: what that is done with is counted, and not handed out."""
        return any(slot.stores and process in slot.processes for slot in self.world.slots)

    def _check_effects(self, slot: Slot, stream: Stream) -> None:
        """Each event has its effect once, in order, and all that is owed has one, unless it was given up."""
        effects = self.world.stores.effects(slot.id)
        done = [(effect.source, effect.offset) for effect in effects]
        assert len(set(done)) == len(done), f"{slot.id}: an effect twice"
        assert [effect.g for effect in effects] == sorted(effect.g for effect in effects), f"{slot.id}: not in order"
        for effect, where in zip(effects, done, strict=True):
            event = self.world.by_nonce[effect.nonce].events[effect.delivery]
            assert (place(event), event.g) == (where, effect.g), f"{effect} of {event}"
        if any(process.anew or process.dropping_at for process in slot.processes):
            return
        missing = [item for item, is_certain in stream.items if is_certain and item.place not in set(done)]
        assert not missing, f"{slot.id}: no effect of {missing[0]}"

    def _check_receipts(self, slot: Slot) -> None:
        """No receipt without a delivery, and no delivery that was saved without its receipt."""
        receipts = receipts_of(self.world.kafka, slot.id)
        by_process: dict[str, list[Receipt]] = {}
        for receipt in receipts:
            by_process.setdefault(receipt.nonce, []).append(receipt)
        told = {(receipt.source, receipt.offset) for receipt in receipts}
        for process in slot.processes:
            mine = by_process.pop(process.nonce, [])
            handed = process.events
            if slot.stores:
                # What was done before the process began it tells of, and does not hand out.
                own = [receipt for receipt in mine if handed and receipt.sequence >= handed[0].sequence]
                known = {effect[2:4] for effect in self.world.stores.effects(slot.id)}
                strange = [r for r in mine if r not in own and (r.source, r.offset) not in known]
                assert not strange, f"{process.nonce}: {strange[0]} of what was not done"
                mine = own
            assert process.receipts or not mine, f"{process.nonce}: receipts that were not asked for"
            assert len(mine) <= len(handed), f"{process.nonce}: receipts of more than was delivered"
            for receipt, event in zip(mine, handed, strict=False):
                assert receipt.is_of(event), f"{process.nonce}: {receipt} of {event}"
            generations = [receipt.generation for receipt in mine]
            assert generations == sorted(generations), f"{process.nonce}: generations fall"
            is_sure = process.receipts and not slot.stores  # what is committed there is told later
            done = max((count for _, count in process.durable), default=0) if is_sure else 0
            unsaid = [event for event in process.events[:done] if place(event) not in told]
            assert not unsaid, f"{process.nonce}: no receipt of {unsaid[0]}"
            if process.receipts and not slot.stores:
                assert done <= len(mine), f"{process.nonce}: {len(mine)} receipts, and {done} deliveries were saved"
        assert not by_process, f"receipts of nobody: {by_process}"
        self._check_told(slot, told)

    def _check_told(self, slot: Slot, told: set[Place]) -> None:
        """What was delivered and never given up is told, wherever its processes died: else it would have come again."""
        if any(process.anew or process.dropping_at or not process.receipts for process in slot.processes):
            return
        for process in slot.processes:
            for event in process.events:
                assert place(event) in told, f"{process.nonce}: nobody told of {event}"

    # --- Readers that follow ------------------------------------------------------------------------------------------

    def _check_life(self, life: Life) -> None:
        """It gave all of its topics behind where it began, in the one order, as far as it came; if it lives, all."""
        owed = self._owed_to(life)
        due = iter(owed)
        for number, event in enumerate(life.given, 1):
            item, is_certain = next(due, (None, True))
            while not is_certain and item is not None and place(event) != item.place:
                item, is_certain = next(due, (None, True))
            assert item is not None, f"{life} was not owed {event}"
            assert (event.sequence, event.g, place(event)) == (number, item.g, item.place), f"{event}, next is {item}"
            if isinstance(event, Lost):
                self._check_lost(event, item)
            else:
                assert (event.n, event.topic, event.value) == (item.n, item.topic, item.value), f"{event} is {item}"
        rest = list(due)
        if life.ended == "lost":
            before = next((item for item, is_certain in rest if is_certain or self._is_gone(item)), None)
            assert before is not None, f"{life} was stopped by a loss, and there is none"
            assert self._is_gone(before), f"{life} was stopped by a loss, and {before} comes before"
        if not life.ended:
            missing = [item for item, is_certain in rest if is_certain]
            assert not missing, f"{life} never gave {missing[0]}"

    def _owed_to(self, life: Life) -> list[tuple[Item, bool]]:
        """What comes behind where it began, and whether it does for certain. Before it knows that Kafka topics name the
        topics, losses of all of them concern it.
        """
        begin, present = life.begin_g, life.begin_g
        if life.start == "now":
            ends = [batch.g for batch in self.truth.batches]
            present = max((batch.g for batch in self.truth.batches if batch.cut <= life.cuts), default=0)
            assert begin in (0, *ends), f"{life} begins amid a batch"
            # A log that ends with much that was written late, or has nothing any more, tells of an earlier present.
            # What lies between comes, or does not.
            assert present <= begin or not life.is_shown, f"{life} begins before what was stamped, which is {present}"
        elif life.start == "earliest":
            # Of what retention has removed of stamps it is not known how far it goes.
            begin = life.given[0].g - 1 if life.given and self.world.has("trims") else begin
            is_whole = not any(map(self.world.has, ("trims", "loses", "deletes", "starts")))
            assert begin == 0 or not is_whole, f"{life} begins behind what is there"
        else:
            assert begin == life.start.g, f"{life} begins elsewhere"
        by_topic = self.world.domain.topic_by == "topic"
        owed = []
        for item in sorted([*self.truth.items, *self.truth.losses], key=lambda item: item.g):
            name = item.partition.topic if item.lost_to else item.topic
            is_certain = life.reads(name) if by_topic or not item.lost_to else True
            if item.g > begin and (is_certain or item.lost_to):
                owed.append((item, is_certain and item.g > present))
        return owed

    # --- all subscribers ----------------------------------------------------------------------------------------------

    def _check_pairs(self) -> None:
        """Any two, subscribers and Readers, saw any two common events in one order."""
        sequences = [(id_, list(map(place, events))) for id_, events in self._sequences() if events]
        for (one_id, one), (other_id, other) in combinations(sequences, 2):
            common = set(one) & set(other)
            if one_id != other_id and common:
                assert [at for at in one if at in common] == [at for at in other if at in common], (one_id, other_id)

    def _sequences(self) -> list[tuple[str, list[Event | Lost]]]:
        """What each saw. With m = 2 subscribers agree on what they have in common, and not with a Reader."""
        lives = [(follower.name, life.given) for follower in self.world.followers.all for life in follower.lives]
        processes = [(process.id, process.events) for process in self.processes]
        return [*processes, *(lives if self.world.domain.min_subscriptions == 1 else ())]

    def _check_circles(self) -> None:
        """No chain of subscribers, each of whom saw one event before the next, comes back to where it began."""
        after: dict[Place, set[Place]] = {}
        for _, events in self._sequences():
            for one, other in pairwise(map(place, events)):
                after.setdefault(one, set()).add(other)
                after.setdefault(other, set())
        before = dict.fromkeys(after, 0)
        for others in after.values():
            for other in others:
                before[other] += 1
        free = [at for at, count in before.items() if not count]
        done = 0
        while free:
            done += 1
            for other in after[free.pop()]:
                before[other] -= 1
                if not before[other]:
                    free.append(other)
        assert done == len(after), "the order of all subscribers together has a circle"
