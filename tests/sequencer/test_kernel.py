"""The compiled kernel against its dumb twin, run after run on the same counters."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings, strategies as st

from totalorder.bench.kernel.twin import PlainStamper
from totalorder.sequencer import kernel
from totalorder.sequencer.kernel import NONE, Groups, Recency, stamp_run

Ints = npt.NDArray[np.int64]
Plain = tuple[int, int, int, bool, dict[int, int]]
MOST_TOPICS = 200


class Run(TypedDict):
    """One run's events, and what is true of their topics."""

    events: list[int]
    own: set[int]
    rekey: set[int]
    forced: dict[int, list[int]]


def column(values: object) -> Ints:
    return np.array(values, dtype=np.int64)


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[list[int]], int, list[Run]]:
    """Sequencing groups over many topics, and some runs of events with what they owe."""
    topics = draw(st.integers(1, MOST_TOPICS))
    number = st.integers(0, topics - 1)
    popular = st.integers(0, min(5, topics - 1))
    sizes = st.sampled_from([0, 3, topics])
    members = [sorted(draw(st.sets(number, max_size=draw(sizes))) - {topic}) for topic in range(min(topics, 8))]
    members += [[] for _ in range(topics - len(members))]
    listed: list[Run] = []
    for _ in range(draw(st.integers(1, 4))):
        events = draw(st.lists(st.one_of(popular, number), min_size=1, max_size=60))
        present = st.sampled_from(sorted(set(events)))
        listed.append(
            {
                "events": events,
                "own": draw(st.sets(present)),
                "rekey": draw(st.sets(present)),
                "forced": draw(st.dictionaries(present, st.sets(number, max_size=6).map(sorted), max_size=3)),
            }
        )
    return members, draw(st.sampled_from([1, 2, 5, 64])), listed


@settings(max_examples=150, deadline=None)
@given(runs())
def test_the_kernel_stamps_as_its_twin_does(drawn: tuple[list[list[int]], int, list[Run]]) -> None:
    members, every, listed = drawn
    topics = len(members)
    twin = PlainStamper(
        members=dict(enumerate(members)), every=every, clocks=[0] * topics, last_g=[0] * topics, own=frozenset()
    )
    clocks, last_g = np.zeros(topics, dtype=np.int64), np.zeros(topics, dtype=np.int64)
    recency, g = Recency.of(last_g), 0
    for run in listed:
        events, own, rekey, forced = run["events"], run["own"], run["rekey"], run["forced"]
        twin.own, twin.rekey = frozenset(own), rekey & own
        twin.forced = {topic: peers for topic, peers in forced.items() if topic in own}
        distinct, of_group = np.unique(column(events), return_inverse=True)
        numbers = distinct.tolist()
        groups = Groups.of(
            distinct,
            own=np.array([topic in own for topic in numbers]),
            rekey=np.array([topic in rekey for topic in numbers]),
            members=[column(members[topic]) for topic in numbers],
            forced=[column(forced.get(topic, [])) for topic in numbers],
            topics=topics,
        )
        stamped = stamp_run(of_group, groups, every, g, clocks, last_g, recency)
        g += len(events)
        got: list[Plain] = []
        for at in range(len(stamped.n)):
            start, end = stamped.entry_start[at : at + 2]
            entries = dict(
                zip(stamped.entry_topic[start:end].tolist(), stamped.entry_n[start:end].tolist(), strict=True)
            )
            assert list(entries) == sorted(entries)
            topic = events[int(stamped.row[at])]
            got.append((topic, int(stamped.n[at]), int(stamped.g[at]), bool(stamped.keyframe[at]), entries))
        assert got == list(twin.stamp(events))
        assert {topic for topic, due in zip(numbers, stamped.rekey, strict=True) if due and topic in own} == twin.rekey
        assert (clocks.tolist(), last_g.tolist(), g) == (twin.clocks, twin.last_g, twin.g)
        assert listed_topics(recency) == listed_topics(Recency.of(last_g))


