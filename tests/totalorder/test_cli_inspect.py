"""`totalorder inspect` on a Kafka in memory: all stamps partitions as one list, by batch."""

import json
import random
from collections.abc import Callable

import pytest
from sim_kafka import SimKafka, SimTransport

from totalorder.cli.app import main
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import EngineConfig, State, initial_state, step
from totalorder.sequencer.wire.codec import encode_stamps
from totalorder.sequencer.wire.control import Retired, Skipped, encode_answer
from totalorder.subscriber.transport import Partition

DOMAIN, STAMPS, PARTITIONS, BATCHES = "shop", "shop.stamps", 4, 5
TOPICS = [f"topic-with-a-longer-name-{number}" for number in range(6)]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kafka() -> SimKafka:
    """Each batch has one event of each topic, and a record in each stamps partition."""
    kafka = SimKafka()
    kafka.create(STAMPS, PARTITIONS)
    state = initial_state(EngineConfig(domain=DOMAIN, identity="test", stamps_partitions=PARTITIONS))
    for batch in range(BATCHES):
        rows = [Row(topic, 0, batch, topic=topic) for topic in TOPICS]
        state = write(kafka, state, Batch.of(1_700_000_000_000 + batch, rows))
    return kafka


def write(kafka: SimKafka, state: State, batch: Batch) -> State:
    """Writes a batch's stamps as the job does."""
    state, effects = step(state, batch, {})
    for stamped in effects.stamps:
        for part in encode_stamps(stamped):
            headers = [(name, value) for name, value in part.headers]
            kafka.append(Partition(STAMPS, stamped.partition), value=part.value, headers=headers)
    return state


