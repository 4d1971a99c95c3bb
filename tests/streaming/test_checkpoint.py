"""The record beside the checkpoint, what is read from Spark's logs, and the lock."""

import errno
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from totalorder.config import make_settings
from totalorder.errors import StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.checkpoint import CheckpointLock, read_checkpoint, settle
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.record import DomainRecord, EventTopic
from totalorder.streaming.store import HadoopStore, LocalStore, Store

SETTINGS = make_settings(domain="d", topics=("a",), checkpoint_dir="x")
TIMED = '{"batchTimestampMs": 1}'
A = EventTopic(name="a", topic_id="id-a", starts={0: 3})
RECORD = DomainRecord.begin(SETTINGS, topics=[A], own_ids={"d.stamps": "id-s"})


@pytest.fixture(params=["local", pytest.param("hadoop", marks=pytest.mark.spark)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return LocalStore(tmp_path)
    spark: SparkSession = request.getfixturevalue("spark")
    return HadoopStore(spark, tmp_path.as_uri())


def log(root: Path, name: str, batch: int, *lines: str) -> None:
    path = root / "query" / name / str(batch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["v1", *lines]), encoding="utf-8")


def test_a_record_comes_back_as_it_was() -> None:
    assert DomainRecord.decode(RECORD.encode(), "here") == RECORD
    admitted = RECORD.admitting({"c": "id-c", "b": "id-b"}).ordering(("b",)).ordering(("b",))
    assert admitted.event_topics == {"a", "b", "c"}
    assert admitted.starts == RECORD.starts == {Source("a", "id-a", 0): 3}
    assert [topic.name for topic in admitted.numbered()] == ["d.control", "a", "b", "c"]
    assert admitted.topic_ids == {"a": "id-a", "b": "id-b", "c": "id-c", "d.stamps": "id-s"}
    assert admitted.orders == ((), ("b",))
    claimed = replace(admitted, claim=7)
    assert DomainRecord.decode(claimed.encode(), "here") == claimed


def test_what_is_lost_comes_back_and_is_that_of_the_topics_that_are_read() -> None:
    lost = RECORD.losing({Source("a", "id-a", 0): (3, 9), Source("a", "id-a", 7): (0, 2)})
    assert DomainRecord.decode(lost.encode(), "here") == lost != RECORD
    assert lost.lost == {Source("a", "id-a", 0): (3, 9), Source("a", "id-a", 7): (0, 2)}
    assert lost.leaving({"id-a"}, "gone").lost == {}
    assert RECORD.losing({Source("a", "another", 0): (3, 9)}) == RECORD


def test_of_a_name_one_topic_at_most_is_read() -> None:
    gone = RECORD.leaving({"id-a"}, "gone")
    assert not gone.event_topics
    assert gone.topic_ids == {"d.stamps": "id-s"}
    again = gone.admitting({"a": "id-2"})
    assert DomainRecord.decode(again.encode(), "here") == again
    assert [(topic.topic_id, topic.state) for topic in again.topics] == [("id-a", "gone"), ("id-2", "read")]
    assert again.topic_ids["a"] == "id-2"
    assert (sorted(again.known_ids), sorted(again.ids_left)) == (["id-2", "id-a"], ["id-a"])
    assert again.starts == {Source("a", "id-a", 0): 3}
    retired = again.leaving({"id-a"}, "retired")
    assert retired.leaving({"id-a"}, "gone") == retired
    assert [topic.name for topic in retired.numbered()] == ["d.control", "a", "a"]


def test_two_checkpoints_never_have_one_identity() -> None:
    assert RECORD.identity != DomainRecord.begin(SETTINGS, topics=[], own_ids={}).identity


def with_field(**fields: object) -> str:
    return json.dumps({**json.loads(RECORD.encode()), **fields})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", '{"version": 5}', '{"version": 5, "identity": 3}'),
        *(
            with_field(claim="first"),
            with_field(claim=[]),
            with_field(own_ids=None),
            with_field(own_ids=["a"]),
            with_field(topics=[["a", "id"]]),
            with_field(topics=[["a", "id", []]]),
            with_field(topics=[["a", "id", [], "left"]]),
            with_field(topics=[["a", "id", [[0, "first"]], "read"]]),
            with_field(orders=7),
            with_field(lost=7),
            with_field(lost=[[1, 0, 5]]),
            with_field(lost=[[2, 0, 5, 6]]),
            with_field(lost=[[0, 0, 5, 6]]),
            with_field(lost=[[1, 0, 6, 6]]),
        ),
    ],
)
def test_a_damaged_record_is_refused(text: str) -> None:
    with pytest.raises(StateError, match="is damaged"):
        DomainRecord.decode(text, "here")


