"""Circles: found where a sort by topology fails, and nowhere else."""

from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from hypothesis import given, strategies as st

from totalorder.sinks.audit_circles import FindCircle, find_circle

Received = dict[str, list[str]]
received = st.dictionaries(
    st.sampled_from("rstuv"), st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=6), max_size=5
)


def has_circle(received: Received) -> bool:
    """The dumb twin: the standard library's sort of everything."""
    graph: TopologicalSorter[str] = TopologicalSorter()
    for events in received.values():
        for earlier, later in pairwise(events):
            graph.add(later, earlier)
    try:
        graph.prepare()
    except CycleError:
        return True
    return False


@given(received)
def test_a_circle_is_found_where_there_is_one(received: Received) -> None:
    circle = find_circle(received)
    assert bool(circle) == has_circle(received)
    for link, following in zip(circle, [*circle[1:], *circle[:1]], strict=True):
        events = received[link.subscriber]
        assert events.index(link.earlier) < events.index(link.later)
        assert link.later == following.earlier


def test_a_circle_is_shown_by_its_turns_only() -> None:
    circle = {"r": ["a", "w", "x", "b"], "s": ["b", "y", "c"], "t": ["c", "z", "a"]}
    assert sorted(find_circle(circle)) == [("r", "a", "b"), ("s", "b", "c"), ("t", "c", "a")]
    assert sorted(find_circle({"r": ["a", "w", "x", "b"], "s": ["b", "a"]})) == [("r", "a", "b"), ("s", "b", "a")]


def test_it_is_a_table_function_of_rows() -> None:
    function = FindCircle()
    for subscriber, event in (("r", "a"), ("r", "b"), ("s", "b"), ("s", "a")):
        function.eval({"subscriber": subscriber, "event": event})  # type: ignore[arg-type]
    assert sorted(function.terminate()) == [("r", "a", "b"), ("s", "b", "a")]