@pytest.fixture
def run(kafka: SimKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `totalorder inspect`; its exit code, output and errors."""

    def call(*words: str) -> tuple[int, str, str]:
        transport = SimTransport(kafka, random.Random(7), lambda _: None, most=2)
        monkeypatch.setattr("totalorder.subscriber.kafka_python.KafkaPythonTransport", lambda *_: transport)
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as done:
            main(["inspect", "--domain", DOMAIN, *words])
        assert transport.closed
        return int(done.value.code or 0), *capsys.readouterr()

    return call


def lines_of(run: Run, *words: str) -> list[tuple[int, int]]:
    """(batch, partition) of each line."""
    code, out, _ = run("--json", *words)
    assert code == 0
    return [(line["batch"], line["partition"]) for line in map(json.loads, out.splitlines())]


def every(batches: range, partitions: range = range(PARTITIONS)) -> list[tuple[int, int]]:
    return [(batch, partition) for batch in batches for partition in partitions]


def test_all_partitions_by_batch(run: Run) -> None:
    assert lines_of(run) == every(range(1, BATCHES + 1))
    topics = {stamp["topic"] for line in run("--json")[1].splitlines() for stamp in json.loads(line)["stamps"]}
    assert topics == set(TOPICS)


def test_the_oldest_or_the_newest(run: Run, kafka: SimKafka) -> None:
    assert lines_of(run, "--max", "2") == every(range(1, 3))
    assert lines_of(run, "--last", "2") == every(range(BATCHES - 1, BATCHES + 1))
    assert lines_of(run, "--last", "100") == every(range(1, BATCHES + 1))
    assert lines_of(run, "--last", "1", "--partition", "2", "--from", "1") == [(BATCHES, 2)]
    kafka.create("shop.grants", 1)
    for g in range(1, 31):
        answer = Retired(
            topic=f"t{g}", topic_id="id", id="x", nonce="n", g=g, batch=g, offset=g, incarnation=1, lost={}
        )
        kafka.append(Partition("shop.grants", 0), value=encode_answer(answer), headers=[])
    for words, expected in (((), range(1, 21)), (("--max", "3"), range(1, 4)), (("--last", "3"), range(28, 31))):
        _, out, _ = run("--grants", "--json", *words)
        assert [json.loads(line)["g"] for line in out.splitlines()] == list(expected)


def test_the_oldest_and_the_newest_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["inspect", "--last", "2", "--max", "2"])
    assert done.value.code == 2
    assert "--max is of the oldest, and --last of the newest" in capsys.readouterr().err


def test_one_partition_from_an_offset(run: Run) -> None:
    assert lines_of(run, "--partition", "2") == every(range(1, BATCHES + 1), range(2, 3))
    assert lines_of(run, "--partition", "2", "--from", "3") == every(range(4, BATCHES + 1), range(2, 3))


def test_max_counts_batches(run: Run) -> None:
    assert lines_of(run, "--max", "2") == every(range(1, 3))


def test_what_retention_left_of_one_partition_does_not_hold_back_the_others(run: Run, kafka: SimKafka) -> None:
    kafka.trim(Partition(STAMPS, 1), 3)
    assert lines_of(run) == [place for place in every(range(1, BATCHES + 1)) if place[1] != 1 or place[0] > 3]
    kafka.trim(Partition(STAMPS, 1), BATCHES)
    assert lines_of(run) == [place for place in every(range(1, BATCHES + 1)) if place[1] != 1]


def test_an_offset_needs_its_partition(kafka: SimKafka, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["inspect", "--domain", DOMAIN, "--from", "3"])
    assert done.value.code == 2
    assert "--from is an offset of one partition" in capsys.readouterr().err


def test_a_person_sees_each_batch_once_within_80_columns(run: Run) -> None:
    code, out, _ = run()
    assert code == 0
    headings = [line.split()[1] for line in out.splitlines() if line.startswith("batch ")]
    assert headings == [str(batch) for batch in range(1, BATCHES + 1)]
    assert max(map(len, out.splitlines())) <= 80
    assert "event partitions that went on, and how far: topic-with-a-longer-name-0[0]<1" in " ".join(out.split())
    assert out.count("complete through g ") == BATCHES


def test_a_person_sees_stamps_and_no_digests(run: Run, kafka: SimKafka) -> None:
    """Partitions without an event share a line; digests are for programs, in full."""
    for number in range(PARTITIONS):
        kafka.trim(Partition(STAMPS, number), BATCHES)
    state = initial_state(EngineConfig(domain=DOMAIN, identity="test", stamps_partitions=PARTITIONS))
    write(kafka, state, Batch.of(1_700_000_000_000, [Row("b", 0, 0, topic="b"), Row("b", 0, 1, topic="b")]))
    _, out, _ = run()
    assert [line.split() for line in out.splitlines()[3:]] == [
        ["stamps[1]@5"],
        ["g", "topic#n", "event", "entries"],
        ["1", "b#1", "b[0]@0", "all:"],
        ["2", "b#2", "b[0]@1"],
        ["no", "event:", "stamps[0]@5", "stamps[2]@5", "stamps[3]@5"],
    ]
    assert all("digest" in json.loads(line) for line in run("--json")[1].splitlines())


def test_nothing_there_is_said(run: Run, kafka: SimKafka) -> None:
    for number in range(PARTITIONS):
        kafka.trim(Partition(STAMPS, number), BATCHES)
    assert run() == (0, "There is no complete batch there.\n", "")


def test_a_batch_tells_where_it_went_on_and_of_two_topics_of_a_name_their_ids(run: Run, kafka: SimKafka) -> None:
    for number in range(PARTITIONS):
        kafka.trim(Partition(STAMPS, number), BATCHES)
    state = initial_state(EngineConfig(domain=DOMAIN, identity="test", stamps_partitions=PARTITIONS))
    state = write(kafka, state, Batch.of(1, [Row("a", 0, 6, 1, "a", topic_id="i"), Row("b", 2, 4, topic="b")]))
    state = write(
        kafka, state, Batch.of(2, [Row("a", 0, 0, 2, "a", topic_id="j"), Row("a", 0, 7, 1, "a", topic_id="i")])
    )
    write(kafka, state, Batch.of(3, [Row("shop.control", 0, 0, control=b"?")]))
    _, out, _ = run()
    told = [line.split(": ")[1] for line in out.splitlines() if "went on" in line]
    assert told == ["a[0]<7 b[2]<5", "a (i)[0]<8 a (j)[0]<1", "(none)"]
    events = [line.split()[2:] for line in out.splitlines() if " a#" in line]
    assert events == [["a[0]@6", "all:"], ["a", "(i)[0]@7"], ["a", "(j)[0]@0"]]
    lines = [json.loads(line) for line in run("--json")[1].splitlines()]
    advances = {line["batch"]: line["advances"] for line in lines}
    assert advances == {1: [["a", "i", 0, 7], ["b", "", 2, 5]], 2: [["a", "i", 0, 8], ["a", "j", 0, 1]], 3: []}
    places = [
        (stamp["topic_id"], stamp["offset"]) for line in lines for stamp in line["stamps"] if stamp["topic"] == "a"
    ]
    assert places == [("i", 6), ("i", 7), ("j", 0)]


def test_what_was_retired_and_lost_is_told(run: Run, kafka: SimKafka) -> None:
    kafka.create("shop.grants", 1)
    stem = {"id": "job", "nonce": "n", "offset": 0, "topic_id": "i", "batch": 1, "incarnation": 1}
    losses: list[dict[int, tuple[int, int]]] = [
        {0: (7, 8), 2: (5, 9)},
        {},
        dict.fromkeys(range(14), (0, 1)),
    ]
    for g, lost in enumerate(losses, 1):
        answer = Retired(**stem, g=g, topic=f"t{g}", lost=lost)  # type: ignore[arg-type]
        kafka.append(Partition("shop.grants", 0), value=encode_answer(answer), headers=[])
    code, out, _ = run("--grants")
    assert code == 0
    some, none, many = (" ".join(line.split()) for line in out.splitlines())
    assert some == "@0 g 1 retired Kafka topic t1 (i), asked by job; lost, never stamped: t1[0]@7, t1[2]@5 to 8"
    assert none == "@1 g 2 retired Kafka topic t2 (i), asked by job; nothing is lost"
    assert many.endswith("t3[11]@0, … 2 more partitions")
    skipped = Skipped(**stem, g=9, topic="t", lost={1: (3, 5)})  # type: ignore[arg-type]
    kafka.append(Partition("shop.grants", 0), value=encode_answer(skipped), headers=[])
    told = " ".join(run("--grants")[1].split())
    assert "skipped Kafka topic t (i), asked by job; lost, never stamped: t[1]@3 to 4" in told
    first, *_ = map(json.loads, run("--grants", "--json")[1].splitlines())
    assert (first["kind"], first["topic_id"], first["lost"]) == ("retired", "i", {"0": [7, 8], "2": [5, 9]})