def test_a_record_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "domain.json").write_bytes(b"\xff{}")
    with pytest.raises(StateError, match=r"here/domain.json cannot be read.*Restore"):
        read_checkpoint(LocalStore(tmp_path), "here")
    (tmp_path / "domain.json").unlink()
    (tmp_path / "domain.json").mkdir()
    with pytest.raises(StateError, match=r"here/domain.json cannot be read.*Restore"):
        read_checkpoint(LocalStore(tmp_path), "here")


def test_a_record_of_another_version_is_refused() -> None:
    content = {**json.loads(RECORD.encode()), "version": 1}
    with pytest.raises(StateError, match="has version 1"):
        DomainRecord.decode(json.dumps(content), "here")


def planned(offset: int, topic: int = 1) -> str:
    """What Spark's log has of a batch that ends at this offset of the first partition of topic a."""
    return json.dumps(BatchEnd(cut=3, order=0, ends={0: (2,), topic: (offset, 7)}).encode())


def test_store_and_facts(store: Store, tmp_path: Path) -> None:
    assert store.read("domain.json") is None
    assert store.names("query/commits") == []
    facts = read_checkpoint(store, "here")
    assert (facts.record, facts.planned, facts.committed) == (None, -1, -1)
    assert (facts.next_offsets, facts.planned_offsets) == ({}, {})
    store.write("domain.json", "taken back")
    for _ in range(2):
        store.remove("domain.json")
        assert store.read("domain.json") is None
    store.write("domain.json", "first")
    store.write("domain.json", RECORD.encode())
    for batch in range(12):
        log(tmp_path, "offsets", batch, TIMED, planned(batch))
        log(tmp_path, "commits", batch, "{}")
    log(tmp_path, "offsets", 12, '{"batchTimestampMs": 1012}', planned(99))
    facts = read_checkpoint(store, "here")
    assert facts.record == RECORD
    assert (facts.planned, facts.committed) == (12, 11)
    a, more = Source("a", "id-a", 0), {Source("d.control", "", 0): 2, Source("a", "id-a", 1): 7}
    assert facts.next_offsets == {a: 11} | more
    assert (facts.planned_ms, facts.planned_offsets) == (1012, {a: 99} | more)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]


