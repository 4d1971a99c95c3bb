"""What is told, and how often, by a clock of the test's own."""

import logging
from itertools import pairwise

import pytest
from sources import src

from totalorder.subscriber.delivery.waits import Wait
from totalorder.subscriber.watch import Changed, Granted, Stalled, Watch, Word

STAMPS = Wait(kind="stamps", topic="a", source=src("a"), offset=7, stamps_partition=1)
EVENT = Wait(kind="event", topic="b", source=src("b"), offset=3, g=9)


class Watched:
    """A watch that is looked at once in a second; nothing but what it tells is kept."""

    def __init__(self) -> None:
        self.watch = Watch(id="s", domain="d", stalled_after_s=10.0)
        self.now = 100.0
        self.said: list[tuple[float, Word]] = []

    def look(self, *waits: Wait, seconds: int = 1, silent_s: float = 0.0) -> list[Word]:
        """What is said meanwhile."""
        before = len(self.said)
        for _ in range(seconds):
            self.said += [(self.now, word) for word in self.watch.look(self.now, waits, silent_s=silent_s)]
            self.now += 1
        return [word for _, word in self.said[before:]]


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_what_comes_in_time_is_not_spoken_of(watched: Watched) -> None:
    for offset in range(200):
        wait = Wait(kind="stamps", topic="a", source=src("a"), offset=offset, stamps_partition=0)
        assert watched.look(wait, seconds=3) == []
    assert watched.look(seconds=3_600) == []  # a quiet topic owes nothing
    assert watched.watch.hold is None


def test_a_wait_is_told_after_some_seconds_then_as_a_stall_then_more_and_more_seldom_and_its_end_once(
    watched: Watched,
) -> None:
    watched.look(STAMPS, seconds=7_200)
    assert [(word.level, word.news is None) for _, word in watched.said[:2]] == [
        (logging.INFO, True),
        (logging.WARNING, False),
    ]
    times = [at - 100 for at, _ in watched.said]
    assert times[:8] == [3, 10, 20, 40, 80, 160, 320, 640]
    assert {later - before for before, later in pairwise(times[7:])} == {600}
    (over,) = watched.look(EVENT)
    assert over.news == Stalled(wait=STAMPS, for_s=7_200, stamps_s=None, over=True)
    assert over.text == (
        "subscriber 's' of domain 'd' waits no longer for the stamps of event a[0]@7 of topic 'a', in stamps partition "
        "1; that took 7200 s"
    )
    assert watched.look(seconds=100) == []


def test_a_stall_says_what_where_since_when_and_what_to_look_at(watched: Watched) -> None:
    watched.look()
    watched.watch.stamped(1, 0, 0.0)
    _, stall = watched.look(STAMPS, seconds=11)
    assert stall.text == (
        "subscriber 's' of domain 'd' has waited 10 s for the stamps of event a[0]@7 of topic 'a', in stamps partition "
        "1. The last ones came 11 s ago. Check that `totalorder sequence` runs for domain 'd' and reads topic 'a'"
    )
    assert stall.news == Stalled(wait=STAMPS, for_s=10, stamps_s=11)
    assert watched.watch.stalled


def test_history_that_is_read_is_spoken_of_and_no_stall(watched: Watched) -> None:
    words = watched.look(Wait(kind="history", topic="d.stamps"), seconds=200)
    assert [(word.level, word.news) for word in words] == [(logging.INFO, None)] * 4
    assert not watched.watch.stalled


def test_the_oldest_of_many_waits_is_told_and_a_stall_that_ends_gives_others_a_while(watched: Watched) -> None:
    watched.look(EVENT)
    watched.look(EVENT, STAMPS, seconds=50)
    hold = watched.watch.hold
    assert hold is not None
    assert (hold.wait, hold.for_s) == (EVENT, 50)
    words = watched.look(STAMPS, seconds=20)
    assert [(word.news.wait, word.news.over) for word in words if isinstance(word.news, Stalled)] == [
        (EVENT, True),
        (STAMPS, False),
    ]


def test_waits_that_end_before_they_are_stalls_are_told_once_in_a_minute_at_most(watched: Watched) -> None:
    for offset in range(100):
        watched.look(Wait(kind="event", topic="a", source=src("a"), offset=offset, g=offset), seconds=5)
    assert len(watched.said) == 9  # in 500 s
    assert {word.level for _, word in watched.said} == {logging.INFO}


