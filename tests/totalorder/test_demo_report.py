"""The demo's verdict: each kind of broken promise must show, and what is expected must follow the grants."""

import json
from collections.abc import Callable
from io import StringIO

import numpy as np
import pytest
from hypothesis import given, strategies as st
from rich.console import Console

from totalorder.demo.audit import Stamps
from totalorder.demo.journal import ROW
from totalorder.demo.proof import Audited, Proof
from totalorder.demo.report import Figures, expected_events, figures, timed
from totalorder.demo.screen import figures_table, said

_AIRPORTS = ["EWR", "JFK", "LGA"]
_COUNT = 30


def _rows(events: list[int]) -> np.ndarray:
    rows = np.zeros(len(events), dtype=ROW)
    rows["event"] = events
    rows["topic"] = [event % len(_AIRPORTS) for event in events]
    rows["at_ms"] = 1_000 + rows["event"]
    return rows


_HOLDS = Audited(title="nothing is wrong", verdict="holds", rows_examined=7, seconds=0.1, rows=())
_VIOLATED = Audited(title="this is so", verdict="violated", rows_examined=7, seconds=0.1, rows=("{'g': 3}",))
_TOLD = Audited(title="just told", verdict="information", rows_examined=7, seconds=0.1, rows=("{'g': 4}",))


def _figures(
    ours: dict[str, list[int]], *, stamped: int = _COUNT, proven: int = _COUNT, audits: tuple[Audited, ...] = (_HOLDS,)
) -> Figures:
    """Two boards that show everything; the plain ones see the last two events swapped."""
    every = list(range(_COUNT))
    plain = {"a": every, "b": [*every[:-2], every[-1], every[-2]]}
    event = np.arange(stamped)
    return figures(
        ours={id_: _rows(events) for id_, events in ours.items()},
        plain={id_: _rows(events) for id_, events in plain.items()},
        expected={id_: np.arange(_COUNT) for id_ in plain},
        published=_rows(every),
        stamps=Stamps(event=event, g=event + 1, entries=60, batches=3, records=12, bytes=900),
        proof=Proof(events=proven, deliveries=60, audits=audits),
    )


def test_a_kept_promise() -> None:
    every = list(range(_COUNT))
    found = _figures({"a": every, "b": every})
    assert found.ok
    assert found.ours.agreement.event_pairs == _COUNT * (_COUNT - 1) // 2
    assert (found.ours.agreement.disagreements, found.plain.agreement.disagreements) == (0, 1)
    assert (found.stamps_bytes_per_event, found.entries_per_event) == (30.0, 2.0)
    assert (found.ours.delay_p50_ms, found.ours.delay_p99_ms) == (0.0, 0.0)
    assert found.disagreements_by_pair == {"a+b": (0, 1)}


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda events: [events[1], events[0], *events[2:]], "disagreements"),
        (lambda events: events[:-1], "missing"),
        (lambda events: [*events, events[-1]], "repeated"),
        (lambda events: [*events, 99], "foreign"),
    ],
)
def test_every_broken_promise_shows(spoil: Callable[[list[int]], list[int]], kind: str) -> None:
    every = list(range(_COUNT))
    found = _figures({"a": every, "b": spoil(every)})
    assert not found.ok
    assert (found.ours.agreement.disagreements if kind == "disagreements" else getattr(found.ours, kind)) == 1


def test_an_event_without_a_stamp_breaks_the_promise() -> None:
    every = list(range(_COUNT))
    found = _figures({"a": every, "b": every}, stamped=_COUNT - 1)
    assert found.unstamped == 1
    assert not found.ok


def shown(found: Figures) -> str:
    out = StringIO()
    Console(file=out, width=100).print(figures_table(found))
    return out.getvalue()


def test_an_audit_that_found_something_breaks_the_promise_and_shows_what() -> None:
    every = list(range(_COUNT))
    found = _figures({"a": every, "b": every}, audits=(_HOLDS, _VIOLATED, _TOLD))
    assert not found.ok
    text = shown(found)
    assert "{'g': 3}" in text
    assert "NOT kept" in text
    assert "just told" not in text
    assert _figures({"a": every, "b": every}, audits=(_HOLDS, _TOLD)).ok


def test_an_event_that_the_tables_lack_breaks_the_promise() -> None:
    every = list(range(_COUNT))
    found = _figures({"a": every, "b": every}, proven=_COUNT - 2)
    assert not found.ok
    assert "the tables lack: 2" in shown(found)


def test_the_figures_are_readable_by_people_and_programs() -> None:
    every = list(range(_COUNT))
    found = timed(_figures({"a": every, "b": every}), {"broker": 1.234, "total": 5.0})
    assert json.loads(json.dumps(found.as_json()))["seconds"] == {"broker": 1.2, "total": 5.0}
    assert "All subscribers saw their common events in one order" in shown(found)
    assert len(shown(found).splitlines()) <= 40


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.sets(st.sampled_from(_AIRPORTS), min_size=1)),
        max_size=4,
        unique_by=lambda grant: grant[0],
    ),
    st.permutations(range(1, 16)),
)
def test_expected_events_follow_the_grants(grants: list[tuple[int, set[str]]], g: list[int]) -> None:
    grants = sorted(grants, key=lambda grant: grant[0])
    published = _rows(list(range(len(g))))
    expected = []
    for event, position in enumerate(g):
        in_force = [topics for granted_at, topics in grants if granted_at < position]
        if in_force and _AIRPORTS[event % len(_AIRPORTS)] in in_force[-1]:
            expected.append(event)
    granted = [(position, frozenset(topics)) for position, topics in grants]
    assert expected_events(granted, published, np.array(g), _AIRPORTS).tolist() == expected


def test_an_event_is_told_as_a_person_would() -> None:
    event = {"flight": "UA1545", "event": "departed", "airport": "EWR", "to": "IAH", "at": "2013-01-01T10:17Z"}
    assert said(json.dumps(event)) == "01-01 10:17 UA1545 EWR → IAH"
    assert said("") == ""