def listed_topics(recency: Recency) -> list[int]:
    found, topic = [], int(recency.head[0])
    while topic != NONE:
        found.append(topic)
        assert recency.older[topic] == NONE or recency.newer[recency.older[topic]] == topic
        topic = int(recency.older[topic])
    return found


def test_a_walk_that_is_given_up_finds_the_same() -> None:
    """More topics than the longest walk advance between two events of one topic."""
    topics = 4 * kernel._LONGEST_WALK
    members = [list(range(1, topics))] + [[] for _ in range(topics - 1)]
    stamps_as_its_twin(members, [0, *range(1, topics), 0, 5, 7, 0], every=64)


def test_entries_find_room_however_many_there_are() -> None:
    """Keyframes of large groups, many times as many entries as there was room for at first."""
    topics = 150
    members = [[peer for peer in range(topics) if peer != topic] for topic in range(topics)]
    stamps_as_its_twin(members, [*range(topics)] * 2, every=1)


def stamps_as_its_twin(members: list[list[int]], events: list[int], every: int) -> None:
    topics = len(members)
    groups = Groups.of(
        np.arange(topics, dtype=np.int64),
        own=np.ones(topics, dtype=np.bool_),
        rekey=np.zeros(topics, dtype=np.bool_),
        members=[column(peers) for peers in members],
        forced=[column([])] * topics,
        topics=topics,
    )
    none = np.zeros(topics, dtype=np.int64)
    stamped = stamp_run(column(events), groups, every, 0, none.copy(), none.copy(), Recency.of(none))
    twin = PlainStamper(members=dict(enumerate(members)), every=every, clocks=[0] * topics, last_g=[0] * topics)
    entries = [stamp[4] for stamp in twin.stamp(events)]
    assert stamped.entry_topic.tolist() == [peer for found in entries for peer in found]
    assert stamped.entry_n.tolist() == [n for found in entries for n in found.values()]


def test_a_signal_in_the_middle_ends_as_elsewhere() -> None:
    """A handler that raises while the kernel runs: Ctrl-C is one."""
    code = """
import signal
import numpy as np
from totalorder.sequencer.kernel import Groups, Recency, stamp_run, warm

warm()
size = 4_000_000
none = np.zeros(1, dtype=np.int64)
yes = np.ones(1, dtype=np.bool_)
groups = Groups.of(none, own=yes, rekey=~yes, members=[none[:0]], forced=[none[:0]], topics=1)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    signal.setitimer(signal.ITIMER_REAL, 0.005)
    while True:
        stamp_run(np.zeros(size, dtype=np.int64), groups, 64, 0, none.copy(), none.copy(), Recency.of(none))
except KeyboardInterrupt:
    print("ended")
"""
    kernel.warm()
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (said.returncode, said.stdout) == (0, "ended\n"), said.stderr


def test_nothing_is_left_to_compile_after_warming() -> None:
    """A live batch of the engine needs no types that `warm` did not compile, and a second process loads those."""
    code = """
from dataclasses import replace
from engine_world import configs, rows_of
from reference import Change, Event
from totalorder.sequencer.kernel import gather_into, stamp_while_room, warm
from totalorder.sequencer.batch import Batch
from totalorder.sequencer.engine import initial_state, step
from totalorder.sequencer.state import decode_hot, encode_hot

warm()
warmed = [len(stamp_while_room.signatures), len(gather_into.signatures)]
state = initial_state(configs()[0])
items = [Event("a"), Change("s", frozenset({"a", "b"})), Event("b"), Event("a"), Event("b")]
rows = rows_of(items)
for at in range(len(rows)):
    state, _ = step(state, Batch.of(1000 + at, rows[at : at + 1]), {})
    state = replace(state, hot=decode_hot(encode_hot(state.hot)))
assert warmed == [len(stamp_while_room.signatures), len(gather_into.signatures)], stamp_while_room.signatures
print(sum(stamp_while_room.stats.cache_misses.values()), sum(stamp_while_room.stats.cache_hits.values()))
"""
    kernel.warm()
    support = str(Path(__file__).parents[1] / "support")
    said = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": support},
    )
    assert said.stdout.split() == ["0", "1"]
