"""Each audit finds the fault of its kind that is planted for it, and nothing in honest tables."""

import io
import json
import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from audit_world import ANEW, World, history, honest_world
from pyspark.sql import (
    SparkSession,
    functions as F,  # noqa: N812
)
from reference import change, events
from rich.console import Console

from totalorder.cli import app
from totalorder.cli.audit import show_rows
from totalorder.errors import SettingsError
from totalorder.sinks import audit, pieces, session, small
from totalorder.sinks.audit import FEW_ROWS, KNOWN, SQL_CONF, Auditor, Result, audits, parse_audit
from totalorder.sinks.report import LATENCIES
from totalorder.sinks.schema import TABLES

pytestmark = pytest.mark.spark

OLD, NEW = "id-all-0", "id-all-1"
"""Kafka's ids of the topic that is made anew in the middle of a world."""
AUDITS = {audit.name: audit for audit in audits() if not audit.view}
Planted = Callable[[World], list[dict[str, Any]]]
"""Tampers with a world; returns what the audit must show of it."""


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """The run's Spark with views and settings of its own."""
    own = spark.newSession()
    for key, value in (SQL_CONF | FEW_ROWS).items():
        own.conf.set(key, value)
    return own


def ask(spark: SparkSession, world: World, *names: str, **values: str) -> list[Result]:
    world.register(spark)
    auditor = Auditor.of_views(spark, sql=[KNOWN, *(AUDITS[name].sql for name in names)])
    return [auditor.ask(AUDITS[name], values, most_rows=100) for name in names]


def rows(result: Result) -> list[dict[str, Any]]:
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


@pytest.fixture
def world() -> World:
    return honest_world(history(1))


ASKED = [name for name, audit in AUDITS.items() if not audit.parameters]


def test_nothing_is_found_in_honest_tables(spark: SparkSession) -> None:
    results = ask(spark, honest_world(history(11)), *ASKED)
    assert {r.audit.name: r.rows for r in results if r.verdict == "violated"} == {}
    assert {r.audit.name for r in results if r.verdict == "information"} == {
        "given-up", "latency", "losses", "not-stamped-yet"
    }  # fmt: skip
    assert {r.audit.name: r.rows for r in results if r.audit.name == "not-stamped-yet"} == {"not-stamped-yet": ()}
    assert all(result.rows_examined for result in results)


def test_nothing_is_found_where_order_is_promised_for_pairs_only(spark: SparkSession) -> None:
    """With m = 2 subscribers leave the order of g where nobody shares the topics."""
    world = honest_world(history(12), m=2, seed=2)
    steps = [(a, b) for name in "rstuv" for a, b in pairwise(received_by(world, name)) if a["g"] > b["g"]]
    assert steps, "every subscriber follows g: the world shows nothing"
    results = ask(spark, world, "pairwise-order", "common-order", "gaps", "entries", "missing-entries", "subscribed")
    assert {r.audit.name: r.rows for r in results if r.verdict == "violated"} == {}
    assert [r.audit.name for r in results if r.verdict == "information"] == ["common-order"]


IN_STEP = (
    "batches",
    "cuts",
    "slices",
    "taken-by-cut",
    "entries",
    "gaps",
    "missing-entries",
    "numbers",
    "positions",
    "published",
    "subscribed",
)
"""Audits that compare tables, or count."""


def test_a_lineage_that_began_late_is_judged_from_there_on(spark: SparkSession, world: World) -> None:
    cut = min(row["g"] for row in world["events"] if row["batch"] == 4)
    for table in ("events", "batches"):
        world.tables[table] = [row for row in world[table] if row["batch"] >= 4]
    world.tables["subscriptions"] = [row for row in world["subscriptions"] if row["g"] >= cut]
    assert [r.audit.name for r in ask(spark, world, *IN_STEP) if r.verdict == "violated"] == []


def test_what_is_not_known_in_full_yet_is_not_judged(spark: SparkSession, world: World) -> None:
    """Stamps partition 1 and the answers are behind the rest."""
    world.tables["events"] = [r for r in world["events"] if r["stamps_partition"] != 1 or r["batch"] <= 6]
    world.tables["batches"] = [r for r in world["batches"] if r["stamps_partition"] != 1 or r["batch"] <= 6]
    world.tables["subscriptions"] = world["subscriptions"][:-4]
    assert [r.audit.name for r in ask(spark, world, *IN_STEP) if r.verdict == "violated"] == []


# --- planted faults ---------------------------------------------------------------------------------------------------


def received_by(world: World, subscriber: str) -> list[dict[str, Any]]:
    """First deliveries, in the subscriber's order."""
    own = [row for row in world["deliveries"] if row["subscriber"] == subscriber and row["tag"] is None]
    return sorted(own, key=lambda row: (row["generation"], row["delivery_index"]))


def swapped_pair(world: World) -> list[dict[str, Any]]:
    both = {(row["subscriber"], row["g"]) for row in world["deliveries"]}
    mine = received_by(world, "r")
    for one, other in pairwise(mine):
        sharing = [s for s in "stuv" if {(s, one["g"]), (s, other["g"])} <= both]
        if sharing and one["nonce"] == other["nonce"]:
            one["delivery_index"], other["delivery_index"] = other["delivery_index"], one["delivery_index"]
            return [{"one": "r", "other": subscriber} for subscriber in sharing]
    raise AssertionError("no pair is shared")


def dropped_row(world: World) -> list[dict[str, Any]]:
    lost = received_by(world, "s")[5]
    world.tables["deliveries"] = [
        row for row in world["deliveries"] if (row["subscriber"], row["g"]) != ("s", lost["g"])
    ]
    return [{"subscriber": "s", "g": lost["g"]}]


def repeated_row(world: World) -> list[dict[str, Any]]:
    again = received_by(world, "t")[3]
    world["deliveries"].append(again | {"generation": 99, "delivery_index": 999})
    return [{"subscriber": "t", "delivery_index": 999, "time_received": 2}]


def other_number_received(world: World) -> list[dict[str, Any]]:
    row = received_by(world, "u")[4]
    row["n"] += 1
    made_up = row | {"offset": 10**6, "delivery_index": 999}
    world["deliveries"].append(made_up)
    return [{"subscriber": "u", "stamped_n": row["n"] - 1}, {"offset": 10**6, "stamped_g": None}]


