"""Judges a finished World, with naive code of its own: π from the batches' records, sets from the answers on grants."""

from itertools import combinations

from sim_receipts import receipts_of
from sim_sequencer import PiItem, naive_pi
from sim_world import Process, Slot, World

from totalorder.sequencer.control import Answer, Ended, Grant, decode_answer
from totalorder.sequencer.position import decode_saved
from totalorder.sequencer.stamps import Source
from totalorder.subscriber import Event
from totalorder.subscriber.transport import Partition

Place = tuple[Source, int]


def place(event: Event) -> Place:
    return Source(event.kafka_topic, event.topic_id, event.partition), event.offset


class Checker:
    """`check` raises AssertionError where the world broke the promise."""

    def __init__(self, world: World) -> None:
        self.world = world
        log = world.kafka.logs.get(Partition(world.sequencer.names.grants, 0), [])
        answers: dict[int, Answer] = {}
        for record in log:
            assert record.value is not None
            answer = decode_answer(record.value)
            assert answers.setdefault(answer.g, answer) == answer, "an answer was written twice with other content"
        self.answers = [answers[g] for g in sorted(answers)]
        expired: dict[int, int] = {}
        for answer in self.answers:
            if isinstance(answer, Ended) and answer.reason == "expired":
                expired[answer.batch - 1] = expired.get(answer.batch - 1, 0) + 1
        control = world.sequencer.names.control
        self.pi = naive_pi(world.sequencer.batches, control, world.domain.topic_by, expired)
        self._check_control_positions(control)

    def _check_control_positions(self, control: str) -> None:
        offsets = {item.g: item.offset for item in self.pi if item.partition.topic == control}
        found = {answer.g: answer.offset for answer in self.answers if getattr(answer, "offset", -1) >= 0}
        assert found == offsets, "answers do not stand where their control records stand in π"

    def check(self) -> int:
        """Every promise; returns how many events were delivered."""
        for slot in self.world.slots:
            lives = self._lives(slot)
            for life in range(max(lives.values()) + 1):
                self._check_life(slot, lives, life)
            self._check_receipts(slot)
        self._check_pairs()
        self._check_looks()
        return sum(len(process.events) for slot in self.world.slots for process in slot.processes)

    # --- one subscriber -----------------------------------------------------------------------------------------------

    def _lives(self, slot: Slot) -> dict[str, int]:
        """The life of the id that each process (by nonce) belongs to.

        A life ends when a process saves that it gave up what was owed: at the end of the subscription, or by its first
        save with start="new". Then the processes that begin later, and that one itself, are of the next life.
        """
        ends: list[int] = []
        fresh: dict[str, int] = {}
        over: set[str] = set()
        by_nonce = {nonce: process for nonce, process in self.world.by_nonce.items() if process.id == slot.id}
        for index, record in enumerate(self.world.kafka.logs.get(self.world.positions_of(slot.id), [])):
            if record.value is None or not (record.key or b"").startswith(f"{slot.id}/".encode()):
                continue
            saved = decode_saved(record.value)
            if by_nonce[saved.nonce].anew and saved.nonce not in fresh:
                fresh[saved.nonce] = index
                ends.append(index)
            elif not saved.position.topics and not saved.position.pending and saved.nonce not in over:
                over.add(saved.nonce)
                ends.append(index)
        return {
            nonce: sum(end < max(process.positions_seen, fresh.get(nonce, -1) + 1) for end in ends)
            for nonce, process in by_nonce.items()
        }

    def _owed(self, slot: Slot, lives: dict[str, int], life: int) -> list[PiItem]:
        """What this life of the id is owed: π restricted to the set in force at each position."""
        chain = [
            answer
            for answer in self.answers
            if isinstance(answer, Grant | Ended) and answer.id == slot.id and lives[answer.nonce] == life
        ]
        owed = []
        for item in self.pi:
            in_force: tuple[str, ...] = ()
            for answer in chain:
                if answer.g < item.g:
                    if isinstance(answer, Grant):
                        in_force = answer.topics
                    elif answer.reason == "unsubscribed":
                        in_force = ()
            if item.topic in in_force:
                owed.append(item)
        return owed

    def _check_life(self, slot: Slot, lives: dict[str, int], life: int) -> None:
        owed = self._owed(slot, lives, life)
        processes = [self.world.by_nonce[nonce] for nonce, its_life in lives.items() if its_life == life]
        for process in processes:
            self._check_stamps(process)
        if self.world.domain.min_subscriptions == 1:
            self._check_sequence(slot, owed, processes)
        else:
            self._check_by_topic(slot, owed, processes)
        self._check_tags(processes)
        if life == max(lives.values()):
            final = processes[-1]
            delivered = {place(event) for process in processes for event in process.events}
            missing = [item for item in owed if item.place not in delivered]
            assert not missing, f"{slot.id} never got {missing[:3]} ({len(missing)} of {len(owed)}); {final.ended}"

    def _check_stamps(self, process: Process) -> None:
        """g, n and value of what was delivered are those of π."""
        counts: dict[str, int] = {}
        truth: dict[Place, tuple[int, int, str, bytes | None]] = {}
        for item in self.pi:
            if item.topic:
                counts[item.topic] = counts.get(item.topic, 0) + 1
                truth[item.place] = (item.g, counts[item.topic], item.topic, item.value)
        for event in process.events:
            told = truth[place(event)]
            if event.tag == "lost":
                assert self.world.kafka.ids.get(event.kafka_topic) != event.topic_id, f"{event} is not lost"
                told = (*told[:3], None)
            assert (event.g, event.n, event.topic, event.value) == told

    def _check_sequence(self, slot: Slot, owed: list[PiItem], processes: list[Process]) -> None:
        """With m = 1 each process delivers a gapless run of what is owed, from where the last saved position was."""
        index = {item.place: at for at, item in enumerate(owed)}
        low = high = 0
        for process in processes:
            if process.events:
                for event in process.events:
                    assert place(event) in index, f"{slot.id} was not owed {event}"
                indices = [index[place(event)] for event in process.events]
                first = indices[0]
                assert indices == list(range(first, first + len(indices))), f"{slot.id}: {indices}, not in order"
                assert low <= first <= high, f"{slot.id} begins at {first}, should be within {low}..{high}"
                low, high = first + process.durable, max(first + max(process.acked, process.unsure), low)

    def _check_by_topic(self, slot: Slot, owed: list[PiItem], processes: list[Process]) -> None:
        """With m = 2 only the order of each topic is a subscriber's own."""
        done: set[Place] = set()
        for process in processes:
            for topic in self.world.topics:
                expected = [item.place for item in owed if item.topic == topic]
                got = [place(event) for event in process.events if event.topic == topic]
                if got:
                    assert got[0] in expected, f"{slot.id} was not owed {got[0]}"
                    first = expected.index(got[0])
                    assert got == expected[first : first + len(got)], f"{slot.id}: {topic} out of order"
            assert not done & {place(event) for event in process.events}, f"{slot.id} got acknowledged events again"
            done |= {place(event) for event in process.events[: process.durable]}

    def _check_tags(self, processes: list[Process]) -> None:
        """What was handed out before is tagged; and nothing that no former process held ready for its application."""
        before: set[Place] = set()
        held = 0
        for process in processes:
            for event in process.events:
                assert event.tag != "redelivered" or event.g <= held, f"{process.id}: {event} was held by nobody"
                assert event.tag or place(event) not in before, f"{process.id} got {place(event)} again without a tag"
            before |= {place(event) for event in process.events}
            held = max(held, process.held_g)

    def _check_receipts(self, slot: Slot) -> None:
        """No receipt without a delivery, and no saved delivery without a receipt."""
        receipts = receipts_of(self.world.kafka, slot.id)
        for nonce, process in self.world.by_nonce.items():
            if process.id != slot.id:
                continue
            mine = [receipt for receipt in receipts if receipt.nonce == nonce]
            if not process.receipts:
                assert not mine, f"{slot.id}: receipts that were not asked for"
                continue
            sequences = [event.sequence for event in process.events if event.tag != "lost"]
            found = [receipt.sequence for receipt in mine]
            assert found[: len(sequences)] == sequences[: len(found)], f"{slot.id}: gaps"
            handed = [event for event in process.events if event.tag != "lost"]
            for receipt, event in zip(mine, handed, strict=False):
                assert receipt.is_of(event), f"{slot.id}: {receipt} of {event}"
            durable = sum(event.tag != "lost" for event in process.events[: max(process.durable, self._saved(nonce))])
            assert durable <= len(mine) <= len(handed), f"{slot.id}: receipts"
            generations = [receipt.generation for receipt in mine]
            assert generations == sorted(generations), f"{slot.id}: generations fall"

    def _saved(self, nonce: str) -> int:
        """How many deliveries of a process lie within a position that it saved; told for m = 1 only."""
        process = self.world.by_nonce[nonce]
        log = self.world.kafka.logs.get(self.world.positions_of(process.id), [])
        saves = [decode_saved(record.value) for record in log if record.value is not None]
        through = max((saved.position.g for saved in saves if saved.nonce == nonce), default=0)
        return sum(event.g <= through for event in process.events) if self.world.domain.min_subscriptions == 1 else 0

    # --- the cut ------------------------------------------------------------------------------------------------------

    def _check_looks(self) -> None:
        """What was written after a look that already had another record never comes before it, whatever clocks say."""
        written = {item.g: self.world.kafka.written[item.partition, item.offset] for item in self.pi}
        for look in self.world.sequencer.remembered:
            had = (item.g for item in self.pi if written[item.g] <= look.asked.get(item.partition, -1))
            after = (item.g for item in self.pi if written[item.g] > look.end)
            assert max(had, default=0) < min(after, default=10**9), (
                f"a look told them apart, and π inverts them: {look}"
            )

    # --- all subscribers ----------------------------------------------------------------------------------------------

    def _check_pairs(self) -> None:
        """Any two subscribers saw any two common events in one order."""
        sequences = [
            (slot.id, [place(event) for event in process.events])
            for slot in self.world.slots
            for process in slot.processes
            if process.events
        ]
        for (one_id, one), (other_id, other) in combinations(sequences, 2):
            if one_id != other_id:
                common = set(one) & set(other)
                assert [at for at in one if at in common] == [at for at in other if at in common], (one_id, other_id)
