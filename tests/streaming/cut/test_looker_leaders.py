"""Several leaders: each is asked for its own, one that is away keeps no other back, one that has moved is found."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from cut_world import plan_of, whole
from fake_brokers import API_VERSIONS, LIST_OFFSETS, METADATA, FakeBrokers
from structlog.testing import capture_logs
from waiting import wait_until

from totalorder.errors import EnvironmentProblem, Error, StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.ends import MOMENT_S, Look
from totalorder.streaming.cut.looker import Looker
from totalorder.streaming.cut.questions import Questions
from totalorder.streaming.cut.verifying import present_ids

ID = UUID(int=5)
PATIENCE_MS = 300
SOURCES = [Source("orders", str(ID), partition) for partition in range(4)]


@pytest.fixture
def brokers() -> Iterator[FakeBrokers]:
    """Two of them: one leads the even partitions of `orders`, the other one the odd."""
    made = FakeBrokers(2)
    made.ids["orders"] = ID
    for source in SOURCES:
        made.leaders["orders", source.partition] = source.partition % 2
    yield made
    made.close()


@contextmanager
def looking(brokers: FakeBrokers, **settings: Any) -> Iterator[tuple[Looker, list[Look]]]:
    looks: list[Look] = []
    options: dict[str, Any] = {"look_patience_ms": PATIENCE_MS} | settings
    looker = Looker(brokers.bootstrap_servers, {}, on_look=looks.append, **options)
    looker.watch(SOURCES)
    looker.start()
    try:
        yield looker, looks
    finally:
        looker.stop()
        assert not looker._thread.is_alive()


def comes(looks: list[Look], ends: list[int], silent: set[int] | None = None) -> None:
    def is_so() -> bool:
        return bool(looks) and looks[-1].ends.tolist() == ends and looks[-1].silent == (silent or set())

    wait_until(is_so, f"a look with ends {ends}, without {silent}")


def advance(brokers: FakeBrokers, *ends: int) -> None:
    for partition, end in enumerate(ends):
        brokers.ends["orders", partition] = end


def test_each_leader_is_asked_for_its_own(brokers: FakeBrokers) -> None:
    with looking(brokers, look_patience_ms=30_000) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        assert not any(look.silent for look in looks)
    assert {(0, LIST_OFFSETS), (1, LIST_OFFSETS)} <= set(brokers.asked)


def test_one_that_is_silent_holds_looks_back_and_does_not_hold_the_others_for_ever(brokers: FakeBrokers) -> None:
    patience_s = 4.0
    with looking(brokers, look_patience_ms=1000 * patience_s) as (looker, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.freeze(1)
        advance(brokers, 5, 6, 7, 8)
        comes(looks, [5, 2, 7, 4], {1, 3})
        assert all(look.silent for look in looks if look.ends.tolist() == [5, 2, 7, 4])
        first = next(index for index, look in enumerate(looks) if look.silent)
        assert looks[first].ended_s - looks[first - 1].began_s >= patience_s
        seen = len(looks)
        advance(brokers, 9, 6, 7, 8)
        comes(looks, [9, 2, 7, 4], {1, 3})
        # Once it is known to be silent nobody waits for it, or these would take a minute.
        wait_until(lambda: len(looks) > seen + 15, "more looks without it")
        brokers.thaw(1)
        comes(looks, [9, 6, 7, 8])
    assert looker.figures().silent_looks == sum(1 for look in looks if look.silent)


def test_a_long_look_is_told_and_so_are_those_without_a_broker_and_their_end(brokers: FakeBrokers) -> None:
    slowed, warn_ms = Event(), 150

    def slowly_once(number: int, key: int, answer: bytes) -> bytes:
        if number == 1 and key == LIST_OFFSETS and not slowed.is_set():
            slowed.wait(2 * warn_ms / 1000)
            slowed.set()
        return answer

    with capture_logs() as logs, looking(brokers, look_patience_ms=2_000, look_warn_ms=warn_ms) as (_, looks):

        def told(what: str) -> list[dict[str, Any]]:
            return [dict(line) for line in logs if line["event"] == what]

        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.mangle = slowly_once
        wait_until(lambda: bool(told("looks are far apart")), "a warning of a long look")
        brokers.freeze(1)
        advance(brokers, 5, 6, 7, 8)
        comes(looks, [5, 2, 7, 4], {1, 3})
        brokers.thaw(1)
        comes(looks, [5, 6, 7, 8])
        wait_until(lambda: bool(told("looks are whole again")), "a word that all is well")
    far, without = told("looks are far apart")[0], told("looks go on without what no broker tells of")[0]
    assert (far["log_level"], far["longest_ms"] > warn_ms) == ("warning", True)
    assert (without["log_level"], without["partitions"]) == ("warning", 2)


def test_one_that_is_slow_and_was_silent_is_waited_for_again(brokers: FakeBrokers) -> None:
    """Each of its answers takes longer than the moment that a silent one is given, and less than one is patient."""
    never = Event()

    def slowly(number: int, key: int, answer: bytes) -> bytes:
        if number == 1 and key == LIST_OFFSETS:
            never.wait(3 * MOMENT_S)
        return answer

    brokers.mangle = slowly
    with looking(brokers, look_patience_ms=2_000) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.freeze(1)
        advance(brokers, 5, 6, 7, 8)
        comes(looks, [5, 2, 7, 4], {1, 3})
        brokers.thaw(1)
        comes(looks, [5, 6, 7, 8])


def test_a_connection_is_made_anew_before_its_login_ends(brokers: FakeBrokers) -> None:
    with looking(brokers, look_patience_ms=30_000) as (looker, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        before = dict(looker._wires)
        first, old = min(before.items())
        old.expires_s = looker._expires_s = 0.0
        wait_until(lambda: looker._wires.get(first, old) is not old, "another connection")  # there is none for a moment
        assert looker._wires[max(before)] is before[max(before)]
        advance(brokers, 5, 6, 7, 8)
        comes(looks, [5, 6, 7, 8])
        assert old.fileno() < 0
        assert not any(look.silent for look in looks)


def test_an_answer_that_came_too_late_is_dropped(brokers: FakeBrokers) -> None:
    """It says how far a partition was when it was asked, which may be less than when this look began."""
    with looking(brokers) as (_, looks):
        advance(brokers, 1, 1, 1, 1)
        comes(looks, [1, 1, 1, 1])
        old: list[bytes] = []
        may_come = Event()

        def late(number: int, key: int, answer: bytes) -> bytes:
            if number == 1 and key == LIST_OFFSETS and not old and (2).to_bytes(8, "big") in answer:
                old.append(answer)
                may_come.wait(30)
            return answer

        brokers.mangle = late
        advance(brokers, 5, 2, 5, 2)
        comes(looks, [5, 1, 5, 1], {1, 3})
        advance(brokers, 5, 6, 5, 6)
        may_come.set()
        comes(looks, [5, 6, 5, 6])
        assert old
        assert all(look.ends[1] != 2 for look in looks)


def test_a_leader_that_moved_is_found(brokers: FakeBrokers) -> None:
    with looking(brokers, look_patience_ms=30_000) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.leaders["orders", 3] = 0
        brokers.epochs["orders", 3] = 1
        advance(brokers, 1, 2, 3, 5)
        comes(looks, [1, 2, 3, 5])
        assert not any(look.silent for look in looks)


def test_what_a_leader_of_former_days_says_does_not_count(brokers: FakeBrokers) -> None:
    """Its end is lower than the new leader's, and nothing was lost."""
    brokers.epochs |= dict.fromkeys(brokers.leaders, 7)
    with looking(brokers) as (looker, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.epochs["orders", 2] = 6
        brokers.ends["orders", 2] = 1
        comes(looks, [1, 2, 3, 4], {2})
        brokers.epochs["orders", 2] = 8
        brokers.ends["orders", 2] = 5
        comes(looks, [1, 2, 5, 4])
        assert looker.failure is None


def test_an_end_that_falls_for_good_is_an_error(brokers: FakeBrokers) -> None:
    with looking(brokers) as (looker, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.epochs["orders", 2] = 1
        brokers.ends["orders", 2] = 2
        wait_until(lambda: looker.failure is not None, "an error")
        with pytest.raises(StateError, match="partition 2 of topic orders"):
            looker.newest()
        assert all(look.ends[2] in (-1, 0, 3) for look in looks)


def test_an_end_that_falls_since_the_topic_is_another_is_none(brokers: FakeBrokers) -> None:
    with looking(brokers) as (looker, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.ids["orders"] = UUID(int=6)
        advance(brokers, 0, 0, 0, 0)
        comes(looks, [1, 2, 3, 4], {0, 1, 2, 3})
        looker.watch([Source("orders", str(UUID(int=6)), partition) for partition in range(4)])
        comes(looks, [0, 0, 0, 0])
        assert looker.failure is None


def test_a_partition_without_a_leader_is_silent(brokers: FakeBrokers) -> None:
    brokers.leaders["orders", 1] = -1
    with looking(brokers) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, -1, 3, 4], {1})
        brokers.leaders["orders", 1] = 0
        comes(looks, [1, 2, 3, 4])


def test_an_offset_that_is_not_known_yet_is_waited_for(brokers: FakeBrokers) -> None:
    with looking(brokers) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.errors["orders", 2] = 78
        advance(brokers, 5, 6, 7, 8)
        comes(looks, [5, 6, 3, 8], {2})
        del brokers.errors["orders", 2]
        comes(looks, [5, 6, 7, 8])


def test_what_is_refused_for_good_is_an_error(brokers: FakeBrokers) -> None:
    brokers.errors["orders", 2] = 29
    with looking(brokers) as (looker, _):
        wait_until(lambda: looker.failure is not None, "an error")
        with pytest.raises(Error, match="do not tell the ends of topic orders: TopicAuthorizationFailedError"):
            looker.newest()


@pytest.mark.parametrize("broken", [b"", b"\0\0\0\2", b"\0\0\0\2\0" + bytes(5), bytes(40), None])
def test_an_answer_that_cannot_be_read_is_no_answer(brokers: FakeBrokers, broken: bytes | None) -> None:
    with looking(brokers) as (looker, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.mangle = lambda number, key, answer: broken if number and key == LIST_OFFSETS else answer
        advance(brokers, 5, 6, 7, 8)
        comes(looks, [5, 2, 7, 4], {1, 3})
        brokers.mangle = lambda _number, _key, answer: answer
        comes(looks, [5, 6, 7, 8])
        assert looker.failure is None


def test_metadata_that_cannot_be_read_is_asked_for_of_others(brokers: FakeBrokers) -> None:
    brokers.mangle = lambda number, key, answer: b"\0" * 9 if not number and key == METADATA else answer
    with looking(brokers) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])