def not_held(world: World) -> list[dict[str, Any]]:
    """One event of a topic that u does not hold, and one that a process receives when another has the id."""
    grant = [r for r in world["subscriptions"] if r["subscriber"] == "u" and r["kind"] == "granted"][-1]
    foreign = next(r for r in world["events"] if r["g"] > grant["g"] and r["topic"] not in grant["topics"])
    last = received_by(world, "u")[-1]
    event = {key: foreign[key] for key in ("topic", "kafka_topic", "partition", "offset", "n", "g")}
    world["deliveries"].append(last | event | {"delivery_index": 999})
    fenced = next(r for r in received_by(world, "u") if r["nonce"] != last["nonce"])
    world["deliveries"].append(last | {key: fenced[key] for key in ("nonce", "generation")})
    return [{"g": foreign["g"], "delivery_index": 999}, {"nonce": fenced["nonce"], "g": last["g"]}]


def number_gap(world: World) -> list[dict[str, Any]]:
    rows = [row for row in world["events"] if row["topic"] == "a"]
    world["events"].remove(rows[4])
    twice = rows[7] | {"topic": "z", "n": 1}
    world["events"].append(twice)
    return [{"topic": "a", "n": 6, "n_before": 4}, {"topic": "a", "n": 8, "times_stamped": 2}, {"topic": "z"}]


def position_gaps(world: World) -> list[dict[str, Any]]:
    """An event less, an answer less, and one position twice."""
    lost, moved, kept = world["events"][10], world["events"][30], world["events"][31]
    answer = world["subscriptions"][-2]
    world["events"].remove(lost)
    world["subscriptions"].remove(answer)
    gone = moved["g"]
    moved["g"] = kept["g"]
    missing = [{"g": g, "fault": "missing, or the last of several"} for g in (lost["g"], answer["g"], gone)]
    return [*missing, {"g": kept["g"], "fault": "taken more than once", "holders": "event, event"}]


def lost_batch(world: World) -> list[dict[str, Any]]:
    world.tables["batches"] = [r for r in world["batches"] if (r["stamps_partition"], r["batch"]) != (0, 3)]
    found = [{"stamps_partition": 0, "batch": 4, "fault": "follows batch 2"}]
    found += [{"stamps_partition": p, "batch": 3, "fault": "in 3 of 4 stamps partitions"} for p in (1, 2, 3)]
    if any((r["stamps_partition"], r["batch"]) == (0, 3) for r in world["events"]):
        found.append({"stamps_partition": 0, "batch": 3, "fault": "events of a batch that is not there"})
    return found


def damaged_batches(world: World) -> list[dict[str, Any]]:
    lost = world["events"][40]
    world["events"].remove(lost)
    for table in ("events", "batches"):
        for row in world[table]:
            row["incarnation"] += row["batch"] == 9
    back = world.find("batches", stamps_partition=2, batch=6)
    *source, offset = back["next_offsets"][0]
    back["next_offsets"] = [(*source, offset - 9), *back["next_offsets"][1:]]
    count = world.find("batches", stamps_partition=lost["stamps_partition"], batch=lost["batch"])["events"]
    found = [{"stamps_partition": p, "batch": 10, "fault": "follows incarnation 2"} for p in range(4)]
    found += [{"stamps_partition": p, "batch": 6, "fault": "stamps partitions disagree on it"} for p in (0, 1, 3)]
    found.append(
        {"stamps_partition": 2, "batch": 6, "fault": "does not go on in the log; stamps partitions disagree on it"}
    )
    return [*found, {"batch": lost["batch"], "fault": f"{count - 1} of {count} events"}]


def told_otherwise_once(world: World) -> list[dict[str, Any]]:
    """Of the last batch one stamps partition tells an end of its own: each by itself goes on."""
    last = max(row["batch"] for row in world["batches"])
    row = world.find("batches", stamps_partition=1, batch=last)
    *source, offset = row["next_offsets"][0]
    row["next_offsets"] = [(*source, offset + 1), *row["next_offsets"][1:]]
    return [{"stamps_partition": p, "batch": last, "fault": "stamps partitions disagree on it"} for p in range(4)]


def back_behind_an_earlier_batch(world: World) -> list[dict[str, Any]]:
    """Batch 4 does not advance a partition, and batch 5 says an end that batch 3 had already."""
    ends = {row["batch"]: row["next_offsets"] for row in world["batches"]}
    source, end = ends[3][0][:3], ends[3][0][3]
    assert all(source in [one[:3] for one in ends[batch]] for batch in (4, 5))
    for row in world["batches"]:
        if row["batch"] == 4:
            row["next_offsets"] = [one for one in ends[4] if one[:3] != source]
        if row["batch"] == 5:
            row["next_offsets"] = [(*source, end) if one[:3] == source else one for one in ends[5]]
    return [{"stamps_partition": p, "batch": 5, "fault": "does not go on in the log"} for p in range(4)]


def forged_digest(world: World) -> list[dict[str, Any]]:
    world.find("batches", stamps_partition=2, batch=5)["digest"] = "f" * 32
    return [{"stamps_partition": 2, "batch": 6, "digest_before": "f" * 32}]


def wrong_entry(world: World) -> list[dict[str, Any]]:
    event = next(row for row in world["events"] if row["g"] > 100 and row["entries"])
    topic = min(event["entries"])
    event["entries"][topic] -= 1
    return [{"g": event["g"], "entry_topic": topic, "true_count": event["entries"][topic] + 1}]


def missing_entries(world: World) -> list[dict[str, Any]]:
    keyframe = next(row for row in world["events"] if row["g"] > 100 and row["keyframe"] and row["entries"])
    delta = next(row for row in world["events"] if row["g"] > 150 and not row["keyframe"] and row["entries"])
    found = []
    for event, reason in ((keyframe, "a keyframe has the whole group"), (delta, "advanced")):
        topic = min(event["entries"])
        del event["entries"][topic]
        found.append({"g": event["g"], "missing_entry": topic, "reason": reason})
    return found


def other_content(world: World) -> list[dict[str, Any]]:
    world["events"][3]["read_crc32"] = None
    world["events"][7]["read_crc32"] += 1
    return [{"g": world["events"][7]["g"]}]


def exchanged_slices(world: World) -> list[dict[str, Any]]:
    """An event of the first slice of batch 5 and one of its last have each other's g."""
    parts = world.find("cuts", cut=5)["taken"]
    first, last = (
        next(row for row in world["events"] if row["batch"] == 5 and slice_of(row, parts) == slice_)
        for slice_ in (0, 2)
    )
    first["g"], last["g"] = last["g"], first["g"]
    return [{"batch": 5, "cut": 5, "slice": 1, "g_before": first["g"]}, {"batch": 5, "slice": 2, "first_g": last["g"]}]


