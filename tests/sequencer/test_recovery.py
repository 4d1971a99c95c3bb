"""What is recovered from Kafka is what was lost, wherever the job was killed."""

import random
from contextlib import suppress
from dataclasses import replace

import pytest
from recovery_world import History, Record, canonical, config_of

from totalorder.errors import Contradiction, StateError
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import step
from totalorder.sequencer.recovery import ControlLog, StampsLog
from totalorder.sequencer.shards import of_shards
from totalorder.sequencer.wire.control import Answer, Claim, Grant, encode_answer, encode_claim
from totalorder.sequencer.wire.signing import Signatures


def history(seed: int, batches: int = 20) -> History:
    rng = random.Random(seed)
    made = History(rng, config_of(rng))
    made.run(batches)
    return made


def replace_bounds(answer: Answer) -> Answer:
    """Lower bounds of offsets may be lower: stamps do not tell when a record without a topic came."""
    return replace(answer, next_offsets={}) if isinstance(answer, Grant) else answer


@pytest.mark.parametrize("seed", range(30))
def test_recovered_is_what_was_lost(seed: int) -> None:
    lost = history(seed)
    made, log = lost.recovery()
    assert not log.begun()
    assert canonical(made.states) == canonical(lost.states)
    assert made.control.next_offset <= lost.handed_over


def is_refused(lost: History) -> bool:
    with suppress(StateError):
        lost.recovery()
        return False
    return True


def test_what_was_signed_is_recovered_with_the_keys_that_it_was_signed_with() -> None:
    refused = 0
    for seed in range(6):
        rng = random.Random(seed)
        lost = History(rng, config_of(rng), signatures=Signatures(keys=("k" * 32,), domain="d"))
        lost.run(20)
        made, _ = lost.recovery()
        assert canonical(made.states) == canonical(lost.states)
        lost.signatures = Signatures(keys=("another" * 5,), domain="d")
        refused += is_refused(lost)
    assert refused >= 4, "in some histories no subscription came to anything"


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_that_was_cut_anywhere_is_seen_and_comes_out_as_it_was(seed: int) -> None:
    lost = history(seed, batches=12)
    batch = lost.next_batch()
    before = canonical(lost.states)
    whole = History(random.Random(0), lost.config)
    whole.states, whole.starts = list(lost.states), lost.starts
    size = whole.write(batch, None)
    crash_after = lost.rng.randint(0, size)
    answered = len(lost.answers)
    lost.write(batch, crash_after)
    made, log = lost.recovery()
    if made.batch == whole.states[0].hot.batch:  # all stamps were there
        assert canonical(made.states) == canonical(whole.states)
        assert not log.begun()
        if size:
            assert [replace_bounds(one) for one in made.answers] == [replace_bounds(one) for one in whole.answers]
        return
    assert canonical(made.states) == before
    begun = log.begun()
    assert all((one.batch, one.time_ms, one.cut) == (made.batch + 1, batch.time_ms, batch.cut) for one in begun)
    after, effects = made.run(batch)
    assert canonical(of_shards([after], lost.config)) == canonical(whole.states)
    digests = {one.partition: one.digest for one in effects.stamps}
    assert all(digests[one.partition] == one.digest for one in begun)
    answers = [encode_answer(answer) for answer in effects.answers]
    assert [encode_answer(answer) for answer in lost.answers[answered:]] == answers[: len(lost.answers) - answered]


@pytest.mark.parametrize("seed", range(8))
def test_goes_on_with_other_shards_as_the_lost_job_would_have(seed: int) -> None:
    lost = history(seed)
    shards = lost.rng.randint(1, lost.config.stamps_partitions)
    made, _ = lost.recovery(replace(lost.config, shards=shards))
    done = len(lost.stamped)
    for _ in range(5):
        batch = lost.next_batch()
        lost.write(batch, None)
        made.go_on(*made.run(batch))
        if len(lost.stamped) == done:
            continue
        expected = {one.partition: one.digest for one in lost.stamped[done:]}
        assert {one.partition: one.digest for one in made.last} == expected
        done = len(lost.stamped)


def begun_parts(lost: History, at: int) -> list[Record]:
    """The first parts of batches that came in parts."""
    return [record for record in lost.stamps[at] if record[1]["part"] == b"0" and record[1]["parts"] != b"1"]


def test_parts_of_an_attempt_say_what_was_begun_and_those_of_older_batches_do_not() -> None:
    lost = next(found for seed in range(99) if begun_parts(found := history(seed), 0))
    lost.stamps[0].append(begun_parts(lost, 0)[0])
    made, log = lost.recovery()
    assert not log.begun()
    whole = History(random.Random(0), lost.config)
    whole.states, whole.starts = lost.states, lost.starts
    while not begun_parts(whole, 0):
        batch = lost.next_batch()
        whole.stamps[0].clear()
        whole.write(batch, None)
        whole.states = lost.states
    lost.stamps[0].append(begun_parts(whole, 0)[0])
    _, log = lost.recovery()
    assert [(one.partition, one.batch, one.time_ms) for one in log.begun()] == [(0, made.batch + 1, batch.time_ms)]


