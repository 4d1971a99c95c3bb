"""When the stamps before a change may be trusted to order the set that ends there, and when they may not."""

from collections.abc import Mapping, Sequence

import pytest
from delivery_world import ended, grant, topic_id
from sources import src

from totalorder.subscriber.delivery.switches import switch_of

AB = {0: "a", 1: "b"}


@pytest.mark.parametrize(
    ("topics", "generation", "clock", "continuous", "exact"),
    [
        (AB, 2, "ab", True, True),
        (AB, 2, "abc", True, True),
        (AB, 3, "ab", True, False),  # a link between is gone: nobody knows what set it brought
        (AB, 2, "ab", False, False),  # the lease had run out
        (AB, 2, "a", True, False),  # nothing is known of b at the change
        ({}, 2, "a", False, True),  # nothing was held: there is nothing to order
    ],
)
def test_a_grant_is_exact_where_it_follows_the_set(
    topics: Mapping[int, str], generation: int, clock: str, continuous: bool, exact: bool
) -> None:
    answer = grant(["a"], g=9, generation=generation, clock=dict.fromkeys(clock, 3), continuous=continuous)
    switch = switch_of(answer, generation=1, topics=topics)
    assert switch.exact is exact
    assert (switch.topics, switch.g) == ({0: "a"}, 9)


@pytest.mark.parametrize(
    ("reason", "generation", "clock", "exact"),
    [
        ("unsubscribed", 2, "ab", True),
        ("unsubscribed", 3, "ab", False),
        ("unsubscribed", 1, "ab", False),
        ("expired", 1, "ab", True),
        ("expired", 2, "ab", False),
        ("unsubscribed", 2, "a", False),
        ("unsubscribed", 2, "abc", True),  # c is not of the set: it is of no account
    ],
)
def test_an_end_is_exact_where_it_follows_the_set(
    reason: str, generation: int, clock: Sequence[str], exact: bool
) -> None:
    answer = ended(reason, generation=generation, g=9, clock=dict.fromkeys(clock, 3))
    switch = switch_of(answer, generation=1, topics=AB)
    assert (switch.exact, switch.topics, switch.lapse) == (exact, {}, reason == "expired")
    assert switch.clock == {topic_id(name): 3 for name in clock if name in "ab"}


def test_only_a_grant_says_where_to_read() -> None:
    told = grant(["a"], g=9, clock={"a": 0}, next_offsets={src("a"): 4})
    assert switch_of(told, generation=0, topics={}).next_offsets == {src("a"): 4}
    assert switch_of(ended("expired", generation=1, g=9, clock={}), generation=1, topics={}).next_offsets == {}