def slice_of(event: dict[str, Any], parts: list[tuple[int, str, str, int, int, int]]) -> int:
    (found,) = (
        slice_
        for slice_, *source, begin, end in parts
        if tuple(source) == source_of(event) and begin <= event["offset"] < end
    )
    return found


def source_of(event: dict[str, Any]) -> tuple[str, str, int]:
    return event["kafka_topic"], event["topic_id"], event["partition"]


def stamped_elsewhere(world: World) -> list[dict[str, Any]]:
    """An event in the batch after its own, and one that no cut took."""
    late, invented = (next(row for row in world["events"] if row["batch"] == batch) for batch in (3, 6))
    late["batch"], invented["offset"] = 4, 10**6
    return [{"g": late["g"], "batch": 4, "cut": 4}, {"g": invented["g"], "cut": 6, "offset": 10**6}]


def lost_and_forged_cuts(world: World) -> list[dict[str, Any]]:
    """A cut is missing, one begins too late, one was written by a former sequencer, and two batches come from one."""
    lost, moved = world.find("cuts", cut=4), world.find("cuts", cut=6)
    world["cuts"].remove(lost)
    at, part = next((at, part) for at, part in enumerate(moved["taken"]) if part[2] == OLD and part[5] - part[4] > 1)
    moved["taken"][at] = (*part[:4], part[4] + 1, part[5])
    world.find("cuts", cut=9)["incarnation"] = 2
    for row in world["batches"]:
        row["cut"] -= row["batch"] == 11
    skipped = {part[1:4] for part in lost["taken"]}
    found = [{"cut": 5, "fault": "the cut before is missing"}, {"cut": 10, "fault": "follows incarnation 2"}]
    found.append({"cut": 6, "fault": f"all[{part[3]}] begins at {part[4] + 1}, and ended at {part[4]}"})
    found.append({"cut": 10, "fault": "batch 11 comes from it, and batch 10 from cut 10"})
    return found + [first_behind(world, 4, *source) for source in skipped]


def first_behind(world: World, cut: int, topic: str, topic_id: str, partition: int) -> dict[str, Any]:
    """What is to be said of the first part of a partition behind a cut that is missing."""
    parts = [
        (row["cut"], part)
        for row in world["cuts"]
        for part in row["taken"]
        if part[1:4] == (topic, topic_id, partition)
    ]
    before = max(part[5] for number, part in parts if number < cut)
    number, part = next((number, part) for number, part in parts if number > cut)
    return {"cut": number, "fault": f"{topic}[{partition}] begins at {part[4]}, and ended at {before}"}


# A topic was made anew in the middle of the world: what lies at one place of the old one and of the new one.


def old_twins(world: World, subscriber: str) -> set[tuple[int, int]]:
    """(partition, offset) of the events of the old topic that a subscriber received."""
    return {(row["partition"], row["offset"]) for row in received_by(world, subscriber) if row["topic_id"] == OLD}


def with_twins(world: World, subscriber: str) -> list[dict[str, Any]]:
    """What a subscriber received of the new topic from where it had received an event of the old one too, in order."""
    twins = old_twins(world, subscriber)
    rows = [row for row in received_by(world, subscriber) if row["topic_id"] == NEW]
    return [row for row in rows if (row["partition"], row["offset"]) in twins]


def swapped_pair_of_the_new_topic(world: World) -> list[dict[str, Any]]:
    """Two that everybody who received them received after their twins."""
    one, other, sharing = shared_twins(world)
    one["delivery_index"], other["delivery_index"] = other["delivery_index"], one["delivery_index"]
    first, second = (f"all[{row['partition']}]@{row['offset']} ({NEW})" for row in (other, one))
    told = {"one_received_first": first, "other_received_first": second}
    return [{"one": one["subscriber"], "other": subscriber} | told for subscriber in sharing]


def circle_in_the_new_topic(world: World) -> list[dict[str, Any]]:
    one, other, _ = shared_twins(world)
    one["delivery_index"], other["delivery_index"] = other["delivery_index"], one["delivery_index"]
    first, second = (f"all[{row['partition']}]@{row['offset']} ({NEW})" for row in (one, other))
    return [{"received": first, "before": second}, {"received": second, "before": first}]


