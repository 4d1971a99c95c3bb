"""From a snapshot what was lost is recovered as from the whole past, or it is refused with the reason."""

import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from recovery_world import History, canonical, config_of

from totalorder.errors import Contradiction, Error, StateError, WireError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import step
from totalorder.sequencer.recovery import Recovery, require_all
from totalorder.sequencer.shards import counts_of, of_shards, with_counts
from totalorder.sequencer.snapshot import (
    Snapshot,
    SnapshotAssembler,
    SnapshotMark,
    cut_of,
    decode_mark,
    encode_mark,
    encode_parts,
)
from totalorder.sequencer.state import State, Subscription
from totalorder.sequencer.wire.control import Claim, encode_claim
from totalorder.sequencer.wire.signing import Signatures


def history(seed: int, *, tells: int = 4) -> History:
    """Some batches, a snapshot, some batches, and so on; the last batches have none behind them, or one. Now and then
    somebody writes late what is there already.
    """
    rng = random.Random(seed)
    made = History(rng, config_of(rng))
    while len(made.marks) < tells:
        made.run_and_tell(rng.choice([0, rng.randint(1, 6)]))
        if rng.random() < 0.3:
            made.write_late()
    made.run(rng.choice([0, 0, rng.randint(1, 8)]))
    if rng.random() < 0.5:
        made.write_late()
    return made


def trimmed(seed: int) -> History:
    """One of which retention has removed some; mostly it comes near a place at which much is decided."""
    lost = history(seed)
    lost.trim()
    mark, ends = lost.rng.choice(lost.marks), lost.stamps_ends
    told = mark.stamps_ends or mark.stamps_begins
    near = lost.rng.choice([lost.trimmed, mark.stamps_begins, told, lost.late or ends])
    moved = lost.rng.choice([-1, 0, 0, 1])
    lost.trimmed = [min(max(0, at + moved), end) for at, end in zip(near, ends, strict=True)]
    return lost


