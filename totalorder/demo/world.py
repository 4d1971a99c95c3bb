"""Who publishes, who subscribes to what: three Kafka topics by region, in them a pub/sub topic for each airport."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from totalorder.demo.flights import Event, time_zones, zone_of

DOMAIN = "skies"
NEW_YORK = ("EWR", "JFK", "LGA")

KAFKA_TOPICS: Mapping[str, int] = {"flights.newyork": 3, "flights.east": 4, "flights.west": 3}
"""Kafka topic → number of partitions."""

_EASTERN = frozenset({"America/New_York", "America/Puerto_Rico"})


@dataclass(frozen=True, kw_only=True)
class Carriers:
    """One producer process: the carriers whose flights it reports."""

    name: str
    carriers: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Board:
    """One subscriber process: the airports that it shows, and those that it changes to in the middle of the run."""

    id: str
    name: str
    airports: frozenset[str]
    later: frozenset[str] | None = None
    killed: bool = False
    """Whether its subscriber is killed by SIGKILL on the way and started again."""

    @property
    def ever(self) -> frozenset[str]:
        """Every airport that it shows at some time."""
        return self.airports | (self.later or frozenset())


PRODUCERS = (
    Carriers(name="United", carriers=frozenset({"UA", "EV", "OO", "YV"})),
    Carriers(name="Delta", carriers=frozenset({"DL", "9E"})),
    Carriers(name="American", carriers=frozenset({"AA", "MQ", "US"})),
    Carriers(name="JetBlue", carriers=frozenset({"B6"})),
    Carriers(name="others", carriers=frozenset({"WN", "VX", "FL", "AS", "F9", "HA"})),
)


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


_WEST_COAST = _set("LAX SFO SEA SAN LAS PDX SNA LGB OAK SJC BUR SMF")
_FLORIDA = _set("MIA FLL MCO TPA PBI RSW JAX SRQ EYW")
_DELTA = _set("ATL JFK LGA DTW MSP SLC CVG")
_LARGE = _set(
    "ATL BNA BOS BUF CLE CLT CVG DCA DEN DFW DTW FLL IAD IAH LAS LAX MCO MIA MSP ORD PBI PHX RDU SFO SJU STL TPA"
)

BOARDS = (
    Board(id="laguardia", name="LaGuardia", airports=_set("LGA")),
    Board(id="jfk-west", name="JFK and the west coast", airports=_WEST_COAST | {"JFK"}),
    Board(id="chicago", name="Chicago corridor", airports=_set("ORD MDW LGA EWR")),
    Board(id="florida", name="Newark and Florida", airports=_FLORIDA | {"EWR"}, killed=True),
    Board(id="delta", name="Delta hubs", airports=_DELTA, later=_DELTA - {"JFK", "CVG"} | {"BOS", "FLL"}),
    Board(id="shuttle", name="East coast shuttle", airports=_set("LGA JFK BOS DCA IAD PHL BWI")),
    Board(id="control", name="Control room", airports=_LARGE | set(NEW_YORK)),
)
"""Most pairs overlap, in one to eight airports."""


def kafka_topic_of(airports: Iterable[str]) -> dict[str, str]:
    """Airport → the Kafka topic of its region."""
    zones = time_zones()
    return {airport: _region(airport, zones) for airport in airports}


def producer_of(event: Event) -> str:
    """Name of the producer that reports an event."""
    return next((each.name for each in PRODUCERS if event.carrier in each.carriers), PRODUCERS[-1].name)


def _region(airport: str, zones: dict[str, str]) -> str:
    if airport in NEW_YORK:
        return "flights.newyork"
    return "flights.east" if zone_of(airport, zones) in _EASTERN else "flights.west"


def partitions() -> list[tuple[str, int]]:
    """All event partitions; their indices stand for them in journals."""
    return [(topic, partition) for topic, count in KAFKA_TOPICS.items() for partition in range(count)]