def shared_twins(world: World) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Two neighbours, and who else received both; all had their twins before."""
    for subscriber in "rstuv":
        of = {name: {row["g"] for row in with_twins(world, name)} for name in "rstuv" if name != subscriber}
        mine = received_by(world, subscriber)
        for one, other in pairwise(mine):
            gs = {one["g"], other["g"]}
            sharing = [name for name, own in of.items() if gs <= own]
            received = [name for name in of if gs <= {row["g"] for row in received_by(world, name)}]
            ours = gs <= {row["g"] for row in with_twins(world, subscriber)}
            if ours and sharing and sharing == received and one["nonce"] == other["nonce"]:
                return one, other, sharing
    raise AssertionError("no pair is shared")


def dropped_row_of_the_new_topic(world: World) -> list[dict[str, Any]]:
    lost = with_twins(world, "s")[2]
    world.tables["deliveries"] = [
        row for row in world["deliveries"] if (row["subscriber"], row["g"]) != ("s", lost["g"])
    ]
    return [{"subscriber": "s", "g": lost["g"], "topic_id": NEW}]


def repeated_row_of_the_new_topic(world: World) -> list[dict[str, Any]]:
    again = with_twins(world, "t")[1]
    world["deliveries"].append(again | {"generation": 99, "delivery_index": 999})
    return [{"subscriber": "t", "delivery_index": 999, "time_received": 2, "topic_id": NEW}]


def received_from_the_other_topic(world: World) -> list[dict[str, Any]]:
    row = with_twins(world, "u")[0]
    row["topic_id"] = OLD
    twin = next(one for one in world["events"] if (source_of(one), one["offset"]) == (source_of(row), row["offset"]))
    return [{"subscriber": "u", "g": row["g"], "topic_id": OLD, "stamped_g": twin["g"], "stamped_n": twin["n"]}]


def stamped_twice_in_the_new_topic(world: World) -> list[dict[str, Any]]:
    of_new = [row for row in world["events"] if row["topic_id"] == NEW]
    world["events"].append(of_new[0] | {"topic": "z", "n": 1})
    told = {"g": of_new[0]["g"], "topic_id": NEW, "times_stamped": 2}
    return [told | {"topic": of_new[0]["topic"]}, told | {"topic": "z"}]


def stamped_as_of_the_other_topic(world: World) -> list[dict[str, Any]]:
    row = next(row for row in world["events"] if row["topic_id"] == NEW and row["batch"] == 10)
    row["topic_id"] = OLD
    return [{"g": row["g"], "batch": 10, "topic_id": OLD}]


def stamped_behind_its_end(world: World) -> list[dict[str, Any]]:
    """One event of the old topic behind its retirement, which also calls lost what was stamped."""
    (retired,) = (row for row in world["subscriptions"] if row["kind"] == "retired")
    late = next(row for row in world["events"] if row["g"] > retired["g"] + 9)
    late["topic_id"], late["partition"] = OLD, 0
    ((partition, begin, end),) = retired["lost"]
    retired["lost"] = [(partition, begin - 1, end)]
    stamped = world.find("events", topic_id=OLD, partition=partition, offset=begin - 1)
    told = {"kafka_topic": "all", "topic_id": OLD, "retired_g": retired["g"]}
    return [
        told | {"partition": 0, "offset": late["offset"], "fault": f"stamped behind it, at g {late['g']}"},
        told | {"offset": begin - 1, "fault": f"called lost, and stamped at g {stamped['g']}"},
    ]


def lost_in_silence(world: World) -> list[dict[str, Any]]:
    """What is called lost begins behind where the stamps end."""
    (retired,) = (row for row in world["subscriptions"] if row["kind"] == "retired")
    ((partition, begin, end),) = retired["lost"]
    retired["lost"] = [(partition, begin + 1, end)]
    told = {"topic_id": OLD, "partition": partition, "offset": begin + 1}
    return [told | {"fault": f"lost from here on only, and stamps end at {begin}"}]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("slices", exchanged_slices),
        ("taken-by-cut", stamped_elsewhere),
        ("cuts", lost_and_forged_cuts),
        ("pairwise-order", swapped_pair),
        ("gaps", dropped_row),
        ("duplicates", repeated_row),
        ("published", other_number_received),
        ("subscribed", not_held),
        ("numbers", number_gap),
        ("positions", position_gaps),
        ("batches", lost_batch),
        ("batches", damaged_batches),
        ("batches", back_behind_an_earlier_batch),
        ("batches", told_otherwise_once),
        ("pairwise-order", swapped_pair_of_the_new_topic),
        ("common-order", circle_in_the_new_topic),
        ("gaps", dropped_row_of_the_new_topic),
        ("duplicates", repeated_row_of_the_new_topic),
        ("published", received_from_the_other_topic),
        ("numbers", stamped_twice_in_the_new_topic),
        ("taken-by-cut", stamped_as_of_the_other_topic),
        ("retired", stamped_behind_its_end),
        ("retired", lost_in_silence),
        ("digests", forged_digest),
        ("entries", wrong_entry),
        ("missing-entries", missing_entries),
        ("content", other_content),
    ],
)
def test_a_planted_fault_is_found_and_nothing_else(
    spark: SparkSession, world: World, name: str, plant: Planted
) -> None:
    expected = plant(world)
    (result,) = ask(spark, world, name)
    assert result.verdict == "violated"
    found = rows(result)
    for row in expected:
        matching = [one for one in found if row.items() <= {key: one[key] for key in row}.items()]
        assert len(matching) == 1, (row, found)
        found.remove(matching[0])
    assert found == []


def test_a_topic_that_joins_a_group_is_missed_where_it_did_not_advance(spark: SparkSession) -> None:
    items = [change("r", "ab"), *events("a"), change("s", "ac"), *events("a")]
    world = honest_world(items)
    joined = world.find("events", g=4)
    assert joined["entries"].pop("c") == 0
    (result,) = ask(spark, world, "missing-entries")
    assert [(row["g"], row["missing_entry"], row["reason"]) for row in rows(result)] == [(4, "c", "joined or left")]


def test_a_circle_of_three_that_no_pair_shows_is_found(spark: SparkSession) -> None:
    world = honest_world([change("r", "ab"), change("s", "bc"), change("t", "ac"), *events("abc")])
    first, second = received_by(world, "t")
    first["delivery_index"], second["delivery_index"] = 2, 1
    pairwise, common = ask(spark, world, "pairwise-order", "common-order")
    assert pairwise.verdict == "holds"
    assert common.verdict == "violated"
    assert sorted(row["subscriber"] for row in rows(common)) == ["r", "s", "t"]


def test_a_forged_g_neither_hides_a_disagreement_nor_makes_one(spark: SparkSession) -> None:
    """All receipts tell a g that follows what t received: then r and s descend, who are right."""
    items = [change("r", "abc"), change("s", "abc"), change("t", "abc"), *events("abcabcabc")]
    world = honest_world(items)
    order = received_by(world, "t")
    forged = {row["offset"] * 10 + row["partition"]: 100 - at for at, row in enumerate(order)}
    for row in world["deliveries"]:
        row["g"] = forged[row["offset"] * 10 + row["partition"]]
    assert [r.verdict for r in ask(spark, world, "pairwise-order", "common-order")] == ["holds", "holds"]
    for at, row in enumerate(order, 1):
        row["delivery_index"] = len(order) + 1 - at
    pairwise, common = ask(spark, world, "pairwise-order", "common-order")
    assert (pairwise.verdict, common.verdict) == ("violated", "violated")
    assert {(row["one"], row["other"]) for row in rows(pairwise)} == {("r", "t"), ("s", "t")}


def test_pairs_that_disagree_are_those_of_the_dumb_twin(spark: SparkSession) -> None:
    """300 random small domains at once, each with subscribers and topics of its own, and any g."""
    rng = random.Random(7)
    template = honest_world([change("r", "a"), *events("a")])["deliveries"][0]
    deliveries, expected = [], set()
    for case in range(300):
        pool = rng.sample(range(8), 8)
        orders = {f"{case}-{name}": rng.sample(range(8), rng.randint(0, 5)) for name in "rst"}
        if rng.random() < 0.7:
            orders = {name: sorted(order, key=pool.index) for name, order in orders.items()}
        for name, order in orders.items():
            for index, event in enumerate(order):
                place = {"kafka_topic": str(case), "offset": event, "g": rng.choice([event, pool.index(event), 1])}
                deliveries.append(template | place | {"subscriber": name, "delivery_index": index})
        for (one, mine), (other, theirs) in combinations(orders.items(), 2):
            shared = [event for event in mine if event in theirs]
            if shared != sorted(shared, key=theirs.index):
                expected.add((one, other))
    world = honest_world([change("r", "a"), *events("a")])
    world.tables["deliveries"] = deliveries
    world.register(spark)
    result = Auditor.of_views(spark).ask(AUDITS["pairwise-order"], most_rows=100_000)
    found = {tuple(sorted((row["one"], row["other"]))) for row in rows(result)}
    assert found == expected
    assert 20 < len(expected) < 600


def test_slices_of_a_topic_and_of_its_successor_in_one_batch_are_told_apart(spark: SparkSession) -> None:
    """Both begin at offset 0, the old one in the first slice and the new one in the last."""
    world = honest_world([change("r", "ab"), *events("abab"), ANEW, *events("abab")], batch_size=10)
    parts = {(part[2], part[4]): part[0] for part in world.find("cuts", cut=1)["taken"] if part[1] == "all"}
    assert (parts[OLD, 0], parts[NEW, 0]) == (0, 2)
    names = ("slices", "taken-by-cut", "cuts", "batches", "published", "gaps", "duplicates", "numbers", "retired")
    assert {result.audit.name: result.rows for result in ask(spark, world, *names)} == dict.fromkeys(names, ())


def test_what_is_lost_begins_where_stamps_end_as_soon_as_they_are_known(spark: SparkSession, world: World) -> None:
    """Answers are ahead of stamps: the old topic's last batches are not in the tables yet."""
    (retired,) = (row for row in world["subscriptions"] if row["kind"] == "retired")
    ends = [row["batch"] for row in world["batches"] if row["g"] >= retired["g"]]
    for table in ("events", "batches"):
        world.tables[table] = [row for row in world[table] if row["batch"] < min(ends) - 1]
    assert [result.rows for result in ask(spark, world, "retired")] == [()]


