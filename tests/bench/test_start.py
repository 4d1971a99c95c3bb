"""What `totalorder bench start` makes of what it saw."""

import json

import numpy as np

from totalorder.bench.outcome import Size
from totalorder.bench.start.command import CLIENTS, PLAIN, Plan, Turn, parts_of, summary, tables

UNTIL_S = (1, 2, 5)


def rows(delay_s: float) -> np.ndarray:
    """An event each half second, sent from 100 s on, in whichever order they came; the first one took a second more."""
    sent = 100 + np.arange(10) / 2
    delays = np.full(10, delay_s)
    delays[0] += 1
    return np.stack([sent, sent + delays], axis=1)[::-1]


def test_each_event_counts_for_the_part_in_which_it_was_sent() -> None:
    parts = parts_of(rows(0.25), UNTIL_S)
    assert [len(part) for part in parts] == [2, 2, 6]
    assert sorted(parts[0].round().tolist()) == [250, 1_250]
    assert [set(part.round().tolist()) for part in parts[1:]] == [{250}, {250}]


def test_turns_count_together_and_tables_hold_what_data_hold() -> None:
    turns = {
        client: [
            Turn(
                session_s=number,
                job_s=2,
                grant_s=3,
                ordered=rows(number),
                plain=rows(0.004),
                again_s=np.array([[number, number + 1.0], [number, number + 2.0]]),
            )
            for number in (1, 2, 6)
        ]
        for client in CLIENTS
    }
    data = summary(UNTIL_S, turns)
    assert data["starts_s"][CLIENTS[0]] == {"session_s": 2, "job_s": 2, "grant_s": 3}
    assert data["delays_ms"][CLIENTS[1]][0] == {"median": 2_500, "largest": 7_000}
    assert round(data["delays_ms"][PLAIN][2]["largest"]) == 4
    assert data["again_s"][CLIENTS[0]]["grant"] == {"median": 2, "largest": 6}
    starts, delays, again = tables(json.loads(json.dumps(data)))
    assert starts.rows[0] == ["kafka-python", "2.0", "2.0", "3.0"]
    assert [row[0] for row in delays.rows] == ["0 to 1", "1 to 2", "2 to 5"]
    assert all(len(row) == len(delays.columns) for row in delays.rows)
    assert delays.rows[1][-2:] == ["4", "4"]
    assert again.rows == [[client, "2.0", "6.0", "3.5", "8.0"] for client in CLIENTS]


def test_every_size_has_parts_in_order() -> None:
    for size in Size:
        until_s = Plan.of(size).until_s
        assert list(until_s) == sorted(set(until_s))
