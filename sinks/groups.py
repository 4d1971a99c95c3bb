"""Members of sequencing groups as intervals of the order, folded from changes of subscriptions. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from totalorder.errors import Contradiction
from totalorder.sequencer.groups import change

Interval = tuple[str, str, int]
"""Key of an interval: topic, member, position of the change that brought the member in."""


@dataclass(eq=False)
class SequencingGroups:
    """The groups of a domain at a position of the order; the same rule as the sequencer's (sequencer/groups.py)."""

    min_subscriptions: int = 1
    """m of the domain, as the last grant said."""
    _g: int = 0
    _ids: dict[str, int] = field(default_factory=dict)
    _names: list[str] = field(default_factory=list)
    _held: dict[str, frozenset[int]] = field(default_factory=dict)
    _counts: dict[int, dict[int, int]] = field(default_factory=dict)
    _open: dict[tuple[int, int], int] = field(default_factory=dict)

    def change(self, g: int, subscriber: str, topics: Iterable[str]) -> dict[Interval, int | None]:
        """At `g` the subscriber holds exactly `topics` (none: its subscription ended).

        Returns the intervals that this began (None) and ended (`g`). Contradiction when `g` is not past the last one.
        """
        if g <= self._g:
            raise Contradiction(
                f"the answer at position {g} on grants comes after that of {self._g}",
                remedy="Two sequencers write to this domain, or a checkpoint was replaced: begin a new domain",
            )
        self._g = g
        former, now = self._held.pop(subscriber, frozenset()), frozenset(self._id(topic) for topic in topics)
        if now:
            self._held[subscriber] = now
        changed = change(
            self._counts, own=former | now, former=former, topics=now, min_subscriptions=self.min_subscriptions
        )
        for topic, row in changed.counts.items():
            self._counts[topic] = dict(row)
        return dict(self._turned(g, topic, peer) for topic, peers in changed.owed.items() for peer in sorted(peers))

    def _turned(self, g: int, topic: int, member: int) -> tuple[Interval, int | None]:
        begun = self._open.pop((topic, member), None)
        if begun is None:
            self._open[topic, member] = g
        key = (self._names[topic], self._names[member], g if begun is None else begun)
        return key, None if begun is None else g

    def _id(self, topic: str) -> int:
        if topic not in self._ids:
            self._ids[topic] = len(self._names)
            self._names.append(topic)
        return self._ids[topic]
