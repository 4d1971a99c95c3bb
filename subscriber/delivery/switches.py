"""Changes of a subscription's topic set at positions of π (protocol.md, "Change at p, exactly")."""

from collections.abc import Mapping
from dataclasses import dataclass

from totalorder.sequencer.wire.control import Ended, Grant, Link
from totalorder.sequencer.wire.stamps import Source


@dataclass(frozen=True, kw_only=True)
class Switch:
    """At position `g` of π the set in force becomes `topics` (id → name); `clock` is LC of topics there, by id.

    `exact`: the stamps before `g` carry the entries that order the set that ends here, and `clock` holds all its
    topics. Otherwise (the lease had run out, or a link of the chain is missing) events before `g` are put in order by
    frontiers instead.
    """

    answer: Link
    topics: Mapping[int, str]
    clock: Mapping[int, int]
    exact: bool

    @property
    def g(self) -> int:
        """Position of the change."""
        return self.answer.g

    @property
    def next_offsets(self) -> Mapping[Source, int]:
        """Exact cut at `g` in event partitions seen by then: an event lies after `g` iff its offset is not below."""
        return self.answer.next_offsets if isinstance(self.answer, Grant) else {}

    @property
    def lapse(self) -> bool:
        """Whether the change is the end of a lease."""
        return isinstance(self.answer, Ended) and self.answer.reason == "expired"


def switch_of(answer: Link, *, generation: int, topics: Mapping[int, str]) -> Switch:
    """The change that `answer` makes to the set `topics` of `generation`."""
    if isinstance(answer, Ended):
        ids = {name: topic for topic, name in topics.items()}
        clock = {ids[name]: n for name, n in answer.clock.items() if name in ids}
        follows = answer.generation == generation + (answer.reason != "expired")
        return Switch(answer=answer, topics={}, clock=clock, exact=follows and clock.keys() == topics.keys())
    clock = {answer.ids[name]: n for name, n in answer.clock.items()}
    follows = answer.generation == generation + 1 and (answer.continuous or not topics)
    return Switch(
        answer=answer,
        topics={answer.ids[name]: name for name in answer.topics},
        clock=clock,
        exact=follows and clock.keys() >= topics.keys(),
    )