def test_brokers_that_are_too_old_are_an_error(brokers: FakeBrokers) -> None:
    brokers.versions[LIST_OFFSETS] = (0, 5)
    with looking(brokers) as (looker, _):
        wait_until(lambda: looker.failure is not None, "an error")
        with pytest.raises(EnvironmentProblem, match=r"does not speak version 6 of ListOffsets \(it does 0 to 5\)"):
            looker.newest()
    assert (0, API_VERSIONS) in brokers.asked or (1, API_VERSIONS) in brokers.asked


def test_a_broker_that_throttles_is_asked_less_often(brokers: FakeBrokers) -> None:
    with looking(brokers) as (_, looks):
        advance(brokers, 1, 2, 3, 4)
        comes(looks, [1, 2, 3, 4])
        brokers.throttle_ms = 200
        seen = len(looks) + 1
        wait_until(lambda: len(looks) >= seen + 4, "more looks")
        begins = [look.began_s for look in looks[seen:]]
        assert min(after - before for before, after in pairwise(begins)) >= 0.2


def test_questions_go_to_leaders_and_to_those_that_answer(brokers: FakeBrokers) -> None:
    asked = Questions(brokers.bootstrap_servers, {}, timeout_s=3)
    advance(brokers, 1, 2, 3, 4)
    wanted = [("orders", partition) for partition in (3, 0, 2, 1)]
    assert asked.ends(wanted).tolist() == [4, 1, 3, 2]
    brokers.leaders["orders", 3] = 0
    assert asked.ends(wanted).tolist() == [4, 1, 3, 2]
    brokers.frozen.add(0)
    begun_s = time.monotonic()
    assert set(asked.topics(["orders"])) == {"orders"}
    assert time.monotonic() - begun_s < 10
    brokers.thaw(0)
    brokers.errors["orders", 0] = 29
    with pytest.raises(Error, match="topic orders: TopicAuthorizationFailed"):
        asked.ends(wanted)
    asked.close()


def test_an_id_counts_only_where_the_leaders_tell_it_too(brokers: FakeBrokers) -> None:
    """A broker that lags behind still tells the old id, when the leader of the new topic has given its records."""
    plan = plan_of(brokers.bootstrap_servers, [whole("orders", 1, 0, 9, topic_id=str(ID))])
    assert present_ids(plan) == {"orders": str(ID)}
    for stale in (0, 1):
        brokers.stale[stale] = dict(brokers.ids)
        brokers.ids["orders"] = UUID(int=6)
        assert present_ids(plan) == {"orders": str(UUID(int=6))}
        del brokers.ids["orders"]
        assert present_ids(plan) == {"orders": None}
        brokers.ids, brokers.stale = brokers.stale[stale], {}
        assert present_ids(plan) == {"orders": str(ID)}