def test_a_batch_of_events_that_name_no_topic_takes_no_position(spark: SparkSession, world: World) -> None:
    last = [row for row in world["batches"] if row["batch"] == max(row["batch"] for row in world["batches"])]
    for row in last:
        ends = [(*source, offset + 1) for *source, offset in row["next_offsets"]]
        more = {"batch": row["batch"] + 1, "events": 0, "next_offsets": ends, "cut": row["cut"] + 1}
        world["batches"].append(row | more | {"previous_digest": row["digest"], "digest": "f" * 32})
    (result,) = ask(spark, world, "batches")
    assert result.verdict == "holds", result.rows
    for row in world["batches"][-len(last) :]:
        row["g"] -= 1
    (result,) = ask(spark, world, "batches")
    assert [row["fault"].startswith("ends at g") for row in rows(result)] == [True] * len(last)


def test_of_several_cuts_of_a_number_the_last_counts(spark: SparkSession, world: World) -> None:
    never_ran = world.find("cuts", cut=5)
    for row in world["cuts"]:
        row["cuts_offset"] *= 2
    world["cuts"].append(never_ran | {"cuts_offset": never_ran["cuts_offset"] - 1, "taken": never_ran["taken"][:1]})
    names = ("cuts", "slices", "taken-by-cut")
    assert [result.verdict for result in ask(spark, world, *names)] == ["holds"] * 3
    world["cuts"][-1]["cuts_offset"] += 2
    assert [result.verdict for result in ask(spark, world, *names)] == ["violated", "holds", "violated"]


def test_without_cuts_nothing_is_said_of_them(spark: SparkSession, world: World) -> None:
    world.tables["cuts"] = []
    names = ("cuts", "slices", "taken-by-cut")
    assert [result.verdict for result in ask(spark, world, *names)] == ["empty"] * 3


# --- losses -----------------------------------------------------------------------------------------------------------


def lossy_world() -> World:
    """Two subscribers of a and b. At g 7, in the place of a refused request, five offsets of the Kafka topic a are
    lost, and both are told; r is told too that Kafka has the event at g 4 no longer.
    """
    world = honest_world([change("r", "ab"), change("s", "ab"), *events("abab"), change("nobody"), *events("abab")])
    answer = world.find("subscriptions", g=7)
    assert answer["kind"] == "rejected"
    where = {"kafka_topic": "a", "topic_id": "id-a"}
    answer |= where | {"kind": "skipped", "generation": None, "reason": None, "lost": [(3, 5, 10)]}
    for name in "rs":
        received = sorted(received_by(world, name), key=lambda row: row["g"])
        told = received[3] | where | {"topic": "a", "partition": 3, "offset": 5, "n": 0, "g": 7, "tag": "lost"}
        world["deliveries"].append(told)
        for index, row in enumerate([*received[:4], told, *received[4:]], 1):
            row["delivery_index"] = index
    world.find("deliveries", subscriber="r", g=4)["tag"] = "lost"
    return world


def test_what_is_told_as_lost_is_missing_nowhere_and_listed(spark: SparkSession) -> None:
    world = lossy_world()
    results = {result.audit.name: result for result in ask(spark, world, *ASKED)}
    assert {name: result.rows for name, result in results.items() if result.verdict == "violated"} == {}
    assert {results[name].verdict for name in ("skipped", "gaps", "pairwise-order", "published")} == {"holds"}
    event = world.find("events", g=4)
    said = ("how", "subscriber", "partition", "first_lost", "last_lost", "offsets", "lost_g")
    assert [tuple(row[name] for name in said) for row in rows(results["losses"])] == [
        ("before it was received", "r", event["partition"], event["offset"], event["offset"], 1, 4),
        ("before it was stamped", None, 3, 5, 9, 5, 7),
    ]


def loss_is_not_told(world: World) -> list[dict[str, Any]]:
    world["deliveries"].remove(world.find("deliveries", subscriber="r", g=7))
    return [{"subscriber": "r", "g": 7, "n": 0, "partition": 3, "offset": 5}]


def loss_is_told_again(world: World) -> list[dict[str, Any]]:
    again = world.find("deliveries", subscriber="s", g=7) | {"delivery_index": 98}
    world["deliveries"].extend([again | {"tag": "lost again"}, again | {"delivery_index": 99}])
    return [{"subscriber": "s", "delivery_index": 99, "time_received": 3}]


