"""The stamping kernel's dumb twin: plain Python that looks at every member of a group for every event."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class PlainStamper:
    """Counters by topic id, moved on by `stamp`; the arguments are those of kernel.py, as plain values."""

    members: Mapping[int, Sequence[int]]
    every: int
    clocks: list[int]
    last_g: list[int]
    g: int = 0
    own: frozenset[int] | None = None
    """The topics that are stamped; None: all."""
    forced: dict[int, Sequence[int]] = field(default_factory=dict)
    rekey: set[int] = field(default_factory=set)

    def stamp(self, topics: Sequence[int]) -> Iterator[tuple[int, int, int, bool, dict[int, int]]]:
        """Yields (topic, n, g, keyframe, entries) for each event of an own topic."""
        for topic in topics:
            self.g += 1
            self.clocks[topic] += 1
            if self.own is None or topic in self.own:
                yield self._stamped(topic)
            self.last_g[topic] = self.g

    def _stamped(self, topic: int) -> tuple[int, int, int, bool, dict[int, int]]:
        members, forced = self.members[topic], self.forced.pop(topic, ())
        keyframe = (self.clocks[topic] - 1) % self.every == 0 or topic in self.rekey
        peers = {peer for peer in members if keyframe or self.last_g[peer] > self.last_g[topic]}.union(forced)
        self.rekey.discard(topic)
        if not set(forced) <= set(members):
            self.rekey.add(topic)
        return topic, self.clocks[topic], self.g, keyframe, {peer: self.clocks[peer] for peer in sorted(peers)}
