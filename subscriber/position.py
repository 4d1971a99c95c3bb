"""A place in the one order, as an application stores it beside its data."""

import re
from dataclasses import dataclass
from typing import Self

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.limits import MAX_COUNT
from totalorder.sequencer.wire.names import DomainTopics

_FORM = re.compile(r"([^/]+)/([A-Za-z0-9_-]{1,64})/(0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """Behind the event at `g`, before all that follows it, in every topic of the domain at once.

    That one number is a consistent cut, since the domain has one order of all events: whoever has done everything
    through it, and goes on from here, misses nothing and does nothing twice, whatever topics came and went
    meanwhile. `log` is Kafka's id of the domain's stamps: a domain that is begun anew under its name has another, and
    counts from 1 again. Batches that run again and jobs that are recovered change neither.

    `str` gives a short text (`shop/0b428b26-…/42`), `Position.parse` reads it. Positions of one order compare by g;
    `<` between those of two orders is an error, `==` is false.
    """

    domain: str
    log: str
    g: int

    def __post_init__(self) -> None:
        DomainTopics(domain=self.domain)
        if not 0 <= self.g <= MAX_COUNT:
            raise SettingsError(f"g = {self.g} is no position", remedy=f"Positions are 0 to {MAX_COUNT}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` has given; SettingsError for anything else."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise SettingsError(f"{text!r} is no position", remedy="Give what event.position printed: DOMAIN/LOG/G")
        domain, log, g = found.groups()
        return cls(domain, log, int(g))

    def __str__(self) -> str:
        return f"{self.domain}/{self.log}/{self.g}"

    def at(self, g: int) -> Self:
        """Another place in the same order."""
        return type(self)(self.domain, self.log, g)

    def check_order(self, order: "Position") -> None:
        """SettingsError unless this is a place in the order of another position."""
        if self.domain != order.domain:
            raise SettingsError(
                f"the position {self} is one of domain {self.domain!r}, and not of {order.domain!r}",
                remedy="Each domain has an order of its own: give a position of this one",
            )
        if self.log != order.log:
            raise SettingsError(
                f"the position {self} is of another incarnation of domain {self.domain!r}: its stamps are "
                f"{order.log} by now",
                remedy="The domain was begun anew, and its events are others: begin at its start, or at the present",
            )

    def __lt__(self, other: object) -> bool:
        return self.g < other._g_in(self) if isinstance(other, Position) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self.g <= other._g_in(self) if isinstance(other, Position) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self.g > other._g_in(self) if isinstance(other, Position) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self.g >= other._g_in(self) if isinstance(other, Position) else NotImplemented

    def _g_in(self, order: "Position") -> int:
        self.check_order(order)
        return self.g