def loss_is_told_elsewhere(world: World) -> list[dict[str, Any]]:
    world.find("deliveries", subscriber="s", g=7)["g"] = 8
    return [{"subscriber": "s", "g": 8, "stamped_g": 7, "stamped_n": 0}]


def loss_is_told_out_of_order(world: World) -> list[dict[str, Any]]:
    told, after = (world.find("deliveries", subscriber="s", g=g) for g in (7, 8))
    told["delivery_index"], after["delivery_index"] = after["delivery_index"], told["delivery_index"]
    return [{"one": "s", "other": "r"}]


def lost_and_stamped(world: World) -> list[dict[str, Any]]:
    """One event of what is called lost, one behind it that stands before, and one before it that stands behind."""
    moved = {3: 7, 5: 12, 8: 2}
    for g, offset in moved.items():
        world.find("events", g=g).update(kafka_topic="a", topic_id="id-a", partition=3, offset=offset)
    faults = ("called lost, and stamped", *["not on the side of 5 to 9 on which it lies in the log"] * 2)
    told = zip(moved.items(), faults, strict=True)
    return [{"g": g, "offset": offset, "skipped_g": 7, "fault": fault} for (g, offset), fault in told]


@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("gaps", loss_is_not_told),
        ("duplicates", loss_is_told_again),
        ("published", loss_is_told_elsewhere),
        ("pairwise-order", loss_is_told_out_of_order),
        ("skipped", lost_and_stamped),
    ],
)
def test_a_fault_about_a_loss_is_found(spark: SparkSession, name: str, plant: Planted) -> None:
    world = lossy_world()
    expected = plant(world)
    (result,) = ask(spark, world, name)
    assert result.verdict == "violated"
    assert [{key: row[key] for key in told} for row, told in zip(rows(result), expected, strict=True)] == expected


# --- what informs -----------------------------------------------------------------------------------------------------


def test_deliveries_beyond_all_stamps_are_shown(spark: SparkSession, world: World) -> None:
    """A receipt of an event that never was, with a position that nobody gave."""
    last = max(world["deliveries"], key=lambda row: (row["subscriber"], row["delivery_index"]))
    forged = {"kafka_topic": "nowhere", "offset": 7, "g": 10**6, "n": 1, "delivery_index": last["delivery_index"] + 1}
    world["deliveries"].append(last | forged)
    (shown,) = ask(spark, world, "not-stamped-yet")
    assert shown.rows == ((last["subscriber"], 1, 10**6, 10**6),)


def test_what_was_lost_with_a_topic_is_shown(spark: SparkSession, world: World) -> None:
    (shown,) = ask(spark, world, "losses")
    (answer,) = (row for row in world["subscriptions"] if row["kind"] == "retired")
    ((partition, begin, end),) = answer["lost"]
    (row,) = rows(shown)
    assert (row["kafka_topic"], row["topic_id"], row["partition"]) == ("all", OLD, partition)
    assert (row["first_lost"], row["last_lost"], row["offsets"], row["lost_g"]) == (begin, end - 1, 2, answer["g"])
    assert (row["how"], row["subscriber"]) == ("with its topic", None)
    # Asked again, by a process that had seen more.
    world["subscriptions"].append(answer | {"g": 10**6, "lost": [(partition, begin, end + 3), (2, 7, 8)]})
    assert [(row["partition"], row["offsets"], row["lost_g"]) for row in rows(*ask(spark, world, "losses"))] == [
        (partition, 5, answer["g"]), (2, 1, 10**6)
    ]  # fmt: skip


def test_each_delivery_has_one_latency(spark: SparkSession, world: World) -> None:
    """Also where an event of another topic of the name lies at the same place."""
    firsts = [row for row in world["deliveries"] if row["tag"] is None]
    (result,) = ask(spark, world, "latency")
    assert {row["deliveries"] for row in rows(result) if row["topic"] is row["subscriber"] is None} == {len(firsts)}
    assert sum(count for _, count in Auditor.of_views(spark).query(LATENCIES)[1]) == len(firsts)


def test_given_up_tails_and_histories_are_shown(spark: SparkSession) -> None:
    """Another process begins anew, two events behind what the first received."""
    items = [change("r", "ab"), change("s", "ab"), *events("abab"), change("r", "ab"), *events("ab")]
    world = honest_world(items)
    world.tables["deliveries"] = [
        row for row in world["deliveries"] if row["subscriber"] == "s" or row["g"] not in (5, 6)
    ]
    gaps, given_up, history_of_r, who = ask(
        spark, world, "gaps", "given-up", "history", "who-received", subscriber="r", topic="a", n="3"
    )
    assert (gaps.verdict, given_up.verdict) == ("holds", "information")
    assert [(row["topic"], row["events"], row["first_g"]) for row in rows(given_up)] == [("a", 1, 5), ("b", 1, 6)]
    told = [(row["g"], row["kind"], row["deliveries"]) for row in rows(history_of_r)]
    assert told == [(1, "granted", None), (3, "received", 2), (7, "granted", None), (8, "received", 2)]
    assert [row["reason"] for row in rows(history_of_r)] == ["not judged before g 1, wherever start began", *[None] * 3]
    assert who.title == "Who received event 3 of topic a"
    assert sorted((row["subscriber"], row["before"], row["after"]) for row in rows(who)) == [
        ("r", "b#1", "b#3"),
        ("s", "b#2", "b#3"),
    ]


def test_latencies_are_those_of_the_rows(spark: SparkSession) -> None:
    world = honest_world([change("r", "ab"), change("s", "a"), *events("ab")])
    (result,) = ask(spark, world, "latency")
    found = {(row["topic"], row["subscriber"], row["part"]): row for row in rows(result)}
    assert {key[:2]: row["deliveries"] for key, row in found.items()} == {
        (None, None): 3, ("a", None): 2, ("b", None): 1, (None, "r"): 2, (None, "s"): 1
    }  # fmt: skip
    parts = [(part, found["b", None, part]) for part in ("to_stamp", "stamp_to_delivery", "to_delivery")]
    assert [(row["p50"], row["p95"], row["p99"]) for _, row in parts] == [(40,) * 3, (7,) * 3, (47,) * 3]
    assert [row["part"] for row in rows(result)[:3]] == [part for part, _ in parts]


