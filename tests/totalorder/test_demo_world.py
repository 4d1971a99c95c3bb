"""The demo's data and cast: real flights, in order, and boards that overlap."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from totalorder.demo.flights import Event, Flights, load_events, load_flights
from totalorder.demo.journal import Journal, event_number, read_journal
from totalorder.demo.run import SEQUENCER_READY
from totalorder.demo.world import BOARDS, KAFKA_TOPICS, PRODUCERS, kafka_topic_of, partitions, producer_of

_MINUTE_MS = 60_000


@pytest.fixture(scope="module")
def flights() -> Flights:
    return load_flights()


def test_the_whole_year_is_there_in_order(flights: Flights) -> None:
    assert len(flights) == 328_521  # 336,776 less those cancelled
    assert np.all(np.diff(flights.departure_ms) >= 0)
    assert set(np.unique(flights.origin)) == {"EWR", "JFK", "LGA"}
    assert len(np.unique(flights.dest)) == 104


def test_arrivals_are_instants_and_not_local_clocks(flights: Flights) -> None:
    landed = flights.arrival_ms >= 0
    lasted_min = (flights.arrival_ms - flights.departure_ms)[landed] // _MINUTE_MS
    assert landed.mean() > 0.99
    assert lasted_min.min() > 0
    assert lasted_min.max() < 15 * 60
    west = flights.dest[landed] == "LAX"
    assert 300 < np.median(lasted_min[west]) < 400  # three hours less by the clock there
    island = flights.dest[landed] == "SJU"
    assert 190 < np.median(lasted_min[island]) < 250  # an airport of which the data knows no time zone


def test_the_first_flight_of_the_year() -> None:
    first = load_events(1)
    assert first == [
        Event(
            time_ms=1_357_035_420_000,
            airport="EWR",
            arrived=False,
            carrier="UA",
            flight=1545,
            other="IAH",
            delay_min=2,
        )
    ]
    assert first[0].to_json() == (
        b'{"flight":"UA1545","event":"departed","airport":"EWR","to":"IAH","at":"2013-01-01T10:17Z","delay_min":2}'
    )


def test_a_shorter_run_is_the_beginning_of_a_longer_one() -> None:
    long = load_events(3000)
    assert len(long) == 3000
    assert load_events(700) == long[:700]
    assert [event.time_ms for event in long] == sorted(event.time_ms for event in long)
    assert any(event.arrived for event in long)


def test_every_airport_belongs_to_one_kafka_topic_and_every_board_is_fed(flights: Flights) -> None:
    airports = {*flights.origin.tolist(), *flights.dest.tolist()}
    topic_of = kafka_topic_of(airports)
    assert set(topic_of.values()) == set(KAFKA_TOPICS)
    assert topic_of["EWR"] == "flights.newyork"
    assert topic_of["BOS"] == topic_of["SJU"] == "flights.east"
    assert topic_of["ORD"] == topic_of["HNL"] == "flights.west"
    for board in BOARDS:
        assert board.ever <= airports


def test_boards_overlap_and_one_of_them_changes() -> None:
    assert len(BOARDS) >= 6
    assert len({board.id for board in BOARDS}) == len(BOARDS)
    overlapping = sum(bool(a.ever & b.ever) for a, b in combinations(BOARDS, 2))
    assert overlapping >= 15
    assert [board.id for board in BOARDS if board.later] == ["delta"]


def test_carriers_are_shared_out_without_remainder(flights: Flights) -> None:
    named = [carrier for producer in PRODUCERS for carrier in producer.carriers]
    assert sorted(named) == sorted(set(flights.carrier.tolist()))
    assert producer_of(load_events(1)[0]) == "United"


def test_a_journal_gives_back_its_rows_and_not_half_a_row(tmp_path: Path) -> None:
    path = tmp_path / "board"
    with Journal(path) as journal:
        journal.add(event=event_number(9, 7), topic=3, g=1, at_ms=5)
        journal.add(event=event_number(0, 8), topic=2, g=2, at_ms=6)
    with path.open("ab") as file:
        file.write(b"killed while writing")
    rows = read_journal(path)
    assert rows["event"].tolist() == [event_number(9, 7), 8]
    assert rows["g"].tolist() == [1, 2]
    assert len(read_journal(tmp_path / "none")) == 0


def test_event_numbers_are_distinct_over_partitions() -> None:
    numbers = {event_number(partition, offset) for partition in range(len(partitions())) for offset in (0, 1, 2**47)}
    assert len(numbers) == 3 * len(partitions())


def test_the_line_that_the_demo_waits_for_is_the_one_that_the_job_logs() -> None:
    runner = pytest.importorskip("totalorder.streaming.runner")
    assert SEQUENCER_READY == runner.READY
