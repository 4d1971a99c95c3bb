"""What the judge of `make torture` finds."""

import pytest
from torture_judge import Delivered, Place, pairs, violations

LOGS: dict[Place, int] = {("a", 0, 0): 1, ("a", 0, 1): 2, ("b", 0, 0): 3, ("b", 0, 1): 4}


def told(*places: tuple[str, int], marked: tuple[int, ...] = ()) -> list[Delivered]:
    """Deliveries with g by their places in `a0 a1 b0 b1`; those at `marked` say that they may be repetitions."""
    order = sorted(LOGS)
    return [
        Delivered((topic, 0, offset), LOGS[topic, 0, offset], order.index((topic, 0, offset)), at in marked)
        for at, (topic, offset) in enumerate(places)
    ]


GOOD = told(("a", 0), ("a", 1), ("b", 0), ("b", 1))


def found(*events: list[Delivered]) -> str:
    names = "stu"[: len(events)]
    return "; ".join(violations(LOGS, dict(zip(names, events, strict=True)), {name: {"a", "b"} for name in names}))


def test_the_judge_is_content_with_what_is_right() -> None:
    assert found(GOOD, GOOD) == ""
    again = told(("a", 0), ("a", 0), ("a", 1), ("b", 0), ("b", 1), marked=(1,))
    assert found(again, GOOD) == ""
    assert pairs({"s": GOOD, "t": again}) == 6


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (GOOD[:3], "never got [('b', 0, 1)] (1 of 4)"),
        ([*GOOD, GOOD[0]], "got ('a', 0, 0) twice, without a mark"),
        (told(("a", 1), ("a", 0), ("b", 0), ("b", 1)), "got a[0]@0 behind 1"),
        ([*GOOD[:3], Delivered(("b", 0, 1), 5, 3, marked=False)], "other content than Kafka holds"),
        ([*GOOD, Delivered(("c", 0, 0), 5, 4, marked=False)], "no right to"),
        ([*GOOD[:3], Delivered(("b", 0, 1), 4, 2, marked=False)], "at the same g 2"),
        ([*GOOD[:3], Delivered(("b", 0, 1), 4, -1, marked=False)], "with g -1 behind g 2"),
        ([*GOOD, Delivered(GOOD[0].place, 1, 9, marked=True)], "an event with several g"),
        (told(("a", 0), ("b", 0), ("a", 1), ("b", 1)), "s and t: ('b', 0, 0) where the other has ('a', 0, 1)"),
        (told(("b", 0), ("b", 1), ("a", 0), ("a", 1)), "a circle of 4 events"),
    ],
)
def test_the_judge_finds(events: list[Delivered], words: str) -> None:
    assert words in found(events, GOOD)


def test_the_judge_finds_a_circle_that_no_two_make() -> None:
    logs: dict[Place, int] = {("a", 0, 0): 1, ("b", 0, 0): 2, ("c", 0, 0): 3}
    topics = {"s": {"a", "b"}, "t": {"b", "c"}, "u": {"c", "a"}}
    orders = {"s": "ab", "t": "bc", "u": "ca"}
    events = {
        name: [Delivered((topic, 0, 0), "abc".index(topic) + 1, g, marked=False) for g, topic in enumerate(order)]
        for name, order in orders.items()
    }
    assert "a circle of 3 events" in "; ".join(violations(logs, events, topics))