def test_what_informs_fits_on_80_columns(spark: SparkSession, world: World) -> None:
    for result in ask(spark, world, "latency", "who-received", topic="a", n="7"):
        console = Console(width=80, file=io.StringIO())
        show_rows(console, result.columns, result.rows)
        text = cast("io.StringIO", console.file).getvalue()
        assert text.split()[: len(result.columns)] == list(result.columns), "a table, and no line for each value"
        assert len(text.splitlines()) == 1 + len(result.rows)


# --- what is not judged -----------------------------------------------------------------------------------------------


def test_who_was_granted_and_has_no_receipts_is_named(spark: SparkSession, world: World) -> None:
    world.tables["deliveries"] = [row for row in world["deliveries"] if row["subscriber"] not in ("s", "u")]
    world["subscriptions"].append(world["subscriptions"][0] | {"subscriber": "x", "kind": "rejected", "g": 10**6})
    world.register(spark)
    assert Auditor.of_views(spark).not_judged() == ("s", "u")


def test_a_process_that_tells_nothing_is_named_though_others_of_its_id_tell(spark: SparkSession, world: World) -> None:
    """Else one receipt of anybody's in an id's name would hide that all the others are missing."""
    told: dict[str, set[str]] = {}
    for row in world["deliveries"]:
        told.setdefault(row["subscriber"], set()).add(row["nonce"])
    name = next(name for name, nonces in sorted(told.items()) if len(nonces) > 1)
    nonce = world.find("subscriptions", subscriber=name, kind="granted")["nonce"]
    world.tables["deliveries"] = [row for row in world["deliveries"] if row["nonce"] != nonce]
    world.register(spark)
    assert Auditor.of_views(spark).not_judged() == (f"{name} (process {nonce})",)


def test_nobody_who_tells_is_named(spark: SparkSession, world: World) -> None:
    world.register(spark)
    assert Auditor.of_views(spark).not_judged() == ()


def test_a_receipt_from_far_beyond_all_stamps_is_found_an_hour_later(spark: SparkSession, world: World) -> None:
    beyond = world["deliveries"][-1] | {"g": 10**15, "n": 10**15, "offset": 10**15, "delivery_index": 10**6}
    world["deliveries"].append(beyond)
    (late,) = ask(spark, world, "published")
    assert late.verdict == "holds", "stamps may be on their way"
    beyond["receipt_time"] = world["batches"][-1]["stamped_time"] - timedelta(minutes=61)
    (found,) = ask(spark, world, "published")
    assert found.verdict == "violated"
    assert [row["g"] for row in rows(found)] == [10**15]
    # A stamps partition that is known less far: its stamps may be on their way still.
    world.tables["batches"] = [row for row in world["batches"] if row["batch"] == 1 or row["stamps_partition"] > 0]
    world.tables["batches"][0]["stamped_time"] = beyond["receipt_time"]
    assert world["batches"][0]["stamps_partition"] == 0
    assert [row["g"] for row in rows(ask(spark, world, "published")[0]) if row["g"] == 10**15] == []


def test_what_has_nothing_to_judge_does_not_hold(spark: SparkSession, world: World) -> None:
    world.tables["deliveries"] = []
    world.tables["events"] = []
    names = ["pairwise-order", "gaps", "published", "subscribed", "entries", "missing-entries", "numbers", "batches"]
    verdicts = {r.audit.name: r.verdict for r in ask(spark, world, *names)}
    assert verdicts == dict.fromkeys(names, "empty") | {"batches": "violated"}


# --- the commands -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Honest tables in Delta."""
    root = tmp_path_factory.mktemp("lineage") / "tables"
    honest_world(history(1, length=60)).register(spark)
    for name in TABLES:
        spark.table(name).coalesce(1).write.format("delta").save(str(root / name))
    return root


@pytest.fixture
def delta(written: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tables, and commands that use the tests' session."""
    monkeypatch.setattr(session, "start_delta_session", lambda *_args, **_more: spark)
    monkeypatch.setattr(session, "end_session", lambda _spark: None)
    return written


def run(*args: object) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main([str(arg) for arg in args])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_the_command_gives_verdicts_and_exit_codes(
    delta: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    only = [part for name in ("digests", "latency") for part in ("--only", name)]
    assert run("audit", "--tables", delta, *only, "--html", page, "--rows", 2) == 0
    shown = capfd.readouterr().out
    assert "holds" in shown
    assert "information" in shown
    assert "… and more" in shown
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    own = tmp_path / "mine.sql"
    own.write_text("-- title: No event is of topic a\nSELECT topic, n FROM events WHERE topic = 'a' ORDER BY n")
    assert run("audit", "--tables", delta, "--sql", own, "--json", "--rows", 1) == 1
    told, last = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert last == {"judged_through_g": 60, "newest_g": 60, "not_judged": []}
    assert (told["verdict"], told["rows"], told["more_rows"]) == ("violated", [{"topic": "a", "n": 1}], True)


def test_sql_prints_a_table_or_lines(delta: Path, capfd: pytest.CaptureFixture[str]) -> None:
    query = "SELECT topic, entries FROM events WHERE topic = :t ORDER BY g"
    assert run("sql", "--tables", delta, query, "--json", "--rows", 1, "--param", "t=a") == 0
    assert json.loads(capfd.readouterr().out)["topic"] == "a"
    assert run("sql", "--tables", delta, "SELECT 'it''s' AS said, :x AS given", "--param", "x=o'clock\\") == 0
    assert "o'clock\\" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("timestamp_micros(1796058000000000000)", "+58884-10-23 08:00:00"),
        ("timestamp_micros(-100000000000000000)", "-1199-02-15 14:13:20"),
        ("timestamp_ntz'+58881-01-01 00:00:00'", "+58881-01-01 00:00:00"),
        ("make_date(-5, 1, 1)", "-0005-01-01"),
        ("array(timestamp_micros(1796058000000000000))", ["+58884-10-23 08:00:00"]),
        ("map(make_date(58881, 1, 1), struct(timestamp'2026-01-02 03:04:05.006' AS x))", None),
        ("interval '1' year", "INTERVAL '1' YEAR"),
        ("make_interval(1, 2)", "1 years 2 months"),
        ("batch_time", "2026-11-01 12:00:00.205"),
    ],
)
def test_what_python_has_no_value_for_is_shown_as_spark_writes_it(
    delta: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], sql: str, told: object
) -> None:
    query = f"SELECT {sql} AS t, {sql} AS t FROM batches ORDER BY batch LIMIT 1"
    assert run("sql", "--tables", delta, query) == 0
    assert str(told or "+58881-01-01") in capfd.readouterr().out
    own = tmp_path / "mine.sql"
    own.write_text(f"SELECT {sql} AS t FROM batches ORDER BY batch LIMIT 1")
    assert run("audit", "--tables", delta, "--sql", own, "--json") == 1
    (row,) = json.loads(capfd.readouterr().out.splitlines()[0])["rows"]
    assert row["t"] == (told or {"+58881-01-01": ["2026-01-02 03:04:05.006"]})


