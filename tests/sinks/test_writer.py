"""What comes into the tables, once, whatever the log repeats and wherever the job dies; with tables in memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from lineage_world import (
    Anew,
    CrashedHere,
    DomainWorld,
    MemoryTables,
    busy_world,
    contents,
    run_once,
    world_made_anew,
)
from reference import Change
from structlog.testing import capture_logs

from totalorder.errors import Contradiction, EventsLost, WireError
from totalorder.sequencer.wire.codec import WireRecord
from totalorder.sequencer.wire.control import Grant, Skipped
from totalorder.sequencer.wire.cuts import Cut, encode_cut
from totalorder.sequencer.wire.receipts import Receipts
from totalorder.sequencer.wire.stamps import Source, StampedBatch
from totalorder.sinks import pieces
from totalorder.sinks.decode import LogRecord, delivery_rows, subscription_rows

EVERY_TABLE = ("cuts", "events", "batches", "subscriptions", "sequencing_groups", "deliveries")


def written_at_once(world: DomainWorld) -> dict[str, list[str]]:
    tables = MemoryTables()
    run_once(world, tables)
    return contents(tables)


def test_every_event_has_its_timestamp() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    rows = sorted(tables.tables["events"].to_pylist(), key=lambda row: row["g"])
    assert [(row["topic"], row["offset"], row["n"], row["g"]) for row in rows] == world.stamps()
    entries = {row["g"]: dict(row["entries"]) for row in rows}
    for effects in world.effects:
        for stamped in effects.stamps:
            for at, g in enumerate(stamped.rows.g.tolist()):
                named = {stamped.names[topic]: n for topic, n in stamped.rows.entries(at).items()}
                assert entries.pop(g) == named
    assert not entries
    assert all(row["crc32"] == row["read_crc32"] for row in rows)


def test_positions_are_taken_once_by_events_and_answers_together() -> None:
    tables = MemoryTables()
    run_once(busy_world(), tables)
    taken = [g for name in ("events", "subscriptions") for g in tables.tables[name].column("g").to_pylist()]
    assert sorted(taken) == list(range(1, len(taken) + 1))


def test_a_second_run_finds_nothing_to_do() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    appended = list(tables.appended)
    assert not any(vars(run_once(world, tables)).values())
    assert tables.appended == appended


@pytest.mark.parametrize("crash_before", EVERY_TABLE)
def test_a_crash_before_any_table_heals(crash_before: str) -> None:
    world, tables = busy_world(), MemoryTables()
    tables.crash_before = crash_before
    with pytest.raises(CrashedHere):
        run_once(world, tables)
    run_once(world, tables)
    assert contents(tables) == written_at_once(world)


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_runs_that_die_after_a_few_writes_get_there(writes: int) -> None:
    world, tables = busy_world(max_part_bytes=1), MemoryTables()
    crashes = 0
    while dies(world, tables, writes):
        crashes += 1
    assert crashes > len(EVERY_TABLE) / writes
    assert contents(tables) == written_at_once(world)


def dies(world: DomainWorld, tables: MemoryTables, writes: int) -> bool:
    tables.crash_after = writes
    try:
        run_once(world, tables, size=2)
    except CrashedHere:
        return True
    return False


@pytest.mark.parametrize("limit", range(1, 9))
def test_a_batch_whose_parts_straddle_two_runs_is_read_again_from_its_first(limit: int) -> None:
    world, tables = busy_world(max_part_bytes=1), MemoryTables()
    assert len(world.logs["stamps"]) > 8, "no batch has several parts"
    run_once(world, tables, limit=limit)
    run_once(world, tables)
    assert contents(tables) == written_at_once(world)


def test_what_kafka_has_twice_is_written_once() -> None:
    world, tables = busy_world(), MemoryTables()
    once = written_at_once(world)
    for effects in list(world.effects):
        world.send(effects)
    for kind in ("cuts", "receipts"):
        for record in list(world.logs[kind]):
            world.append(kind, 0, WireRecord(value=record.value or b"", headers=tuple(record.headers.items())))
    written = run_once(world, tables, size=7)
    assert contents(tables) == once
    assert written.repeated == written.batches + written.answers + written.deliveries


def test_receipts_in_the_wrong_order_are_all_kept() -> None:
    world, tables = busy_world(), MemoryTables()
    once = len(written_at_once(world)["deliveries"])
    late = world.deliver("t", "a", first=1, count=2)
    world.report(world.deliver("t", "a", first=3))
    run_once(world, tables)
    world.report(late)
    run_once(world, tables)
    rows = tables.tables["deliveries"].to_pylist()
    assert len(rows) == once + 3
    assert sorted(row["delivery_index"] for row in rows if row["subscriber"] == "t") == [1, 2, 3]


def test_many_deliveries_are_written_in_several_appends_and_a_crash_between_them_heals(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, tables = busy_world(), MemoryTables()
    expected, deliveries = written_at_once(world), ("deliveries",) * len(world.logs["receipts"])
    monkeypatch.setattr(pieces, "AT_ONCE_BYTES", 1)
    run_once(world, whole := MemoryTables())
    assert whole.appended[-len(deliveries) :] == [*deliveries]
    tables.crash_after = len(whole.appended) + len(whole.merged) - len(deliveries) + 1
    with pytest.raises(CrashedHere):
        run_once(world, tables)
    assert 0 < len(tables.tables["deliveries"]) < len(expected["deliveries"])
    tables.crash_after = None
    assert not run_once(world, tables).repeated
    assert contents(tables) == expected


@pytest.mark.parametrize("most_bytes", [1, 500, 2_000])
def test_what_is_written_at_once_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """A batch of many events and one of few, changes that turn several groups, many receipts."""
    world = DomainWorld()
    world.batch(Change("r", frozenset("abc")), *[("abc"[at % 3], b"1") for at in range(300)])
    world.batch(Change("s", frozenset("bc")), Change("r", frozenset()), ("a", b"2"))
    for first in range(1, 300, 50):
        world.report(world.deliver("r", "abc", first=first, count=50))
    expected = written_at_once(world)
    monkeypatch.setattr(pieces, "AT_ONCE_BYTES", most_bytes)
    tables = MemoryTables()
    run_once(world, tables)
    assert contents(tables) == expected
    for name in ("cuts", "events", "batches", "deliveries"):
        most_rows = max(size for table, size in tables.sizes if table == name)
        assert most_rows <= (50 if name == "deliveries" else 1 + most_bytes // 160), "a record's receipts stay together"
    assert max(len(intervals) for intervals in tables.merged) <= max(1, -(-most_bytes // 100))


def test_a_crash_between_two_parts_of_one_batch_heals(monkeypatch: pytest.MonkeyPatch) -> None:
    world, tables = busy_world(), MemoryTables()
    expected = written_at_once(world)
    monkeypatch.setattr(pieces, "AT_ONCE_BYTES", 1)
    for writes in range(1, 6):
        tables.crash_after = writes
        with pytest.raises(CrashedHere):
            run_once(world, tables)
    tables.crash_after = None
    run_once(world, tables)
    assert contents(tables) == expected


# --- a topic that is made anew ----------------------------------------------------------------------------------------


def test_events_at_one_place_of_two_topics_of_one_name_are_two() -> None:
    world, tables = world_made_anew(), MemoryTables()
    run_once(world, tables)
    rows = sorted(tables.tables["events"].to_pylist(), key=lambda row: row["g"])
    assert [(row["topic"], row["offset"], row["n"], row["g"]) for row in rows] == world.stamps()
    places = [(row["kafka_topic"], row["topic_id"], row["partition"], row["offset"]) for row in rows]
    assert len(set(places)) == len(places)
    assert [(topic_id, offset) for topic, topic_id, _, offset in places if topic == "a"] == [
        ("id-a", 0), ("id-a", 1), ("id-a", 2), ("id-a", 3), ("id-a-anew", 0), ("id-a-anew", 1), ("id-a-anew", 2)
    ]  # fmt: skip
    placed = {(row["topic"], row["n"]): place for row, place in zip(rows, places, strict=True)}
    received = [row for row in tables.tables["deliveries"].to_pylist() if row["subscriber"] == "t"]
    assert len(received) == 13
    for row in received:
        place = (row["kafka_topic"], row["topic_id"], row["partition"], row["offset"])
        assert place == placed[row["topic"], row["n"]]


def test_events_of_a_topic_that_was_made_anew_are_gone_and_not_those_of_the_new_one() -> None:
    world, tables = world_made_anew(), MemoryTables()
    written = run_once(world, tables)
    rows = tables.tables["events"].to_pylist()
    gone = [row for row in rows if row["topic_id"] in ("id-a", "id-b")]
    assert written.unread == len(gone) == 4 + 5
    assert all(row["event_time"] is None and row["read_crc32"] is None for row in gone)
    assert all(row["read_crc32"] == row["crc32"] for row in rows if row not in gone)


def test_an_answer_says_what_was_retired_and_lost() -> None:
    world, tables = world_made_anew(), MemoryTables()
    run_once(world, tables)
    of_a, of_b = (row for row in tables.tables["subscriptions"].to_pylist() if row["kind"] == "retired")
    assert (of_a["kafka_topic"], of_a["topic_id"]) == ("a", "id-a")
    assert of_a["lost"] == [{"partition": 0, "begin_offset": 4, "end_offset": 6}]
    assert (of_b["kafka_topic"], of_b["topic_id"], of_b["lost"]) == ("b", "id-b", [])
    for row in (of_a, of_b):
        assert (row["subscriber"], row["nonce"], row["generation"], row["topics"]) == ("job", "n", None, None)
    others = [row for row in tables.tables["subscriptions"].to_pylist() if row["kind"] != "retired"]
    assert all(row[name] is None for row in others for name in ("kafka_topic", "topic_id", "lost"))
    assert all(row["generation"] is not None for row in others)


def test_what_is_lost_is_in_both_tables() -> None:
    record = LogRecord(partition=0, offset=4, time_ms=1, value=None, headers={})
    who: dict[str, Any] = {"id": "job", "nonce": "n", "batch": 2, "incarnation": 1}
    answer = Skipped(**who, g=9, offset=3, topic="a", topic_id="id-a", lost={7: (5, 8)})
    (row,) = subscription_rows("d", [(record, answer)]).to_pylist()
    assert (row["kind"], row["g"], row["kafka_topic"], row["topic_id"], row["generation"]) == (
        "skipped", 9, "a", "id-a", None
    )  # fmt: skip
    assert row["lost"] == [{"partition": 7, "begin_offset": 5, "end_offset": 8}]
    up = np.arange(1, 5)
    receipts = Receipts(
        domain="d",
        id="s",
        nonce="n",
        topics=("a",),
        sources=(Source("a", "id-a", 7),),
        generation=up * 0 + 1,
        sequence=up,
        topic=up * 0,
        source=up * 0,
        offset=up,
        n=np.array([1, 2, 3, 0]),
        g=up,
        redelivered=np.array([False, True, False, True]),
        lost=np.array([False, False, True, True]),
        delivered_ms=up,
    )
    rows = delivery_rows([(record, receipts)]).to_pylist()
    assert [(row["n"], row["tag"]) for row in rows] == [(1, None), (2, "redelivered"), (3, "lost"), (0, "lost again")]


def test_a_batch_says_where_it_ends_in_what_it_advances() -> None:
    world, tables = world_made_anew(), MemoryTables()
    run_once(world, tables)
    told = {
        row["batch"]: [tuple(end.values()) for end in row["next_offsets"]]
        for row in tables.tables["batches"].to_pylist()
    }
    assert told[3] == [("a", "id-a", 0, 3), ("c", "id-c", 0, 2)]
    assert told[5] == [("a", "id-a", 0, 4), ("a", "id-a-anew", 0, 1), ("b", "id-b", 0, 4)]
    assert told[6] == [("a", "id-a-anew", 0, 3), ("b", "id-b", 0, 5), ("b", "id-b-anew", 0, 1)]


def test_a_cut_takes_of_both_topics_of_a_name() -> None:
    world, tables = world_made_anew(), MemoryTables()
    run_once(world, tables)
    taken = [(part["topic_id"], part["begin_offset"]) for part in tables.tables["cuts"].to_pylist()[4]["taken"]]
    assert taken == [("id-d.control", 5), ("id-a", 3), ("id-d.control", 6), ("id-a-anew", 0), ("id-b", 3)]


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_topic_that_was_made_anew_and_runs_that_die(writes: int) -> None:
    """Also what is read once more, from tables that have both topics."""
    world, tables = world_made_anew(max_part_bytes=1), MemoryTables()
    while dies(world, tables, writes):
        pass
    assert contents(tables) == written_at_once(world)
    for effects in list(world.effects):
        world.send(effects)
    assert run_once(world, tables).events == 0
    assert contents(tables) == written_at_once(world_made_anew(max_part_bytes=1))


def test_an_event_that_is_read_again_as_one_of_the_other_topic_is_a_contradiction() -> None:
    world, tables = world_made_anew(), MemoryTables()
    tables.crash_before = "batches"
    with pytest.raises(CrashedHere):
        run_once(world, tables)
    events = tables.tables["events"]
    wrong = events.to_pylist()
    wrong[0]["topic_id"] = "id-another"
    tables.tables["events"] = type(events).from_pylist(wrong, schema=events.schema)
    with pytest.raises(Contradiction, match="differs in topic_id: 'id-another' before, 'id-a' now"):
        run_once(world, tables)


def test_a_topic_may_be_made_anew_more_than_once() -> None:
    world, tables = DomainWorld(), MemoryTables()
    world.batch(Change("r", frozenset("a")), ("a", b"1"), Anew(topic="a"), ("a", b"2"), Anew(topic="a", lost=1))
    world.batch(("a", b"3"))
    run_once(world, tables)
    rows = sorted(tables.tables["events"].to_pylist(), key=lambda row: row["g"])
    assert [(row["n"], row["topic_id"], row["offset"]) for row in rows] == [
        (1, "id-a", 0), (2, "id-a-anew", 0), (3, "id-a-anew-anew", 0)
    ]  # fmt: skip
    retired = [row["lost"] for row in tables.tables["subscriptions"].to_pylist() if row["kind"] == "retired"]
    assert retired == [[], [{"partition": 0, "begin_offset": 1, "end_offset": 2}]]


# --- cuts -------------------------------------------------------------------------------------------------------------


def test_every_cut_has_its_slices() -> None:
    world, tables = busy_world(), MemoryTables()
    assert run_once(world, tables).cuts == 4
    rows = tables.tables["cuts"].to_pylist()
    assert [(row["cut"], row["cuts_offset"], row["is_key"]) for row in rows] == [
        (1, 0, True), (2, 1, False), (3, 2, True), (4, 3, False)
    ]  # fmt: skip
    for row, cut in zip(rows, world.cuts, strict=True):
        assert (row["slices"], row["topic_order"]) == (len(cut.looks) + 1, [])
        assert [tuple(part.values()) for part in row["taken"]] == [
            (part.slice, *part.source, part.begin, part.end) for part in cut.parts
        ]


def test_a_domain_without_cuts_has_all_else() -> None:
    world, tables = busy_world(), MemoryTables()
    world.logs["cuts"].clear()
    run_once(world, tables)
    assert contents(tables) == written_at_once(busy_world()) | {"cuts": []}


def cuts_in(tables: MemoryTables) -> list[tuple[int, int, int]]:
    """Number, offset and length of every cut in the tables, in the order in which they came."""
    return [
        (row["cut"], row["cuts_offset"], sum(part["end_offset"] - part["begin_offset"] for part in row["taken"]))
        for row in tables.tables["cuts"].to_pylist()
    ]


def longer(cut: Cut, by: int) -> Cut:
    """The same with more of topic a in its last slice."""
    ends = cut.ends.tolist()
    ends[1] += by
    named = {name: getattr(cut, name) for name in ("domain", "incarnation", "cut", "sources", "looks")}
    return Cut.of(**named, begins=cut.begins.tolist(), ends=ends)


def after(cut: Cut) -> Cut:
    """The next cut, with one record of topic a."""
    ends = cut.ends.tolist()
    named = {name: getattr(cut, name) for name in ("domain", "incarnation", "sources")}
    return Cut.of(**named, cut=cut.cut + 1, begins=ends, ends=[ends[0], ends[1] + 1, *ends[2:]], looks=[])


def test_a_cut_that_never_ran_stands_before_the_one_that_did() -> None:
    for size in (1, 1000):
        world, tables = busy_world(), MemoryTables()
        last = world.cuts[-1]
        world.send_cut(encode_cut(longer(last, 7), is_key=True))
        run_once(world, tables, size=size)
        world.send_cut(encode_cut(after(longer(last, 7)), is_key=False))
        run_once(world, tables, size=size)
        assert cuts_in(tables)[3:] == [(4, 3, 3), (4, 4, 10), (5, 5, 1)]
        world.send_cut(encode_cut(after(after(longer(last, 7))), is_key=False))
        assert run_once(world, tables).cuts == 1
        assert cuts_in(tables)[3:] == [(4, 3, 3), (4, 4, 10), (5, 5, 1), (6, 6, 1)]
        assert tables.marks().cuts_offset == 4


def test_a_cut_from_which_the_next_goes_on_counts_again_also_after_a_restart() -> None:
    world, tables = busy_world(), MemoryTables()
    last = world.cuts[-1]
    world.send_cut(encode_cut(longer(last, 7), is_key=True))
    run_once(world, tables)
    for following in (after(last), after(after(last)), after(after(after(last)))):
        world.send_cut(encode_cut(following, is_key=False))
        run_once(world, tables)
        assert tables.marks().cuts_offset == 2, "not at the key cut that lost"
    assert cuts_in(tables)[3:] == [(4, 3, 3), (4, 4, 10), (4, 5, 3), (5, 5, 1), (6, 6, 1), (7, 7, 1)]


@pytest.mark.parametrize("kept", [0, 2, 3])
def test_a_cut_that_kafka_no_longer_has_is_named(kept: int) -> None:
    world, tables = busy_world(), MemoryTables()
    world.logs["cuts"] = world.logs["cuts"][:kept]
    run_once(world, tables)
    for _ in range(2):
        world.cuts.append(after(world.cuts[-1]))
    for cut in world.cuts[4:]:
        world.send_cut(encode_cut(cut, is_key=True))
    if kept:
        with pytest.raises(EventsLost, match=rf"d\.cuts goes from cut {kept} to 5"):
            run_once(world, tables)
    else:
        run_once(world, tables)
    assert [cut for cut, _, _ in cuts_in(tables)] == ([*range(1, kept + 1)] or [5, 6])


def test_cuts_that_were_removed_while_the_job_stood_are_named() -> None:
    """Also those that only a restart misses: the log begins behind what the tables have."""
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    world.cuts += [after(world.cuts[-1]), after(after(world.cuts[-1]))]
    for cut in world.cuts[4:]:
        world.send_cut(encode_cut(cut, is_key=True))
    del world.logs["cuts"][:5]
    with pytest.raises(EventsLost, match=r"d\.cuts goes from cut 4 to 6"):
        run_once(world, tables)


def test_another_cut_at_the_same_place_is_a_contradiction() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    place = world.logs["cuts"][3]
    world.logs["cuts"][3] = replace(place, value=encode_cut(longer(world.cuts[3], 7), is_key=False).value)
    with pytest.raises(Contradiction, match="cuts: what Kafka has for cut 4, cuts_offset 3 differs in taken"):
        run_once(world, tables)


def test_a_lineage_that_begins_late_begins_at_a_key_cut() -> None:
    world, tables = busy_world(), MemoryTables()
    del world.logs["cuts"][0]
    run_once(world, tables)
    assert [cut for cut, _, _ in cuts_in(tables)] == [3, 4]


# --- what must stop the job -------------------------------------------------------------------------------------------


def other(stamped: StampedBatch, **changes: object) -> StampedBatch:
    return replace(stamped, **changes).sealed()  # type: ignore[arg-type]


def test_a_batch_with_another_content_is_a_contradiction_also_after_a_restart() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    first = world.effects[0]
    world.send(replace(first, stamps=tuple(other(stamped, time_ms=7) for stamped in first.stamps), answers=()))
    with pytest.raises(Contradiction, match=r"batches: what Kafka has for stamps_partition 0, batch 1 differs in"):
        run_once(world, tables)
    assert contents(tables) == written_at_once(busy_world())


def test_a_batch_that_continues_another_chain_is_a_contradiction() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    last = world.effects[-1]
    forged = tuple(other(stamped, batch=stamped.batch + 1, previous_digest="0" * 32) for stamped in last.stamps)
    world.send(replace(last, stamps=forged, answers=()))
    with pytest.raises(Contradiction, match="does not continue batch 4"):
        run_once(world, tables)


def test_events_that_a_crash_left_are_compared() -> None:
    world, tables = busy_world(), MemoryTables()
    tables.crash_before = "batches"
    with pytest.raises(CrashedHere):
        run_once(world, tables)
    events = tables.tables["events"]
    wrong = events.to_pylist()
    wrong[0]["n"] += 1
    tables.tables["events"] = type(events).from_pylist(wrong, schema=events.schema)
    with pytest.raises(Contradiction, match="events: what Kafka has for g 2 differs in n: 2 before, 1 now"):
        run_once(world, tables)


def test_a_missing_batch_is_named() -> None:
    world, tables = busy_world(), MemoryTables()
    world.logs["stamps"] = [record for record in world.logs["stamps"] if record.offset != 2 or record.partition != 1]
    with pytest.raises(EventsLost, match=r"d\.stamps\[1\] goes from batch 2 to 4"):
        run_once(world, tables)
    assert not len(tables.tables["batches"])


def test_a_lineage_that_begins_late_begins_at_the_first_whole_batch() -> None:
    world, tables = busy_world(), MemoryTables()
    world.logs["stamps"] = [record for record in world.logs["stamps"] if record.offset >= 2]
    run_once(world, tables)
    assert set(tables.tables["batches"].column("batch").to_pylist()) == {3, 4}


def test_an_answer_with_another_content_is_a_contradiction() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    first = world.effects[0]
    (grant,) = first.answers
    assert isinstance(grant, Grant)
    answers = (replace(grant, clock=dict.fromkeys(grant.clock, 5)),)
    world.send(replace(first, stamps=(), answers=answers))
    with pytest.raises(Contradiction, match="subscriptions: what Kafka has for g 1 differs in clock"):
        run_once(world, tables)


def test_a_receipt_with_another_content_is_a_contradiction() -> None:
    world, tables = busy_world(), MemoryTables()
    run_once(world, tables)
    receipts = world.deliver("r", "ab")
    world.report(replace(receipts, g=receipts.g + 1))
    with pytest.raises(Contradiction, match="deliveries: what Kafka has for subscriber r, nonce n, delivery_index 1"):
        run_once(world, tables)


def test_unusable_receipts_are_left_out_and_counted_and_the_first_is_named() -> None:
    world, tables = busy_world(), MemoryTables()
    once = written_at_once(world)
    world.append("receipts", 1, WireRecord(value=b"nonsense", headers=()))
    world.report(replace(world.deliver("r", "ab"), domain="another"))
    with capture_logs() as said:
        assert run_once(world, tables).unusable == 2
    (line,) = said
    assert line["at"] in ("d.receipts[1]@0", "d.receipts[0]@3")
    assert contents(tables) == once


def test_a_stranger_on_grants_stops_the_job() -> None:
    world = busy_world()
    world.append("grants", 0, WireRecord(value=b"{}", headers=()))
    with pytest.raises(WireError):
        run_once(world, MemoryTables())


# --- events themselves ------------------------------------------------------------------------------------------------


def test_events_that_are_gone_leave_nulls() -> None:
    world, tables = busy_world(), MemoryTables()
    world.events["a"] = []
    written = run_once(world, tables)
    rows = tables.tables["events"].to_pylist()
    gone = [row for row in rows if row["topic"] == "a"]
    assert written.unread == len(gone) == 3
    assert all(row["event_time"] is None and row["read_crc32"] is None for row in gone)
    assert all(row["event_time"] is not None for row in rows if row["topic"] != "a")


# --- sequencing groups ------------------------------------------------------------------------------------------------


def test_groups_are_intervals_of_the_order() -> None:
    tables = MemoryTables()
    run_once(busy_world(), tables)
    assert {key: end for key, end in tables.intervals.items() if key[0] < key[1]} == {
        ("a", "b", 1): 9,
        ("b", "c", 4): 11,
        ("a", "c", 9): None,
    }


def test_groups_need_as_many_subscriptions_as_the_domain_says() -> None:
    world, tables = DomainWorld(min_subscriptions=2), MemoryTables()
    world.batch(Change("r", frozenset("ab")), Change("s", frozenset("abc")), Change("r", frozenset("c")))
    run_once(world, tables)
    assert tables.intervals == {("a", "b", 2): 3, ("b", "a", 2): 3}