def test_a_later_incarnation_goes_on_from_an_earlier_one() -> None:
    lost = history(3)
    made, _ = lost.recovery()
    lost.states = [
        replace(state, cold=replace(state.cold, config=replace(state.cold.config, incarnation=2)))
        for state in made.states
    ]
    lost.run(10)
    again, _ = lost.recovery()
    assert canonical(again.states) == canonical(lost.states)
    assert again.states[0].cold.config.incarnation == 2


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_stamps_that_were_removed_are_missed() -> None:
    lost = history(1)
    log = StampsLog("d", lost.config.stamps_partitions)
    headers = [dict(headers) for _, headers in lost.stamps[0]]
    second = next(at for at, found in enumerate(headers) if found["batch"] == b"2")
    value, found = lost.stamps[0][second]
    with pytest.raises(StateError, match="goes from batch 0 to 2"):
        log.add(0, value, found, 7)


def test_other_settings_are_refused() -> None:
    lost = next(found for seed in range(99) if (found := history(seed)).config.keyframe_every == 3)
    config = lost.config
    with pytest.raises(StateError, match="keyframe_every is 2"):
        lost.recovery(replace(config, keyframe_every=2))
    with pytest.raises(StateError, match=f"min_subscriptions = {config.min_subscriptions}"):
        lost.recovery(replace(config, min_subscriptions=3 - config.min_subscriptions))
    with pytest.raises(StateError, match=f"stamps_partitions = {config.stamps_partitions}"):
        lost.recovery(replace(config, stamps_partitions=config.stamps_partitions + 1))


def test_a_changed_request_is_refused() -> None:
    """A subscription that stamps contradict cannot be recovered in silence."""
    refused = 0
    for seed in range(12):
        lost = history(seed)
        lost.control = [value.replace(b'"subscribe"', b'"subscribed"') for value in lost.control]
        try:
            lost.recovery()
        except StateError:
            refused += 1
    assert refused > 8


def test_control_that_was_cut_short_is_refused() -> None:
    lost = next(found for seed in range(99) if (found := history(seed)).states[0].hot.control_g)
    lost.control.clear()
    with pytest.raises(StateError, match="more requests than control has"):
        lost.recovery()


def test_partitions_that_are_two_batches_apart_are_refused() -> None:
    lost = next(found for seed in range(99) if (found := history(seed)).config.stamps_partitions > 1)
    last = {headers["batch"] for _, headers in lost.stamps[1][-2:]} | {lost.stamps[1][-1][1]["batch"]}
    lost.stamps[1] = [record for record in lost.stamps[1] if int(record[1]["batch"]) < int(max(last, key=int)) - 1]
    _, log = lost.recovery()
    with pytest.raises(StateError, match="not in all partitions"):
        log.begun()


def test_two_contents_of_one_batch_are_a_contradiction() -> None:
    lost, other = history(7, batches=10), history(7, batches=9)
    done = len(other.stamps[0])
    other.time_ms += 1
    other.run(1)
    assert len(other.stamps[0]) > done, "another seed, please"
    lost.stamps[0] += other.stamps[0][done:]
    with pytest.raises(Contradiction, match="twice"):
        lost.recovery()


def test_a_job_whose_domain_was_taken_over_stops() -> None:
    lost = history(2)
    state = lost.states[0]

    def claimed(incarnation: int, offset: int) -> Batch:
        claim = encode_claim(Claim(incarnation=incarnation, owner="recovered"))
        return Batch.of(lost.time_ms, [Row("d.control", 0, offset, control=claim)], cut=lost.cut + 1)

    with pytest.raises(StateError, match="taken over by the checkpoint with the identity recovered, in incarnation 2"):
        step(state, claimed(2, 900), {}, claimed_at=899)
    for incarnation, offset in ((1, 900), (3, 900), (2, 899), (2, 3)):  # of nobody, or from before its own
        assert step(state, claimed(incarnation, offset), {}, claimed_at=899)[0] is state


def test_control_tells_what_comes_next_and_passes_claims_over() -> None:
    log = ControlLog([(3, b"a"), (4, encode_claim(Claim(incarnation=1, owner="o"))), (7, b"b")])
    assert log.upcoming() == 3
    assert log.take(1) == [(3, b"a")]
    assert (log.next_offset, log.upcoming()) == (4, 7)
    assert log.take(1) == [(7, b"b")]
    assert log.upcoming() is None