def test_a_question_opens_what_it_names_and_nothing_else(
    delta: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def spied(root: str, name: str) -> pa.Table | None:
        opened.append(name)
        return small.read_small(root, name)

    monkeypatch.setattr(audit, "read_small", spied)
    assert run("sql", "--tables", delta, "SELECT count(*) FROM Events -- not batches", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"count(1)": 48}
    assert opened == ["events"]
    opened.clear()
    assert run("sql", "--tables", delta, "SELECT 'events' AS x, through_g FROM `complete`") == 0
    assert opened == ["batches", "subscriptions"]
    opened.clear()
    assert run("audit", "--tables", delta, "--only", "content") == 0
    assert opened == ["deliveries", "batches", "subscriptions", "events"], "events last: a batch comes after its events"


def test_large_tables_are_asked_as_small_ones_are_and_columns_before_rows(
    delta: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    two = ("--only", "digests", "--only", "gaps")
    assert run("audit", "--tables", delta, *two, "--json") == 0
    as_small = [json.loads(line) | {"seconds": 0} for line in capfd.readouterr().out.splitlines()]
    monkeypatch.setattr(small, "SMALL_BYTES", -1)
    assert run("audit", "--tables", delta, *two, "--json") == 0
    assert [json.loads(line) | {"seconds": 0} for line in capfd.readouterr().out.splitlines()] == as_small
    with monkeypatch.context() as patched:
        patched.setattr(Auditor, "count", lambda *_: pytest.fail("rows were read"))
        assert run("sql", "--tables", delta, "SELECT nonsense FROM events JOIN batches USING (batch)") == 2
        assert "nonsense" in capfd.readouterr().err


@pytest.mark.parametrize(("few", "partitions", "planned_anew"), [(20_000, "1", "false"), (1, "4", "true")])
def test_few_rows_are_asked_in_one_piece(
    spark: SparkSession, written: Path, monkeypatch: pytest.MonkeyPatch, few: int, partitions: str, planned_anew: str
) -> None:
    own = spark.newSession()
    own.conf.set("spark.sql.shuffle.partitions", "4")
    monkeypatch.setattr(audit, "_FEW", few)
    assert Auditor(own, str(written)).known() == (60, 60)
    assert own.conf.get("spark.sql.shuffle.partitions") == partitions
    assert own.conf.get("spark.sql.adaptive.enabled") == planned_anew
    assert own.conf.get("spark.sql.codegen.wholeStage") == "false"


def test_small_files_may_hold_more_than_is_read_at_once(
    written: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = (
        spark.read.format("delta")
        .load(str(written / "events"))
        .withColumn("payload", F.expr("binary(repeat('x', 90000))"))
    )
    large.write.format("delta").save(str(tmp_path / "events"))
    assert sum(path.stat().st_size for path in (tmp_path / "events").glob("*.parquet")) < small.SMALL_BYTES
    monkeypatch.setattr(pieces, "AT_ONCE_BYTES", 1_000_000)
    assert small.read_small(str(tmp_path), "events") is None
    assert small.read_small(str(written), "events") is not None


@pytest.mark.parametrize("name", ["a%20b", "a b", "a`b", "a#b?c*", "a\nb", "a\\b", "s3:x", "'\""])
def test_a_root_of_any_name_is_read_as_it_is_or_left_to_spark(written: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "a b").mkdir()
    shutil.copytree(written / "batches", tmp_path / name / "batches")
    rows = small.read_small(str(tmp_path / name), "batches")
    assert (rows is None) == (name in ("a%20b", "a\nb", "a\\b"))


def test_a_relative_root_with_a_colon_is_no_uri(
    delta: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(delta, tmp_path / "a:b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(small, "SMALL_BYTES", -1)
    assert run("sql", "--tables", "a:b", "SELECT count(*) AS n FROM events", "--json") == 0
    assert json.loads(capfd.readouterr().out) == {"n": 48}


def test_times_of_96_bits_are_read_as_they_are(spark: SparkSession, written: Path, tmp_path: Path) -> None:
    """As an older version wrote them."""
    far = spark.read.format("delta").load(str(written / "batches"))
    far = far.withColumn("stamped_time", F.timestamp_micros(F.lit(1_796_058_000_000_000_000)))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    far.write.format("delta").save(str(tmp_path / "batches"))
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    rows = small.read_small(str(tmp_path), "batches")
    assert rows is not None
    assert set(rows.column("stamped_time").cast(pa.int64()).to_pylist()) == {1_796_058_000_000_000_000}


def test_faults_that_spark_finds_are_told_in_one_line(
    delta: Path, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "damaged"
    for name in TABLES:
        (damaged / name / "_delta_log").mkdir(parents=True)
    cases = [
        (["audit", "--tables", damaged], "there is no Delta table"),
        (["sql", "--tables", delta, "SELECT 1 1 1"], "Syntax error"),
        (["sql", "--tables", delta, "SELECT nonsense FROM events"], "nonsense"),
    ]
    for args, word in cases:
        assert run(*args) == 2
        told = capfd.readouterr().err
        assert word in told
        assert "Traceback" not in told
    with pytest.raises(SettingsError, match="needs a value for x"):
        Auditor.of_views(spark).ask(parse_audit("mine", "SELECT :x"))


def test_tables_of_a_version_without_ids_are_refused(
    delta: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in TABLES:
        shutil.copytree(delta / name, tmp_path / name)
    shutil.rmtree(tmp_path / "events")
    old = spark.read.format("delta").load(str(delta / "events")).drop("topic_id")
    old.write.format("delta").save(str(tmp_path / "events"))
    for most in (small.SMALL_BYTES, -1):
        monkeypatch.setattr(small, "SMALL_BYTES", most)
        assert run("audit", "--tables", tmp_path) == 2
        told = " ".join(capfd.readouterr().err.split())
        assert "events was written by an earlier version of totalorder: it has no column topic_id" in told
        assert run("sql", "--tables", tmp_path, "SELECT count(*) FROM batches") == 0
