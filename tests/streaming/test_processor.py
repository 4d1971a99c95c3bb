"""The stateful group without Spark around it: frames, state, records, errors."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from chunked import chunk_of, frame_of
from hostile import unzstd
from hypothesis import given, settings, strategies as st

from totalorder.config import make_settings
from totalorder.errors import Defect, Error
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import EngineConfig, initial_state, step
from totalorder.sequencer.stamper import Stamper
from totalorder.sequencer.state import State, decode_cold, decode_hot, encode_cold, encode_hot
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.control import Answer, Claim, Subscribe, decode_answer, encode_claim, encode_request
from totalorder.streaming.cut.batches import CHUNK, TIME_MS
from totalorder.streaming.cut.rows import Seed, encode_seed
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.failures import WorkerFailure, error_from
from totalorder.streaming.processor import OUTPUT, ShardPlan, ShardProcessor, remembered
from totalorder.streaming.written import Tail

DOMAIN = "d"
CONTROL = "d.control"


class Value:
    """A ValueState that keeps what is written, by grouping key, and notes what is read."""

    def __init__(self) -> None:
        self.kept: dict[str, bytearray] = {}
        self.read: list[str] = []
        self.part = "hot"

    def set_implicit_key(self, key: tuple[int]) -> None:
        self.part = "hot" if key[0] >= 0 else "cold"

    def get(self) -> tuple[bytearray] | None:
        self.read.append(self.part)
        return (self.kept[self.part],) if self.part in self.kept else None

    def update(self, value: tuple[bytes]) -> None:
        self.kept[self.part] = bytearray(value[0])


class Handle:
    """Hands out the value of the state's parts, to a worker that remembers none of them."""

    def __init__(self) -> None:
        self.parts = self._statefulProcessorApiClient = Value()
        remembered.clear()

    def getValueState(self, name: str, schema: object) -> Value:  # noqa: N802
        return self.parts


def config(**more: Any) -> EngineConfig:
    return EngineConfig(**{"domain": DOMAIN, "identity": "test", "stamps_partitions": 2, "topic_by": "key", **more})


def processor(
    handle: Handle,
    *,
    tails: Mapping[int, Tail] | None = None,
    fail: bool = False,
    recovered: bool = False,
    claim: int | None = None,
    **more: Any,
) -> ShardProcessor:
    engine = config(**more)
    plan = ShardPlan(
        config=engine,
        shard_of={10 + shard: shard for shard in range(engine.shards)},
        starts={},
        source=SourceSettings.of(make_settings(topics=("a",), checkpoint_dir="x", domain=DOMAIN), "folder"),
        tails=tails or {},
        fail_unroutable=fail,
        is_recovered=recovered,
        claim=claim,
    )
    made = ShardProcessor(plan)
    made.init(handle)  # type: ignore[arg-type]
    return made


def frame(rows: Sequence[Row], time_ms: int = 1000) -> pd.DataFrame:
    """Rows as the source hands them over."""
    return frame_of([chunk_of(rows)], time_ms)


def run(made: ShardProcessor, frames: list[pd.DataFrame], key: int = 10) -> pd.DataFrame:
    (output,) = made.handleInputRows((np.int32(key),), iter(frames), None)
    assert list(output.columns) == OUTPUT.names
    return output


def contents(output: pd.DataFrame) -> tuple[list[Answer], list[tuple[int, int, str]]]:
    """Answers, and (partition, batch, digest) of the stamped batches of an output."""
    answers: list[Answer] = []
    batches: list[tuple[int, int, str]] = []
    assemblers = {partition: StampsAssembler(domain=DOMAIN, partition=partition) for partition in range(8)}
    records: list[dict[Any, Any]] = output.to_dict("records")
    for record in records:
        if record["topic"] == "d.grants":
            answers.append(decode_answer(record["value"]))
        else:
            assert record["topic"] == "d.stamps"
            headers = {header["key"]: header["value"] for header in record["headers"]}
            done = assemblers[record["partition"]].add(record["value"], headers)
            if done is not None:
                batches.append((done.partition, done.batch, done.digest))
    return answers, batches


def request(id_: str, topics: Sequence[str], generation: int = 1) -> bytes:
    return encode_request(
        Subscribe(id=id_, generation=generation, nonce="n", topics=tuple(topics), lease_s=0, stamps_ends={0: 0, 1: 0})
    )