def is_known_to_have_all(lost: History, mark: SnapshotMark) -> bool:
    """Whether all is there of where, as the mark tells, what came behind it must lie."""
    return all(begin <= most for begin, most in zip(lost.trimmed, mark.stamps_ends or mark.stamps_begins, strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_what_was_lost_is_recovered_or_refused_wherever_stamps_were_trimmed(seed: int) -> None:
    lost = trimmed(seed)
    for mark in lost.marks:
        if not is_known_to_have_all(lost, mark):
            with pytest.raises(StateError, match=r"stamps\["):
                checked(lost, mark)
            continue
        assert not lost.gone(mark.batch)
        made = checked(lost, mark)
        assert canonical(made.states) == canonical(lost.states)
        assert made.control.next_offset <= lost.handed_over
        assert made.cut == (lost.stamped[-1].cut if made.last else mark.cut)


def checked(lost: History, mark: SnapshotMark) -> Recovery:
    require_all("d", lost.stamps_bounds, behind=mark)
    return lost.recovery(behind=mark)[0]


def test_trimmed_histories_are_of_each_kind() -> None:
    """Else the test above would say nothing."""
    found: Counter[tuple[bool, bool, bool]] = Counter()
    for seed in range(100):
        lost = trimmed(seed)
        for mark in lost.marks:
            found[is_known_to_have_all(lost, mark), lost.gone(mark.batch), has_only_what_is_late(lost, mark)] += 1
    assert min(found[True, False, late] for late in (True, False)) > 8
    assert min(found[False, True, late] for late in (True, False)) > 4
    assert found[False, False, False] > 8, "what has all, and nothing shows it"


def has_only_what_is_late(lost: History, mark: SnapshotMark) -> bool:
    """Whether some partition has records behind a snapshot, and none of a later batch."""
    for records, begin, first in zip(lost.stamps, lost.trimmed, mark.stamps_begins, strict=True):
        batches = {int(headers["batch"]) for _, headers in records[max(begin, first) :]}
        if batches and max(batches) <= mark.batch:
            return True
    return False


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_that_was_cut_anywhere_comes_out_from_a_snapshot_as_it_was(seed: int) -> None:
    lost = history(seed)
    mark = lost.rng.choice(lost.marks)
    batch, before = lost.next_batch(), canonical(lost.states)
    whole = History(random.Random(0), lost.config)
    whole.states, whole.starts = list(lost.states), lost.starts
    size = whole.write(batch, None)
    lost.write(batch, lost.rng.randint(0, size))
    made, log = lost.recovery(behind=mark)
    if made.batch == whole.states[0].hot.batch:
        assert canonical(made.states) == canonical(whole.states)
        assert not log.begun()
        return
    assert canonical(made.states) == before
    after, effects = made.run(batch)
    assert canonical(of_shards([after], lost.config)) == canonical(whole.states)
    digests = {one.partition: one.digest for one in effects.stamps}
    assert all(digests[one.partition] == one.digest for one in log.begun())


@pytest.mark.parametrize("seed", range(20))
def test_other_shards_go_on_from_a_snapshot(seed: int) -> None:
    lost = history(seed)
    shards = lost.rng.randint(1, lost.config.stamps_partitions)
    made, _ = lost.recovery(replace(lost.config, shards=shards), behind=lost.rng.choice(lost.marks))
    for _ in range(5):
        batch, done = lost.next_batch(), len(lost.stamped)
        lost.write(batch, None)
        made.go_on(*made.run(batch))
        if len(lost.stamped) > done:
            expected = {one.partition: one.digest for one in lost.stamped[done:]}
            assert {one.partition: one.digest for one in made.last} == expected


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_the_engine(seed: int) -> None:
    lost = history(seed)
    told = [replace(state, cold=replace(state.cold, counts={})) for state in lost.states]
    assert canonical(list(map(with_counts, told))) == canonical(lost.states)


def test_counts_of_a_hand_made_domain() -> None:
    def held(*topics: int) -> Subscription:
        return Subscription(1, "n", topics, 0, 0, 1, not topics)

    found = counts_of([held(0, 1, 2), held(2, 1), held(3), held()])
    assert found == {0: {1: 1, 2: 1}, 1: {0: 1, 2: 2}, 2: {0: 1, 1: 2}}


# --- asking for one ---------------------------------------------------------------------------------------------------


def claimed(offset: int, owner: str = "lost", incarnation: int = 1, *more: Row) -> Batch:
    claim = encode_claim(Claim(incarnation=incarnation, owner=owner))
    return Batch.of(10**7, [Row("d.control", 0, offset, control=claim), *more], cut=99)


def test_the_jobs_own_claim_asks_for_a_snapshot_and_nobody_elses_does() -> None:
    state = history(1).states[0]
    assert step(state, claimed(900), {}, claimed_at=3)[1].asked_at == 900
    for batch in (claimed(900, "other"), claimed(900, incarnation=3), claimed(3), claimed(2)):
        assert step(state, batch, {}, claimed_at=3)[1].asked_at is None
    assert step(state, claimed(900), {})[1].asked_at is None


def test_a_claim_changes_nothing_beside_the_snapshot() -> None:
    state = history(1).states[0]
    after, effects = step(state, claimed(900), {}, claimed_at=3)
    assert after is state
    assert not effects.stamps
    event = Row("new", 0, 0, topic="x", topic_id="new-1")
    alone, _ = step(state, Batch.of(10**7, [event], cut=99), {})
    beside, effects = step(state, claimed(900, "lost", 1, event), {}, claimed_at=3)
    assert canonical([beside]) == canonical([alone])
    assert (effects.asked_at, effects.events) == (900, 1)


# --- refusals ---------------------------------------------------------------------------------------------------------


def assembled(mark: SnapshotMark, states: list[State]) -> Snapshot:
    assembler = SnapshotAssembler(mark=mark)
    for state in states:
        for record in encode_parts(state, 100):
            assembler.add(record.value, dict(record.headers))
    return assembler.snapshot()


@pytest.fixture
def lost() -> History:
    """With two shards, a subscription and a topic that was retired."""
    for seed in range(999):
        found = history(seed)
        told = found.marks[-1].batch
        while found.marks[-1].batch == told:
            found.run_and_tell(1)
        cold = found.states[0].cold
        if found.config.shards == 2 and cold.retired and cold.subscriptions and cold.sources:
            return found
    raise AssertionError


def test_parts_may_come_twice_and_mixed_and_of_other_batches(lost: History) -> None:
    mark = lost.marks[-1]
    records = list(lost.told)
    lost.rng.shuffle(records)
    assembler = SnapshotAssembler(mark=mark)
    for value, headers in records:
        assembler.add(value, headers)
    found = assembler.snapshot()
    assert canonical(list(map(with_counts, found.states))) == canonical(lost.states)


def test_what_is_missing_or_says_two_things_is_refused(lost: History) -> None:
    mark, (one, other) = lost.marks[-1], lost.states
    with pytest.raises(StateError, match="lacks the state of shard 1"):
        assembled(mark, [one])
    later = replace(other, hot=replace(other.hot, g=other.hot.g + 1))
    with pytest.raises(StateError, match="says two things of shard 1"):
        assembled(mark, [one, other, later])
    with pytest.raises(StateError, match="shards disagree"):
        assembled(mark, [one, later])


def test_a_part_that_is_missing_is_missed_and_a_digest_must_be_that_of_the_state(lost: History) -> None:
    whole, other_digest = SnapshotAssembler(mark=lost.marks[-1]), SnapshotAssembler(mark=lost.marks[-1])
    for state in lost.states:
        records = list(encode_parts(state, 100))
        assert len(records) > 1
        for record in records[1:]:
            whole.add(record.value, dict(record.headers))
        for record in records:
            other_digest.add(record.value, dict(record.headers) | {"digest": b"f" * 32})
    with pytest.raises(StateError, match="lacks the state of shard 0"):
        whole.snapshot()
    with pytest.raises(WireError, match="the state of shard 0 is not what its digest says"):
        other_digest.snapshot()


def test_damaged_parts_are_refused(lost: History) -> None:
    for at in range(0, 400, 7):
        assembler = SnapshotAssembler(mark=lost.marks[-1])
        for state in lost.states:
            for number, record in enumerate(encode_parts(state)):
                value = bytearray(record.value)
                if number == 0 and state is lost.states[0]:
                    value[at % len(value)] ^= 1 << at % 8
                assembler.add(bytes(value), dict(record.headers))
        try:
            found = assembler.snapshot()
        except Error:
            continue
        # Some bits of a frame say nothing.
        assert canonical(list(map(with_counts, found.states))) == canonical(lost.states)


Change = Callable[[State], Any]
HOT: dict[str, Change] = {
    "control_g": lambda state: state.hot.g + 1,
    "clocks": lambda state: state.hot.clocks + state.hot.g + 1,
    "last_g": lambda state: state.hot.last_g + state.hot.g + 1,
    "next_offsets": lambda state: state.hot.next_offsets[1:],
    "digests": lambda state: {0: "f" * 32},
    "owed": lambda state: {len(state.cold.topics): frozenset({0})},
    "rekey": lambda state: frozenset({len(state.cold.topics)}),
    "opening": lambda state: frozenset(range(len(state.cold.topics))),
}
COLD: dict[str, Change] = {
    "kafka_topics": lambda state: state.cold.kafka_topics * 2,
    "retired": lambda state: {**state.cold.retired, len(state.cold.kafka_topics): {}},
    "sources": lambda state: (*state.cold.sources, (len(state.cold.kafka_topics), 0)),
    "topics": lambda state: (*state.cold.topics[:-1], ""),
    "subscriptions": lambda state: {
        **state.cold.subscriptions, "new": Subscription(1, "n", (len(state.cold.topics),), 0, 0, 1, False)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", [*HOT, *COLD])
def test_states_that_no_sequencer_has_are_refused(lost: History, name: str) -> None:
    def changed(state: State) -> State:
        if name in HOT:
            return replace(state, hot=replace(state.hot, **{name: HOT[name](state)}))
        return replace(state, cold=replace(state.cold, **{name: COLD[name](state)}))

    with pytest.raises(StateError, match="is not what a sequencer tells"):
        assembled(lost.marks[-1], [changed(state) for state in lost.states])


def test_the_state_of_another_batch_is_refused(lost: History) -> None:
    mark = lost.marks[-1]
    assembler = SnapshotAssembler(mark=mark)
    for state in lost.snapshot(lost.marks[-2]).states:
        for record in encode_parts(state):
            assembler.add(record.value, dict(record.headers) | {"batch": b"%d" % mark.batch})
    with pytest.raises(StateError, match=f"it is of batch {lost.marks[-2].batch}, and not of {mark.batch}"):
        assembler.snapshot()


def test_a_snapshot_whose_digests_are_not_those_on_stamps_is_a_contradiction() -> None:
    lost = next(found for seed in range(99) if (found := history(seed)).stamped[-1].batch != found.marks[-1].batch)
    mark = lost.marks[-1]
    forged = [
        replace(state, hot=replace(state.hot, digests=dict.fromkeys(state.hot.digests, "f" * 32)))
        for state in lost.snapshot(mark).states
    ]
    lost.told = [(record.value, dict(record.headers)) for state in forged for record in encode_parts(state)]
    record = encode_mark(mark)
    lost.told.append((record.value, dict(record.headers)))
    with pytest.raises(Contradiction):
        lost.recovery(behind=mark)


def of_one_partition(*, stamps_ends: bool) -> History:
    """Two batches, a snapshot, two more; each batch is one record."""
    config = replace(config_of(random.Random(0)), stamps_partitions=1, shards=1)
    for seed in range(999):
        made = History(random.Random(seed), config)
        made.run(2)
        made.run_and_tell(0)
        made.run(2)
        one_each = [int(headers["batch"]) for _, headers in made.stamps[0]] == [1, 2, 3, 4]
        if one_each and (made.marks[0].stamps_ends is not None) == stamps_ends:
            return made
    raise AssertionError


@pytest.mark.parametrize("stamps_ends", [True, False])
@pytest.mark.parametrize("late", [[1], [1, 2], [2], [3], [2, 3], [3, 4]])
def test_what_comes_late_says_nothing_of_what_is_there(late: list[int], stamps_ends: bool) -> None:
    """Where all that came behind the snapshot is there, it takes nothing away; where not, it stands for none."""
    lost = of_one_partition(stamps_ends=stamps_ends)
    (mark,), records = lost.marks, list(lost.stamps[0])
    again = [records[batch - 1] for batch in late]
    lost.stamps[0] += again
    lost.trimmed = [2]
    assert checked(lost, mark).batch == 4
    lost.trimmed = [4]
    with pytest.raises(StateError, match=r"d\.stamps\[0\] begins at offset 4 by now, and is needed from offset 2 on"):
        checked(lost, mark)
    lost.stamps[0], lost.trimmed = records[:2] + again, [2]
    assert checked(lost, mark).batch == max(2, *late)


@pytest.mark.parametrize("late", [[], [1], [1, 2], [3, 4]])
def test_without_a_snapshot_all_is_needed_from_the_first_record_on(late: list[int]) -> None:
    lost = of_one_partition(stamps_ends=True)
    lost.stamps[0] += [lost.stamps[0][batch - 1] for batch in late]
    require_all("d", lost.stamps_bounds)
    assert canonical(lost.recovery()[0].states) == canonical(lost.states)
    for gone in (1, 4, len(lost.stamps[0])):
        lost.trimmed = [gone]
        with pytest.raises(StateError, match=rf"begins at offset {gone} by now, and is needed from offset 0 on"):
            require_all("d", lost.stamps_bounds)


@pytest.mark.parametrize("stamps_ends", [True, False])
def test_stamps_that_end_before_what_a_snapshot_knows_of_them_are_refused(stamps_ends: bool) -> None:
    """As of a topic that was created anew, or whose brokers have lost its end."""
    lost = of_one_partition(stamps_ends=stamps_ends)
    del lost.stamps[0][1:]
    with pytest.raises(StateError, match=r"d\.stamps\[0\] ends at offset 1, and had reached offset 2"):
        checked(lost, lost.marks[0])


@pytest.mark.parametrize("name", ["min_subscriptions", "keyframe_every", "topic_by"])
def test_other_settings_are_named(lost: History, name: str) -> None:
    given: dict[str, Any] = {"keyframe_every": 77, "topic_by": "topic"}
    given["min_subscriptions"] = 3 - lost.config.min_subscriptions
    with pytest.raises(StateError, match=f"the domain has {name} = "):
        lost.recovery(replace(lost.config, **{name: given[name]}), behind=lost.marks[-1])


def test_former_control_keys_are_asked_for() -> None:
    rng = random.Random(4)
    lost = History(rng, config_of(rng), signatures=Signatures(keys=("k" * 32, "l" * 32), domain="d"))
    lost.run_and_tell(12)
    mark = lost.marks[-1]
    assert "k" * 32 not in encode_mark(mark).value.decode()
    for keys in (("k" * 32,), ("new" * 11, "k" * 32)):
        lost.signatures = Signatures(keys=keys, domain="d")
        with pytest.raises(StateError, match=r"judged by 2 control keys .* 1 of them are not in control_key_file"):
            lost.recovery(behind=mark)
    lost.signatures = Signatures(keys=("new" * 11, "l" * 32, "k" * 32), domain="d")
    made, _ = lost.recovery(behind=mark)
    assert canonical(made.states) == canonical(lost.states)


# --- marks ------------------------------------------------------------------------------------------------------------


def test_a_mark_is_read_as_it_was_written_and_gives_its_cut(lost: History) -> None:
    for mark in lost.marks:
        record = encode_mark(mark)
        assert decode_mark(record.value, dict(record.headers), "d") == mark
        cut = cut_of(mark)
        assert dict(zip(cut.sources, cut.ends.tolist(), strict=True)) == mark.ends
    part = next(encode_parts(lost.states[0]))
    assert decode_mark(part.value, dict(part.headers), "d") is None


@pytest.mark.parametrize(
    "changed",
    [
        {"domain": "other"},
        {"batch": 0},
        {"batch": 1.0},
        {"incarnation": True},
        {"shards": 99},
        {"cut": -1},
        {"ends": []},
        {"ends": [["d.control", "", [[0, -1]]]]},
        {"ends": [["d.control", "", [[0, 1], [1, 1]]]]},
        {"starts": [["k", "i", [["0", 1]]]]},
        {"topic_order": ["a", "a"]},
        {"topic_order": None},
        {"stamps_begins": []},
        {"stamps_ends": [1] * 77},
        {"stamps_begins": [7, 8], "stamps_ends": [8, 7]},
        {"keys": [7]},
    ],
)
def test_a_mark_that_no_sequencer_writes_is_refused(lost: History, changed: Mapping[str, Any]) -> None:
    record = encode_mark(lost.marks[-1])
    value = json.dumps(json.loads(record.value) | changed).encode()
    with pytest.raises(WireError, match=r"a mark of d\.state cannot be read"):
        decode_mark(value, dict(record.headers), "d")


@pytest.mark.parametrize("headers", [{}, {"kind": b"stamps"}, {"kind": b"mark", "version": b"2"}])
def test_records_of_another_kind_or_version_are_refused(headers: dict[str, bytes]) -> None:
    with pytest.raises(WireError, match="a record of state"):
        decode_mark(b"{}", headers, "d")


def test_parts_that_no_sequencer_writes_are_refused(lost: History) -> None:
    mark = lost.marks[-1]
    (record, *_) = encode_parts(lost.states[0])
    headers = dict(record.headers)
    for name, odd in (("part", b"9"), ("parts", b"99999"), ("shard", b"2"), ("batch", b"x"), ("digest", b"\xff")):
        with pytest.raises(WireError, match=r"a record of d\.state is not usable"):
            SnapshotAssembler(mark=mark).add(record.value, headers | {name: odd})
    with pytest.raises(WireError, match="is part 0 of"):
        SnapshotAssembler(mark=mark).add(None, headers)
