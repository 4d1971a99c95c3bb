"""How long silence is borne, by a clock of the test's own."""

import pytest
from logged import by_us

from totalorder.errors import BrokerUnavailable
from totalorder.subscriber.outage import TAKES, Outage


class Clock:
    now = 1_000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("totalorder.subscriber.outage.time.monotonic", lambda: made.now)
    return made


def test_silence_counts_from_the_first_question_in_vain_and_ends_at_the_time_set(clock: Clock) -> None:
    outage = Outage("b:1", 60.0)
    clock.now += 300  # an application that does not poll: nobody asked
    begun = clock.now
    while clock.now < begun + 60:
        assert outage.left_s == 60 - (clock.now - begun)
        outage.raise_if_over()
        asked, clock.now = clock.now, clock.now + 2
        if clock.now < begun + 60:
            outage.missed(asked, None)
    with pytest.raises(BrokerUnavailable, match=r"no Kafka broker at b:1 has answered for 60 s \(why\)\."):
        outage.missed(asked, ValueError("why"))
    with pytest.raises(BrokerUnavailable, match="for 60 s"):
        outage.raise_if_over()


def test_a_question_that_took_longer_than_silence_is_borne_is_not_waited_for(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    outage = Outage("b:1", 60.0)
    asked, clock.now = clock.now, clock.now + 63
    with pytest.raises(BrokerUnavailable, match="for 63 s"):
        outage.missed(asked, None)
    assert not by_us(caplog)
    outage.heard()
    outage.missed(clock.now, None)
    assert "it is waited for, 60 s" in caplog.text


def test_an_answer_ends_it(clock: Clock) -> None:
    outage = Outage("b:1", 10.0)
    outage.missed(clock.now, None)
    clock.now += 9
    outage.heard()
    outage.missed(clock.now, None)
    clock.now += 4
    outage.raise_if_over()
    assert outage.left_s == 6


def test_it_is_over_only_for_who_has_just_asked(clock: Clock) -> None:
    outage = Outage("b:1", 60.0)
    asked, clock.now = clock.now, clock.now + 52
    outage.missed(asked, None)
    clock.now += 9  # nobody asked meanwhile: the broker may be back
    assert outage.left_s == -1
    outage.raise_if_over()
    assert outage.wants_question
    with pytest.raises(BrokerUnavailable, match="for 61 s"):
        outage.missed(clock.now, None)


def test_of_the_time_in_which_nobody_asked_a_little_counts(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """What is asked seldom may meet two outages, with good hours between, and one that lasts ends it all the same."""
    outage = Outage("b:1", 60.0)
    outage.missed(clock.now, None)
    clock.now += 10
    assert (outage.lasts_s, outage.left_s) == (10, 50)
    clock.now += 3600
    assert (outage.lasts_s, outage.left_s) == (10, 50)
    asked, clock.now = clock.now, clock.now + 2
    outage.missed(asked, None)
    assert (outage.lasts_s, outage.left_s) == (12, 48)
    clock.now += 3600
    outage.heard()
    assert "the Kafka broker at b:1 answers again, after 22 s" in caplog.text
    with pytest.raises(BrokerUnavailable, match="for 60 s"):  # noqa: PT012
        for _ in range(7):
            outage.missed(clock.now, None)
            clock.now += 3600


def test_it_says_what_no_broker_does(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("b:1", 10.0, TAKES)
    outage.missed(clock.now, None)
    clock.now += 4
    outage.heard()
    assert by_us(caplog) == [
        "no Kafka broker at b:1 takes records; it is waited for, 10 s",
        "the Kafka broker at b:1 takes records again, after 4 s",
    ]
    asked, clock.now = clock.now, clock.now + 6
    outage.missed(asked, None)
    asked, clock.now = clock.now, clock.now + 4
    with pytest.raises(BrokerUnavailable, match=r"has taken a record for 10 s \(x\[0\]\)\. Check the topic's leader"):
        outage.missed(asked, "x[0]")


@pytest.mark.parametrize(("bearable_s", "after_s"), [(60.0, 5.0), (2.0, 0.5)])
def test_the_broker_is_asked_when_nothing_was_heard_for_a_while(
    clock: Clock, bearable_s: float, after_s: float
) -> None:
    outage = Outage("b:1", bearable_s)
    clock.now += after_s
    assert not outage.wants_question
    clock.now += 0.1
    assert outage.wants_question
    outage.heard()
    assert not outage.wants_question