def test_a_write_for_which_there_is_no_room_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    store.write("domain.json", "old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("totalorder.streaming.store.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write("domain.json", "new")
    assert store.read("domain.json") == "old"
    assert store.names("") == ["domain.json"]


OPERATOR = """v2
{"stateStoreInfo":[{"stateSchemaFilePaths":["file:/was/query/state/0/_stateSchema/default/0_x",\
"file:/was/query/state/0/_stateSchema/default/1_y"]}],"operatorPropertiesJson":"{\\"timeMode\\":\\"NoTime\\"}"}"""


def test_a_checkpoint_that_was_moved_has_its_schema_where_it_is_now(store: Store, tmp_path: Path) -> None:
    name = "query/state/0/_metadata/v2/0"
    settle(store, "/is/query")  # of a new one nothing is there
    store.write(name, OPERATOR)
    if isinstance(store, LocalStore):
        (tmp_path / name).with_name(".0.crc").touch()  # by a Spark that wrote through Hadoop's check sums
    settle(store, "/is/query")
    settled = store.read(name)
    assert settled == OPERATOR.replace("file:/was/", "file:/is/")
    if isinstance(store, LocalStore):
        assert store.names("query/state/0/_metadata/v2") == ["0"]
    before = (tmp_path / name).stat()
    settle(store, "/is/query")
    assert (tmp_path / name).stat() == before, "nothing is written where all is in place"
    settle(store, "s3a://bucket/is/query")
    assert store.read(name) == OPERATOR.replace("file:/was/", "s3a://bucket/is/")


@pytest.mark.parametrize(
    "lines",
    [
        None,
        (),
        (TIMED,),
        (TIMED, "{half"),
        (TIMED, "[]"),
        (TIMED, '{"a": 3}'),
        ("{}", planned(1)),
        ("[]", planned(1)),
        ("7", planned(1)),
        (TIMED, planned(1, topic=2)),
    ],
)
def test_a_damaged_log_of_offsets_is_refused(tmp_path: Path, lines: tuple[str, ...] | None) -> None:
    store = LocalStore(tmp_path)
    store.write("domain.json", RECORD.encode())
    log(tmp_path, "commits", 0, "{}")
    if lines is not None:
        log(tmp_path, "offsets", 0, *lines)
    with pytest.raises(StateError, match=r"here/query/offsets/0"):
        read_checkpoint(store, "here")


@pytest.mark.parametrize("lines", [(), ("{half",), ("7",)])
def test_a_damaged_log_of_finished_batches_is_refused(tmp_path: Path, lines: tuple[str, ...]) -> None:
    """Spark alone would say that its query failed, and that starting again is safe."""
    store = LocalStore(tmp_path)
    store.write("domain.json", RECORD.encode())
    log(tmp_path, "offsets", 0, TIMED, planned(1))
    log(tmp_path, "commits", 0, *lines)
    with pytest.raises(StateError, match=r"here/query/commits/0 is damaged, .* `totalorder recover`"):
        read_checkpoint(store, "here")
    log(tmp_path, "commits", 0, '{"nextBatchWatermarkMs":0}')
    assert read_checkpoint(store, "here").committed == 0


def test_a_damaged_plan_of_the_next_batch_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.write("domain.json", RECORD.encode())
    log(tmp_path, "offsets", 0, TIMED, planned(1))
    log(tmp_path, "commits", 0, "{}")
    log(tmp_path, "offsets", 1)
    with pytest.raises(StateError, match=r"query/offsets/1 is damaged, and batch 1 was planned"):
        read_checkpoint(store, "here")


def test_a_plan_without_a_record_is_seen(tmp_path: Path) -> None:
    log(tmp_path, "offsets", 4, TIMED, planned(1))
    facts = read_checkpoint(LocalStore(tmp_path), "here")
    assert (facts.record, facts.planned, facts.planned_offsets) == (None, 4, {})


def test_one_driver_at_a_time(tmp_path: Path) -> None:
    with CheckpointLock(tmp_path, wait_s=0), pytest.raises(StateError, match="in use by another sequencer"):
        CheckpointLock(tmp_path, wait_s=60)  # the holder lives, so nothing is waited for
    CheckpointLock(tmp_path, wait_s=0).release()


def test_the_lock_lives_on_in_a_child_that_inherits_it(tmp_path: Path) -> None:
    """As Spark's Java does when Python is killed first."""
    script = """
import sys, subprocess, pathlib
from totalorder.streaming.checkpoint import CheckpointLock
lock = CheckpointLock(pathlib.Path(sys.argv[1]), 0)
child = subprocess.Popen(["sleep", "600"], pass_fds=(lock.fd,), stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
"""
    holder = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child, _ = holder.communicate(timeout=60)
    try:
        with pytest.raises(StateError, match="in use"):
            CheckpointLock(tmp_path, wait_s=0.3)
    finally:
        subprocess.run(["kill", "-KILL", child.strip()], check=True)
    CheckpointLock(tmp_path, wait_s=30).release()
