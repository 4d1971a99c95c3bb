"""Timestamps of a batch: what the kernel needs for each run of events between control records, and what it returns."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.draft import Draft
from totalorder.sequencer.groups import GroupChange
from totalorder.sequencer.kernel import Groups, Recency, Stamped, gather, stamp_run
from totalorder.sequencer.state import Hot
from totalorder.sequencer.wire.numbering import numbered, sorted_order
from totalorder.sequencer.wire.stamps import StampRows

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The own stamps of one run, in π; `topic`, `source`, `offset` and `crc` are columns of its events."""

    stamped: Stamped
    topic: Ints
    source: Ints
    offset: Ints
    crc: Ints


class Stamper:
    """Counters of all topics, and the stamps of the shard's own topics, as one batch moves them on."""

    def __init__(self, hot: Hot, draft: Draft) -> None:
        self.g = hot.g
        self.clocks = hot.clocks.copy()
        self.last_g = hot.last_g.copy()
        self._owed: dict[int, Set[int]] = dict(hot.owed)
        self.rekey = set(hot.rekey)
        self.opening = set(hot.opening)
        self._recency = Recency.of(self.last_g)
        self._runs: list[_Run] = []
        self._draft = draft
        self._room = [self.clocks, self.last_g, *self._recency[1:]]
        self.grow()

    def grow(self) -> None:
        """Gives topics that have just been numbered their counters. Each request of a batch may bring some, so there is
        room for more than are there.
        """
        size = len(self._draft.topics)
        if size == len(self.clocks):
            return
        assert size > len(self.clocks), "topics are numbered for ever"
        if size > len(self._room[0]):
            none = np.zeros(max(size, 2 * len(self.clocks)) - len(self.clocks), dtype=np.int64)
            self._room = [np.append(column[: len(self.clocks)], none) for column in self._room]
        self.clocks, self.last_g, older, newer = (column[:size] for column in self._room)
        self._recency = Recency(self._recency.head, older, newer)

    def apply(self, changed: GroupChange) -> None:
        """Notes what a change of sequencing groups owes to the next event of each topic."""
        for topic, peers in changed.owed.items():
            owed = self._owed.get(topic, _NOTHING)
            if not isinstance(owed, set):  # shared with the state before: copied once, and not for each change
                owed = self._owed[topic] = set(owed)
            owed |= peers
        self.rekey |= changed.shrunk
        self.opening |= changed.opened

    def owed(self) -> Mapping[int, frozenset[int]]:
        """What is owed after the batch."""
        return {topic: frozenset(peers) for topic, peers in self._owed.items()}

    def position(self) -> int:
        """Takes the next position of π, for something other than an event."""
        self.g += 1
        return self.g

    def stamp(self, *, topic: Ints, source: Ints, offset: Ints, crc: Ints) -> None:
        """Stamps a run of events, given in π."""
        distinct, of_group = numbered(topic, size=len(self.clocks))
        groups = self._groups(distinct)
        every = self._draft.config.keyframe_every
        stamped = stamp_run(of_group, groups, every, self.g, self.clocks, self.last_g, self._recency)
        before, self.g = self.g, self.g + len(topic)
        if len(stamped.g):
            assert before < stamped.g[0] <= stamped.g[-1] <= self.g, "a run's stamps lie within its positions"
        assert stamped.entry_start[-1] == len(stamped.entry_topic), "a run's entries are its rows'"
        own = distinct[groups.own].tolist()
        for number in own:
            self._owed.pop(number, None)
        self.opening.difference_update(own)
        self.rekey.difference_update(own)
        self.rekey.update(distinct[groups.own & stamped.rekey].tolist())
        row = stamped.row
        self._runs.append(_Run(stamped=stamped, topic=topic[row], source=source[row], offset=offset[row], crc=crc[row]))

    def _groups(self, distinct: Ints) -> Groups:
        """The sequencing groups of some topics, and what their next events owe."""
        topics, draft = distinct.tolist(), self._draft
        own = [draft.owns(topic) for topic in topics]
        return Groups.of(
            distinct,
            own=np.array(own, dtype=np.bool_),
            rekey=np.array([topic in self.rekey for topic in topics], dtype=np.bool_),
            members=[draft.members(topic) if mine else _NONE for topic, mine in zip(topics, own, strict=True)],
            forced=[self._forced(topic) if mine else _NONE for topic, mine in zip(topics, own, strict=True)],
            topics=len(self.clocks),
        )

    def _forced(self, topic: int) -> Ints:
        forced = self._owed.get(topic, _NOTHING)
        if topic in self.opening:
            forced = forced | self._draft.together(topic)
        return np.array(sorted(forced), dtype=np.int64)

    def rows(self) -> dict[int, StampRows]:
        """Stamps partition → its rows; `source` still counts in the state's numbering."""
        if not self._runs:
            return {}
        whole = _whole(self._runs)
        order = sorted_order(whole.topic, size=len(self.clocks))
        distinct, place = numbered(whole.topic[order], size=len(self.clocks))
        of_topic = [self._draft.partition_of[topic] for topic in distinct.tolist()]
        partitions = np.array(of_topic, dtype=np.int64)[place]
        return {
            partition: _taken(whole, order[partitions == partition]) for partition in np.unique(partitions).tolist()
        }


_NONE = np.zeros(0, dtype=np.int64)
_NOTHING: frozenset[int] = frozenset()


def _whole(runs: list[_Run]) -> StampRows:
    """The rows of all runs in π."""
    stamped = [run.stamped for run in runs]
    lengths = np.concatenate([np.diff(part.entry_start) for part in stamped])
    return StampRows(
        topic=np.concatenate([run.topic for run in runs]),
        n=np.concatenate([part.n for part in stamped]),
        g=np.concatenate([part.g for part in stamped]),
        source=np.concatenate([run.source for run in runs]),
        offset=np.concatenate([run.offset for run in runs]),
        crc=np.concatenate([run.crc for run in runs]),
        keyframe=np.concatenate([part.keyframe for part in stamped]),
        entry_start=np.append(0, np.cumsum(lengths)),
        entry_topic=np.concatenate([part.entry_topic for part in stamped]),
        entry_n=np.concatenate([part.entry_n for part in stamped]),
    )


def _taken(rows: StampRows, order: Ints) -> StampRows:
    lengths = np.diff(rows.entry_start)[order]
    return StampRows(
        topic=rows.topic[order],
        n=rows.n[order],
        g=rows.g[order],
        source=rows.source[order],
        offset=rows.offset[order],
        crc=rows.crc[order],
        keyframe=rows.keyframe[order],
        entry_start=np.append(0, np.cumsum(lengths)),
        entry_topic=gather(order, rows.entry_start, rows.entry_topic),
        entry_n=gather(order, rows.entry_start, rows.entry_n),
    )