def events(count: int, first: int = 0) -> list[Row]:
    return [
        Row("all", at % 3, at // 3, 900 + at % 7, f"t{at % 4}", crc=(at * 7919) % 2**32)
        for at in range(first, first + count)
    ]


def test_the_first_batch_then_the_next() -> None:
    handle = Handle()
    made = processor(handle)
    rows = [*events(30), Row(CONTROL, 0, 0, 905, control=request("s", ["t0", "t1"]))]
    first = run(made, [frame(rows)])
    answers, batches = contents(first)
    assert len(answers) == 1
    assert [batch[:2] for batch in batches] == [(0, 1), (1, 1)]
    told = figures(first)
    assert [told[name] for name in ("batch", "events", "controls", "g_first", "g_last")] == [1, 30, 1, 1, 31]
    second = run(made, [frame(events(30, first=30), 2000)])
    assert figures(second)["g_first"] == 32
    assert [batch[1] for batch in contents(second)[1]] == [2, 2]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_frames_cut_and_permuted_give_identical_content(data: st.DataObject) -> None:
    rows = [*events(40), Row(CONTROL, 0, 0, 903, control=request("s", ["t0", "t3"])), Row("all", 1, 50, 950, "")]
    expected = contents(run(processor(Handle()), [frame(rows)]))
    shuffled = data.draw(st.permutations(rows))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(rows) - 1), max_size=6)))
    pieces = [frame(shuffled[a:b]) for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    assert contents(run(processor(Handle()), pieces)) == expected


def test_what_comes_out_over_several_batches_is_what_the_engine_gives() -> None:
    state, made = initial_state(config()), processor(Handle())
    for number, topics in enumerate([(), ("t0", "t3"), (), ("t0", "t1")]):
        rows = events(25, first=25 * number)
        if topics:
            rows.append(Row(CONTROL, 0, number, 903, control=request("s", topics, generation=number)))
        state, effects = step(state, Batch.of(1000, rows), {})
        answers, batches = contents(run(made, [frame(rows)]))
        assert answers == list(effects.answers)
        assert batches == [(stamped.partition, number + 1, stamped.digest) for stamped in effects.stamps]


def test_a_control_record_without_a_value_is_answered() -> None:
    answers, _ = contents(run(processor(Handle()), [frame([Row(CONTROL, 0, 0, 3, control=b"")])]))
    assert len(answers) == 1


def test_a_batch_of_claims_alone_writes_nothing_and_is_no_batch() -> None:
    claim = Row(CONTROL, 0, 0, 3, control=encode_claim(Claim(incarnation=1, owner="me")))
    handle = Handle()
    made = processor(handle)
    assert run(made, [frame([claim])]).empty
    assert handle.parts.kept == {}
    expected = contents(run(processor(Handle()), [frame(events(5))]))
    assert contents(run(made, [frame([claim, *events(5)])])) == expected
    kept = dict(handle.parts.kept)
    assert run(made, [frame([claim, claim._replace(offset=1)])]).empty
    assert handle.parts.kept == kept


def seed_frame(states: Sequence[State]) -> pd.DataFrame:
    """The rows that a recovered checkpoint's first batch brings to every shard."""
    rows = [
        encode_seed(Seed(shard=state.cold.config.shard, hot=encode_hot(state.hot), cold=encode_cold(state.cold)))
        for state in states
    ]
    return pd.DataFrame({CHUNK: rows, TIME_MS: [1000] * len(rows)})


def test_a_recovered_checkpoint_goes_on_with_the_states_that_its_first_batch_brings() -> None:
    batch = Batch.of(1000, events(30))
    states = [step(initial_state(config(shards=2, shard=shard)), batch, {})[0] for shard in (0, 1)]
    for shard, state in enumerate(states):
        handle = Handle()
        made = processor(handle, recovered=True, shards=2)
        assert run(made, [seed_frame(states)], 10 + shard).empty
        _, effects = step(state, Batch.of(2000, events(20, first=30)), {})
        _, batches = contents(run(made, [frame(events(20, first=30), 2000)], 10 + shard))
        assert batches == [(stamped.partition, 2, stamped.digest) for stamped in effects.stamps]
        with pytest.raises(WorkerFailure, match="or has one"):
            run(made, [seed_frame(states)], 10 + shard)
        with pytest.raises(WorkerFailure, match="given 0 states"):
            run(processor(Handle(), recovered=True, shards=2), [seed_frame(states[1 - shard :][:1])], 10 + shard)


def test_a_recovered_checkpoint_never_begins_without_a_state_or_with_anothers() -> None:
    with pytest.raises(WorkerFailure, match="state is missing"):
        run(processor(Handle(), recovered=True), [frame(events(3))])
    other = initial_state(config(identity="another"))
    with pytest.raises(WorkerFailure, match="identity"):
        run(processor(Handle(), recovered=True), [seed_frame([other])])


def test_a_job_whose_domain_was_taken_over_stops_before_it_stamps() -> None:
    claim = Row(CONTROL, 0, 7, 3, control=encode_claim(Claim(incarnation=2, owner="recovered")))
    handle = Handle()
    with pytest.raises(WorkerFailure, match="taken over"):
        run(processor(handle, claim=6), [frame([*events(3), claim])])
    assert handle.parts.kept == {}


def figures(output: pd.DataFrame) -> dict[str, Any]:
    """Read as Spark hands them on: the greatest text of the column."""
    found: dict[str, Any] = json.loads(output["figures"].max())
    return found


def test_only_shard_0_answers_and_counts() -> None:
    rows = [*events(9), Row(CONTROL, 0, 0, 903, control=request("s", ["t0"])), Row("all", 0, 9, 950, "")]
    outputs = [run(processor(Handle(), shards=2), [frame(rows)], key) for key in (10, 11)]
    assert [len(contents(output)[0]) for output in outputs] == [1, 0]
    assert figures(outputs[0]) == {
        "batch": 1,
        "g_first": 1,
        "g_last": 10,
        "events": 9,
        "controls": 1,
        "unroutable": 1,
        "unroutable_at": "all[0]@9",
        "late": 0,
        "unsigned": 0,
        "retired": [],
        "is_batch": True,
        "asked_at": None,
        "skipped": [],
    }
    assert (outputs[1]["figures"] == "").all()
    assert [contents(output)[1][0][0] for output in outputs] == [0, 1]


def test_many_unroutable_events_are_counted_and_some_are_named() -> None:
    output = run(processor(Handle()), [frame([Row("all", 0, at, 1, "") for at in range(50)])])
    found = figures(output)
    assert found["unroutable"] == 50
    assert found["unroutable_at"].endswith("and 30 more")


def test_an_unroutable_event_can_be_an_error() -> None:
    handle = Handle()
    with pytest.raises(WorkerFailure) as caught:
        run(processor(handle, fail=True), [frame([*events(3), Row("all", 0, 7, 1, "")])])
    error = error_from(str(caught.value))
    assert type(error) is Error
    assert "all[0]@7" in str(error)
    assert handle.parts.kept == {}


def test_lost_state_is_never_taken_for_a_beginning() -> None:
    with pytest.raises(WorkerFailure, match=r"StateError.*stands at batch 0, and stamps have batch 9"):
        run(processor(Handle(), tails={1: Tail(batch=9, time_ms=1, digest="d")}), [frame(events(3))])


def tails_of(output: pd.DataFrame, time_ms: int = 1000) -> dict[int, Tail]:
    """What stamps end with after this output."""
    return {part: Tail(batch=batch, time_ms=time_ms, digest=digest) for part, batch, digest in contents(output)[1]}


class Stopped:
    """A domain of two batches whose second one was written and perhaps not committed."""

    def __init__(self) -> None:
        self.handle = Handle()
        self.first = tails_of(run(processor(self.handle), [frame(events(3))]))
        self.before = dict(self.handle.parts.kept)
        output = run(processor(self.handle), [frame(events(3, first=3))])
        self.second, self.records = tails_of(output), contents(output)

    def again(self, tails: Mapping[int, Tail], rows: Sequence[Row], time_ms: int = 1000) -> pd.DataFrame:
        self.handle.parts.kept = dict(self.before)
        return run(processor(self.handle, tails=tails), [frame(rows, time_ms)])


@pytest.mark.parametrize("reached", [(), (0,), (1,), (0, 1)])
def test_a_batch_that_was_written_and_not_committed_runs_again(reached: tuple[int, ...]) -> None:
    """Whichever partitions the first attempt reached."""
    stopped = Stopped()
    tails = {part: (stopped.second if part in reached else stopped.first)[part] for part in (0, 1)}
    assert contents(stopped.again(tails, events(3, first=3))) == stopped.records


def test_a_claim_alone_behind_a_restart_is_no_batch_that_runs_again() -> None:
    """A sequencer that came too late to claim the domain writes one; it must not end the other's job."""
    handle = Handle()
    _, batches = contents(run(processor(handle), [frame(events(3), 1000)]))
    tails = {part: Tail(batch=batch, time_ms=1000, digest=digest) for part, batch, digest in batches}
    remembered.clear()
    claim = Row(CONTROL, 0, 1, 905, control=encode_claim(Claim(incarnation=1, owner="late")))
    assert run(processor(handle, tails=tails), [frame([claim], 2000)]).empty


def told(output: pd.DataFrame) -> tuple[list[State], pd.DataFrame]:
    """The states that an output tells, whole ones, and the output without them."""
    states = []
    for row in output[output.topic == "d.state"].to_dict("records"):
        headers = {header["key"]: header["value"].decode() for header in row["headers"]}
        assert (row["partition"], row["key"], headers["kind"], headers["parts"]) == (0, None, "part", "1")
        raw = unzstd(row["value"])
        middle = 8 + int.from_bytes(raw[:8], "little")
        states.append(State(hot=decode_hot(raw[8:middle]), cold=decode_cold(raw[middle:])))
    return states, output[output.topic != "d.state"]


def test_the_jobs_own_claim_has_the_state_told_behind_its_batch() -> None:
    handle, twin = Handle(), Handle()
    claims = [
        Row(CONTROL, 0, at, 905, control=encode_claim(Claim(incarnation=1, owner=owner)))
        for at, owner in enumerate(["test", "other", "test"], 4)
    ]
    run(processor(handle, claim=3), [frame(events(3))])
    run(processor(twin), [frame(events(3))])
    expected = contents(run(processor(twin), [frame(events(3, first=3))]))
    output = run(processor(handle, claim=3), [frame([*claims, *events(3, first=3)])])
    (state,), rest = told(output)
    assert contents(rest) == expected
    assert json.loads(output.figures[0])["asked_at"] == 6
    assert encode_hot(state.hot) == bytes(handle.parts.kept["hot"])[16:]
    assert handle.parts.kept["hot"][16:] == twin.parts.kept["hot"][16:]
    kept = dict(handle.parts.kept)

    output = run(processor(handle, claim=3), [frame([claims[0]._replace(offset=9)], 3000)])
    (again,), rest = told(output)
    assert rest.empty
    assert encode_hot(again.hot) == encode_hot(state.hot)
    assert handle.parts.kept == kept
    figures = json.loads(output.figures[0])
    assert (figures["batch"], figures["is_batch"], figures["asked_at"], figures["events"]) == (2, False, 9, 0)
    assert figures["g_first"] == figures["g_last"] + 1


@pytest.mark.parametrize("reached", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(("more", "time_ms"), [(1, 1000), (0, 1001)])
def test_a_batch_that_is_on_stamps_is_never_written_with_other_content(
    reached: tuple[int, ...], more: int, time_ms: int
) -> None:
    stopped = Stopped()
    tails = {part: stopped.second[part] for part in reached}
    with pytest.raises(WorkerFailure, match=r"StateError.*batch 2 of stamps partition . has the digest .* an old copy"):
        stopped.again(tails, events(3 + more, first=3), time_ms)
    assert stopped.handle.parts.kept == stopped.before


def test_a_shard_sees_another_content_also_where_only_another_shard_had_written() -> None:
    rows, elsewhere = [frame(events(3), 1001)], {1: Tail(batch=1, time_ms=1000, digest="d")}
    with pytest.raises(WorkerFailure, match=r"batch 1 of stamps partition 1 .* 1000, and by this checkpoint"):
        run(processor(Handle(), shards=2, tails=elsewhere), rows, key=10)


def test_stamps_that_do_not_continue_the_state_are_an_error() -> None:
    handle = Handle()
    (tail, *_) = tails_of(run(processor(handle), [frame(events(3))])).values()
    foreign = {0: Tail(batch=tail.batch, time_ms=tail.time_ms, digest="f" * 32)}
    with pytest.raises(WorkerFailure, match=r"batch 1 of stamps partition 0 has the digest ffff"):
        run(processor(handle, tails=foreign), [frame(events(3, first=3))])


def test_what_stamps_held_at_the_start_counts_for_no_later_batch() -> None:
    handle = Handle()
    tails = tails_of(run(processor(handle), [frame(events(3))]))
    made = processor(handle, tails=tails)
    for number in range(1, 4):
        run(made, [frame(events(3, first=3 * number), 1000 + number)])


@pytest.mark.parametrize("half", ["hot", "cold"])
def test_half_a_state_is_an_error(half: str) -> None:
    handle = Handle()
    run(processor(handle), [frame(events(3))])
    del handle.parts.kept[half]
    with pytest.raises(WorkerFailure, match=f"the {half} state is missing"):
        run(processor(handle), [frame(events(3, first=3))])


def test_a_worker_reads_the_cold_state_once_for_each_change_of_it() -> None:
    handle = Handle()
    made = processor(handle)
    for number in range(4):
        run(made, [frame(events(3, first=3 * number))])
    request_row = Row(CONTROL, 0, 0, 905, control=request("s", ["t0", "t1"]))
    run(made, [frame([*events(3, first=12), request_row])])
    run(made, [frame(events(3, first=15))])
    # The second batch brings a topic, the fifth a subscription.
    assert handle.parts.read == ["hot", "cold", "hot", "cold", "hot", "cold", "hot", "hot", "hot", "cold"]


def test_a_cold_state_of_another_moment_is_an_error() -> None:
    handle = Handle()
    made = processor(handle)
    run(made, [frame(events(1))])
    former = handle.parts.kept["cold"]
    run(made, [frame(events(3, first=1))])
    assert handle.parts.kept["cold"] != former
    handle.parts.kept["cold"] = former
    with pytest.raises(WorkerFailure, match=r"the cold state is missing, or of another"):
        run(made, [frame(events(3, first=4))])


def test_a_worker_remembers_one_cold_state_of_each_shard() -> None:
    handles = {10: Handle(), 11: Handle()}
    for number in range(3):
        rows = [frame(events(3 + number, first=10 * number))]
        for key, handle in handles.items():
            run(processor(handle, shards=2), rows, key)
    assert remembered.keys() == {("test", 0), ("test", 1)}
    for shard, key in enumerate(handles):
        digest, cold = remembered["test", shard]
        assert cold.config.shard == shard
        assert bytes(handles[key].parts.kept["hot"]).startswith(digest)


def test_damaged_state_is_an_error() -> None:
    handle = Handle()
    run(processor(handle), [frame(events(3))])
    handle.parts.kept["hot"][40] ^= 1
    with pytest.raises(WorkerFailure, match=r"StateError.*hot state is damaged"):
        run(processor(handle), [frame(events(3, first=3))])


def test_another_setting_than_the_state_was_made_with() -> None:
    handle = Handle()
    run(processor(handle), [frame(events(3))])
    with pytest.raises(WorkerFailure, match="min_subscriptions"):
        run(processor(handle, min_subscriptions=2), [frame(events(3, first=3))])


def test_an_offset_that_comes_twice_is_an_error() -> None:
    handle = Handle()
    made = processor(handle)
    run(made, [frame(events(6))])
    with pytest.raises(WorkerFailure, match="comes a second time"):
        run(made, [frame(events(6))])


def test_rows_that_bring_no_record_leave_the_state_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle()
    run(processor(handle), [frame([Row("a", 0, 0, 1, "a", 7)])])
    kept = {part: bytes(value) for part, value in handle.parts.kept.items()}
    monkeypatch.setattr("totalorder.streaming.processor.chunks_of", lambda *_: iter(()))
    output = run(processor(handle), [frame([Row("a", 0, 1, 1, "a", 7)])])
    assert len(output) == 0
    assert {part: bytes(value) for part, value in handle.parts.kept.items()} == kept


def test_what_does_not_hold_of_the_engine_is_told_as_a_defect_and_what_others_assert_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("of theirs")

    made = processor(Handle())
    with monkeypatch.context() as theirs:
        theirs.setattr("totalorder.streaming.processor.step", fail)
        with pytest.raises(AssertionError, match="of theirs"):
            run(made, [frame(events(3))])
    stamp = Stamper.stamp

    def stamp_and_skip(stamper: Stamper, **run: Any) -> None:
        stamp(stamper, **run)
        stamper.g += 1

    monkeypatch.setattr(Stamper, "stamp", stamp_and_skip)
    with pytest.raises(WorkerFailure) as failed:
        run(made, [frame(events(3))])
    found = error_from(str(failed.value))
    assert isinstance(found, Defect)
    assert "an invariant of totalorder does not hold: g 0 to 4 for 3 events, 0 answers (totalorder.seq" in str(found)
    assert isinstance(failed.value.__cause__, AssertionError)
