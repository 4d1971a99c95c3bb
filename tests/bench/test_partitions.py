"""What `totalorder bench partitions` makes of what it saw, and how its load is laid out."""

import json
import multiprocessing
import os
import struct
import threading
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest
from kafka import TopicPartition
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.bench.live.load import Receiver, Worker, _note, publish_paced, receive_plain
from totalorder.bench.live.memory import Memory, descendants
from totalorder.bench.live.progress import WHOLE, BatchTime
from totalorder.bench.outcome import Size
from totalorder.bench.partitions.command import Layout, Plan
from totalorder.bench.partitions.page import KINDS, Measured, Phase, page, summary, tables
from totalorder.broker import LocalBroker

_BOUND_S = 30.0


@pytest.mark.parametrize("size", Size)
def test_a_layout_has_its_partitions_in_few_topics_of_equal_size(size: Size) -> None:
    layouts = Plan.of(size).layouts
    for layout in layouts:
        assert len(layout.topics) * layout.each == layout.partitions
        assert layout.each <= 64
        assert len(set(layout.topics)) == len(layout.topics)
    assert len({layout.name for layout in layouts}) == len({layout.topics for layout in layouts}) == len(layouts)
    assert len(Layout.of(64).topics) == 1
    assert (len(Layout.of(1_000).topics), Layout.of(1_000).each) == (20, 50)


@pytest.mark.parametrize("size", Size)
def test_the_last_layout_is_the_largest_with_partitions_that_nobody_writes_to(size: Size) -> None:
    *_, full, part = Plan.of(size).layouts
    assert full.load == (full.topics, full.each)
    topics, written = part.load
    assert part.partitions == full.partitions
    assert (topics, written) == (part.topics[:1], part.written)
    assert 0 < written <= part.each
    assert written < part.partitions
    assert Layout.of(1_000, 4).name == "1,000 (4 written to)"


def test_processes_below_another_are_found_at_any_depth() -> None:
    assert descendants(10, {10: 1, 11: 10, 12: 11, 13: 12, 20: 1, 21: 20}) == {11, 12, 13}
    assert descendants(os.getpid(), {}) == set()


def phase(delay_s: float, *, came: int = 100, missing: int = 0, trigger_ms: int = 40) -> Phase:
    batch = BatchTime(rows=1, ms={WHOLE: trigger_ms})
    return Phase(delays=np.full(came, delay_s), missing=missing, acknowledged_s=delay_s / 4, batches=(batch,) * 3)


MEMORY = Memory(java_mb=900.0, heap_mb=80.0, python_mb=300.0)
RATES = (200, 3_000, 10_000)


def found() -> dict[str, dict[str, Measured]]:
    copy = Measured(phases={200: phase(0.2), 3_000: phase(0.1)}, memory=MEMORY)
    behind = phase(0.2, came=50, missing=150, trigger_ms=9_000)
    tuned = Measured(phases={200: phase(0.05), 3_000: behind}, memory=MEMORY)
    job = Measured(phases={200: phase(0.4), 3_000: phase(0.2)}, memory=MEMORY, failure="it ended")
    return {"64": {"copy": copy, "tuned": tuned, "job": job}}


def test_ratios_are_the_job_over_each_copy() -> None:
    at = json.loads(json.dumps(summary(RATES, found())))["64"]["rates"]["200"]
    assert at["copy"]["events"] == 100
    assert at["copy"]["p50_ms"] == pytest.approx(200)
    assert at["p50_to_copy"] == pytest.approx(2)
    assert (at["p50_to_tuned"], at["p99_to_tuned"]) == (pytest.approx(8), pytest.approx(8))
    assert at["job"]["trigger_ms"] == 40


def test_one_that_falls_behind_has_no_percentiles_and_no_ratio() -> None:
    data = summary(RATES, found())["64"]
    at = data["rates"]["3000"]
    assert (at["tuned"]["p50_ms"], at["tuned"]["p99_ms"], at["p50_to_tuned"]) == (None, None, None)
    assert (at["tuned"]["came"], at["tuned"]["events"]) == (50, 200)
    assert at["p50_to_copy"] == pytest.approx(2)
    assert data["rates"]["10000"]["job"] == {
        "events": 0,
        "came": 0,
        "p50_ms": None,
        "p99_ms": None,
        "acknowledged_ms": None,
        "trigger_ms": None,
    }
    assert data["memory"]["job"] == {"java_mb": 900.0, "heap_mb": 80.0, "python_mb": 300.0}


def test_the_tables_and_the_page_say_who_is_behind_and_what_was_not_tried() -> None:
    data = summary(RATES, found())
    shown = tables(data)
    assert all(len(row) == len(table.columns) for table in shown for row in table.rows)
    medians = [list(row) for row in shown[0].rows]
    assert medians == [
        ["64", "200", "200", "50", "400", "2.00", "8.00"],
        ["64", "3,000", "100", "behind: 25%", "200", "2.00", "-"],
        ["64", "10,000", "-", "-", "-", "-", "-"],
    ]
    assert list(shown[2].rows[0]) == ["64", "200", "50", "12", "100"], "what of it is the publisher's and the broker's"
    text = page(data)
    assert "| 64 | 3,000 | 100 | behind: 25% |" in text
    assert "- 64 partitions, job: it ended\n" in text
    assert phase(0.1, came=54, missing=146).told() == "behind, 54 of 200 came"


def test_a_layout_of_which_nothing_was_seen_has_a_row_of_dashes() -> None:
    data = summary((200,), {"4": {kind: Measured(failure="no answer") for kind in KINDS}})
    assert all(set(row[2:]) == {"-"} for table in tables(data)[:4] for row in table.rows)


def test_a_receiver_may_be_asked_again_and_ends_when_nobody_listens() -> None:
    ours, theirs = multiprocessing.Pipe()
    left = iter([[struct.pack("<d", float(number))] for number in (0, 1, 2, 0, 1, 2)])
    thread = threading.Thread(target=_note, args=(theirs, lambda: next(left, [])), daemon=True)
    thread.start()
    assert ours.recv() == "ready"
    ours.send((2, _BOUND_S))
    assert len(ours.recv()) >= 2
    ours.send((6, _BOUND_S))
    assert ours.recv()[:, 0].tolist() == [0, 1, 2, 0, 1, 2]
    ours.send((7, 0.1))
    assert len(ours.recv()) == 6, "the time is over"
    ours.close()
    wait_until(lambda: not thread.is_alive(), "the receiver ends")


def test_a_receiver_says_what_comes_on_any_partition(broker: LocalBroker, new_topic: Callable[..., str]) -> None:
    topics = [new_topic("copies", partitions=4), new_topic("copies", partitions=4)]
    with Receiver(receive_plain, broker.bootstrap_servers, topics, 4) as receiver:
        with Worker(publish_paced, broker.bootstrap_servers, topics, 1_000, 0.08, 4) as publisher:
            assert publisher.ended(_BOUND_S)
            assert 0 < publisher.hear("publish", _BOUND_S) < _BOUND_S
        assert len(receiver.all_of(80, _BOUND_S)) == 80
    with closing(kafka_clients.consumer(broker.bootstrap_servers)) as consumer:
        sources = [TopicPartition(topic, partition) for topic in topics for partition in range(4)]
        assert set(consumer.end_offsets(sources).values()) == {10}