def test_an_application_that_does_not_poll_waits_for_nothing(watched: Watched) -> None:
    watched.look(STAMPS)
    watched.now += 3_600
    assert watched.look(STAMPS) == []
    hold = watched.watch.hold
    assert hold is not None
    assert hold.for_s == 2


def test_a_broker_that_is_silent_explains_all_other_waits(watched: Watched) -> None:
    watched.look(STAMPS, seconds=5)
    watched.watch.asked()
    words = watched.look(STAMPS, seconds=15, silent_s=1)
    assert [word.news.wait.kind for word in words if isinstance(word.news, Stalled)] == ["broker"]
    assert [word.text for word in words][-1].endswith("for a Kafka broker that answers. Check that it runs")
    words = watched.look(STAMPS, seconds=5)
    assert [word.news for word in words] == [Stalled(wait=Wait(kind="broker"), for_s=15, stamps_s=None, over=True)]


def test_a_renewal_without_an_answer_is_no_sign_of_life(watched: Watched) -> None:
    watched.look()
    watched.watch.asked()
    watched.look(seconds=5)
    watched.watch.asked()  # it is sent again: it is waited for since the first one
    words = watched.look(seconds=7)
    assert "10 s for the sequencer's answer to the renewal of the lease. Check that" in words[-1].text
    watched.watch.answered()
    (over,) = watched.look(seconds=5)
    assert isinstance(over.news, Stalled)
    assert over.news.over


def test_grants_and_changes_are_told_to_the_log_and_to_callbacks(watched: Watched) -> None:
    (first,) = watched.watch.granted(5, ("a", "b"), 1, 0)
    assert first.text == "granted to subscriber 's' of domain 'd' at g 5: topics a, b (generation 1)"
    assert first.news == Granted(g=5, topics=("a", "b"), generation=1)
    (again,) = watched.watch.granted(9, tuple(f"t{number}" for number in range(12)), 4, 3)
    assert again.text.endswith("t9 and 2 more (generation 4, after generation 3 of another process)")
    (changed,) = watched.watch.changed(9, ())
    assert changed == Word(
        level=logging.INFO,
        text="subscriber 's' of domain 'd' goes on behind g 9 with topics none",
        news=Changed(g=9, topics=()),
    )


def test_a_recovered_sequencer_is_told_once(watched: Watched) -> None:
    said = [len(watched.watch.stamped(incarnation, 0, 0.0)) for incarnation in (1, 1, 2, 1, 2, 3)]
    assert said == [0, 0, 1, 0, 0, 1]


def test_what_is_far_behind_waits_for_nobody(watched: Watched) -> None:
    """A backlog of stamps is read: until it is, nobody can know what was not written."""
    other = Wait(kind="stamps", topic="b", source=src("b"), offset=7, stamps_partition=0)
    for _ in range(60):
        watched.watch.stamped(1, 1, 3_600.0)
        assert watched.look(STAMPS) == []
    words = watched.look(STAMPS, seconds=11)
    assert [word.news for word in words if word.news] == [Stalled(wait=STAMPS, for_s=10, stamps_s=10)]
    for _ in range(60):
        watched.watch.stamped(1, 1, 9.0)  # live: it is not among them
        watched.watch.stamped(1, 0, 3_600.0)
        watched.look(STAMPS, other)
    assert watched.watch.hold is not None
    assert (watched.watch.hold.wait, watched.watch.hold.for_s) == (STAMPS, 72)
    watched.watch.stamped(1, 1, 11.0)
    (over,) = watched.look(STAMPS)
    assert isinstance(over.news, Stalled)
    assert over.news.over


def test_losses_are_counted_and_told_once_in_a_minute(watched: Watched) -> None:
    said = [(at, word.text) for at in range(130) for word in watched.watch.lost(f"a[0]@{at}", float(at))]
    begin = "subscriber 's' of domain 'd' skips what Kafka has no longer: "
    more = ", and 59 times more since the last word"
    assert said == [(0, f"{begin}a[0]@0"), (60, f"{begin}a[0]@60{more}"), (120, f"{begin}a[0]@120{more}")]
