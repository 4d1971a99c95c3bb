"""What a process that starts makes of the answers that stand on grants."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from delivery_world import ended, grant

from totalorder.sequencer.wire.control import Answer, Ended, Grant, Retired, Skipped
from totalorder.subscriber.history import History

_SENDER: Any = {"id": "sequencer", "nonce": "s", "batch": 2, "incarnation": 1}
RETIRED = Retired(**_SENDER, g=3, offset=3, topic="a", topic_id="id-a", lost={})
SKIPPED = Skipped(**_SENDER, g=4, offset=4, topic="b", topic_id="id-b", lost={0: (1, 2)})


def granted(g: int, topics: str = "a", *, nonce: str = "former", generation: int = 1) -> Grant:
    return grant(topics, g=g, clock=dict.fromkeys(topics, 0), nonce=nonce, generation=generation)


def over(g: int, reason: str) -> Ended:
    return ended(reason, generation=1, g=g, clock={"a": 0})


def of_another(g: int) -> Answer:
    return replace(granted(g), id="another")


def history(*answers: Answer) -> History:
    made = History(id="s", nonce="me")
    for answer in answers:
        made.note(answer)
    return made


def test_a_machine_hears_of_its_id_of_what_nobody_is_owed_and_of_the_last_answer() -> None:
    """The last one says how far grants have come, whose ever it is."""
    kept: list[Answer] = [granted(2), RETIRED, SKIPPED, over(6, "expired")]
    assert history(of_another(1), *kept, of_another(7)).answers == [*kept, of_another(7)]
    assert history(of_another(1), *kept, of_another(7), granted(8)).answers == [*kept, granted(8)]


@pytest.mark.parametrize(
    ("answers", "owed_from"),
    [
        ([], None),
        ([granted(2), granted(4, generation=2)], 2),
        ([granted(2), over(3, "expired"), granted(4, generation=2)], 2),
        ([granted(2), over(3, "unsubscribed"), granted(4), granted(5, generation=2)], 4),
        ([granted(2), over(3, "unsubscribed")], None),
        # A job that was replaced repeats what it has said, also behind what its successor says.
        ([granted(2), over(3, "unsubscribed"), granted(2)], None),
        ([of_another(2)], None),
    ],
)
def test_who_starts_owes_what_was_granted_first_since_the_last_end_by_request(
    answers: Sequence[Answer], owed_from: int | None
) -> None:
    found = history(*answers, granted(9, nonce="me", generation=3)).never_saved()
    assert (found.g if found is not None else None) == owed_from


def test_what_the_process_was_granted_itself_is_no_debt() -> None:
    assert history(granted(2, nonce="me"), granted(4, nonce="me", generation=2)).never_saved() is None


@pytest.mark.parametrize(
    ("answers", "held"),
    [
        ([], ""),
        ([granted(2, "a"), granted(4, "ab")], "ab"),
        ([granted(2, "ab"), over(3, "expired")], "ab"),
        ([granted(2, "ab"), over(3, "unsubscribed")], ""),
        ([granted(2, "ab"), over(3, "unsubscribed"), granted(4, "a")], "a"),
        ([granted(2, "a"), granted(4, "ab"), granted(2, "a")], "ab"),
        ([granted(2, "a"), of_another(3)], "a"),
    ],
)
def test_an_id_holds_what_was_granted_last_until_it_is_unsubscribed(answers: Sequence[Answer], held: str) -> None:
    assert history(*answers).held() == tuple(held)


def test_who_begins_at_another_place_hears_of_no_former_subscription() -> None:
    mine = granted(7, nonce="me", generation=2)
    found = history(granted(2), RETIRED, SKIPPED, over(5, "expired"), mine, granted(8, nonce="newer", generation=3))
    assert found.without_former(mine) == [RETIRED, SKIPPED, mine, granted(8, nonce="newer", generation=3)]
