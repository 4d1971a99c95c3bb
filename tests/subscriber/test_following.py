"""Which topics a pattern stands for, by what cuts and answers say in whatever order."""

import logging
from collections.abc import Collection

import pytest
from logged import by_us

from totalorder.errors import SettingsError, WireError
from totalorder.sequencer.wire.control import Grant, Retired
from totalorder.sequencer.wire.cuts import Cut, encode_cut
from totalorder.sequencer.wire.stamps import Source
from totalorder.subscriber.following import Following
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.transport import Record

NAMES = ("a1", "a2", "b1")


def cut_record(names: Collection[str], *, number: int = 1, is_key: bool = True, domain: str = "d") -> Record:
    """A cut in which nothing advances; `a1/2` is the second topic of the name a1."""
    places = [name.partition("/") for name in names]
    sources = [Source(name, f"id-{again or 1}", 0) for name, _, again in places]
    zeros = [0] * len(sources)
    cut = Cut.of(domain=domain, incarnation=1, cut=number, sources=sources, begins=zeros, ends=zeros, looks=[])
    record = encode_cut(cut, is_key=is_key)
    return Record(f"{domain}.cuts", 0, number, None, record.value, tuple(record.headers), 0)


def retired(name: str, again: int = 1) -> Retired:
    return Retired(
        id="job", nonce="n", g=1, offset=1, topic=name, topic_id=f"id-{again}", lost={}, batch=1, incarnation=1
    )


def grant(topics: Collection[str], former: Collection[str] = (), n: int = 0, topic_by: str = "topic") -> Grant:
    names = sorted({*topics, *former})
    return Grant(
        id="s",
        generation=1,
        nonce="n",
        g=7,
        offset=1,
        topics=tuple(sorted(topics)),
        former=tuple(sorted(former)),
        continuous=True,
        clock=dict.fromkeys(names, n),
        ids={name: at for at, name in enumerate(names)},
        next_offsets={},
        stamps_ends={},
        stamps_partitions=1,
        min_subscriptions=1,
        topic_by=topic_by,
        lease_s=0,
        batch=1,
        incarnation=1,
    )


def following(names: Collection[str] = NAMES) -> Following:
    made = Following("d")
    made.take([cut_record(names)])
    return made


def wanted(made: Following, held: Collection[str] = (), pattern: str = "a.*") -> tuple[str, ...]:
    return made.wanted(Choice(pattern=pattern), held)


def test_it_holds_what_the_domain_reads_and_fits_as_a_whole() -> None:
    assert wanted(following()) == ("a1", "a2")
    assert wanted(following(), pattern="a1|b") == ("a1",)


def test_the_domain_s_own_topics_are_no_event_topics() -> None:
    assert wanted(following([*NAMES, "d.control"]), pattern=".*") == NAMES


def test_what_comes_later_joins_and_tells_that_it_came() -> None:
    made = following()
    made.moved = False
    made.take([cut_record(NAMES, number=2)])
    assert not made.moved
    made.take([cut_record([*NAMES, "a3"], number=3)])
    assert made.moved
    assert wanted(made) == ("a1", "a2", "a3")


def test_a_late_cut_that_lacks_topics_takes_none_away() -> None:
    made = following()
    made.take([cut_record(["a1"], number=2)])
    assert wanted(made) == ("a1", "a2")


def test_a_cut_that_names_no_topics_says_nothing() -> None:
    made = Following("d")
    made.take([cut_record(NAMES, number=5, is_key=False)])
    assert not made.knows
    made.take([cut_record(NAMES, number=6)])
    assert made.knows


def test_what_is_held_stays_though_no_cut_names_it_but_only_if_it_fits() -> None:
    assert wanted(following(), ["a9", "b9"]) == ("a1", "a2", "a9")


@pytest.mark.parametrize("first", ["the answer", "the cut"])
def test_a_retired_topic_leaves_also_where_a_late_cut_names_it(first: str) -> None:
    made = following(["a2"]) if first == "the answer" else following()
    made.note(retired("a1"))
    made.take([cut_record(NAMES, number=2)])
    assert wanted(made, ["a1", "a2"]) == ("a2",)


def test_a_topic_that_is_made_anew_is_another() -> None:
    made = following()
    made.note(retired("a1"))
    made.take([cut_record(["a1/2", "a2"], number=2)])
    assert wanted(made, ["a1"]) == ("a1", "a2")
    made.note(retired("a1", 2))
    assert wanted(made, ["a1"]) == ("a2",)


def test_a_subscription_whose_last_topic_was_retired_goes_on() -> None:
    made = following(["a1"])
    made.note(retired("a1"))
    assert wanted(made, ["a1"]) == ("a1",)


def test_a_pattern_that_nothing_fits_is_refused() -> None:
    with pytest.raises(SettingsError, match="no topic that domain 'd' reads so far fits the pattern 'x'"):
        wanted(following(), pattern="x")


def test_a_pattern_that_too_much_fits_is_refused() -> None:
    most = [f"a{number}" for number in range(1_000)]
    assert len(wanted(following(most))) == 1_000
    with pytest.raises(SettingsError, match="1001 topics of domain 'd' fit the pattern"):
        wanted(following([*most, "a"]))


def test_topics_that_keys_name_are_refused() -> None:
    made = following()
    made.note(grant(["a1"]))
    made.check_by_topic()
    made.note(grant(["a1"], topic_by="key"))
    with pytest.raises(SettingsError, match="topic_by = 'key'"):
        made.check_by_topic()


def test_another_domain_s_cut_is_no_cut() -> None:
    with pytest.raises(WireError, match="cut 1 of e"):
        following().take([cut_record(NAMES, domain="e")])


def test_a_word_on_what_a_topic_had_before_it_joined(caplog: pytest.LogCaptureFixture) -> None:
    made = following()
    made.say_joined(grant(["a1"], n=5))
    made.say_joined(grant(["a1", "a2"], ["a1"]))
    assert not by_us(caplog)
    made.say_joined(grant(["a1", "a2"], ["a1"], n=5))
    made.say_joined(grant([f"a{number}" for number in range(20)], ["b"], n=1))
    said = by_us(caplog, logging.WARNING)
    assert said[0].startswith('topic "a2" fits the pattern and joined at g 7: what it had before, 5 events,')
    assert len(said) == 12
    assert said[-1] == "the like of 10 other topics"
