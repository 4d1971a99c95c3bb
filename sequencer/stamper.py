"""Timestamps of a batch, in one pass in π: g, n and the delta-coded entries (protocol.md, "Timestamp of event e")."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from totalorder.sequencer.draft import Draft
from totalorder.sequencer.groups import GroupChange
from totalorder.sequencer.stamps import StampRows
from totalorder.sequencer.state import Hot

Ints = npt.NDArray[np.int64]


class _Stamp(NamedTuple):
    topic: int
    n: int
    g: int
    source: int
    offset: int
    crc: int
    keyframe: bool
    entry_topics: Sequence[int]
    entry_ns: Sequence[int]


class Stamper:
    """Counters of all topics, and the stamps of the shard's own topics, as one batch moves them on."""

    def __init__(self, hot: Hot, draft: Draft) -> None:
        self.g = hot.g
        self.clocks: list[int] = hot.clocks.tolist()
        self.last_g: list[int] = hot.last_g.tolist()
        self.owed = dict(hot.owed)
        self.rekey = set(hot.rekey)
        self.opening = set(hot.opening)
        self.stamped: dict[int, list[_Stamp]] = {}
        self._draft = draft
        self.grow()

    def grow(self) -> None:
        """Gives topics that have just been numbered their counters."""
        fresh = len(self._draft.topics) - len(self.clocks)
        self.clocks.extend([0] * fresh)
        self.last_g.extend([0] * fresh)

    def apply(self, changed: GroupChange) -> None:
        """Notes what a change of sequencing groups owes to the next event of each topic."""
        for topic, peers in changed.owed.items():
            self.owed[topic] = self.owed.get(topic, frozenset()) | peers
        self.rekey |= changed.shrunk
        self.opening |= changed.opened

    def position(self) -> int:
        """Takes the next position of π, for something other than an event."""
        self.g += 1
        return self.g

    def stamp(self, *, topic: Ints, source: Ints, offset: Ints, crc: Ints) -> None:
        """Stamps a run of events, given in π."""
        clocks, last_g, partition_of = self.clocks, self.last_g, self._draft.partition_of
        shards, shard = self._draft.config.shards, self._draft.config.shard
        columns = (topic.tolist(), source.tolist(), offset.tolist(), crc.tolist())
        for t, source_index, event_offset, event_crc in zip(*columns, strict=True):
            self.g += 1
            clocks[t] += 1
            partition = partition_of[t]
            if partition % shards == shard:
                keyframe, peers = self._entries(t)
                ns = [clocks[peer] for peer in peers]
                stamp = _Stamp(t, clocks[t], self.g, source_index, event_offset, event_crc, keyframe, peers, ns)
                self.stamped.setdefault(partition, []).append(stamp)
            last_g[t] = self.g

    def _entries(self, topic: int) -> tuple[bool, Sequence[int]]:
        """Whether the event is a keyframe, and which topics its timestamp writes."""
        members = self._draft.members(topic)
        keyframe = (self.clocks[topic] - 1) % self._draft.config.keyframe_every == 0 or topic in self.rekey
        last_g, since = self.last_g, self.last_g[topic]
        peers: Sequence[int] = members if keyframe else [peer for peer in members if last_g[peer] > since]
        forced = self.owed.pop(topic, frozenset())
        if topic in self.opening:
            forced |= self._draft.together(topic)
        self.opening.discard(topic)
        self.rekey.discard(topic)
        if forced:
            peers = sorted(forced.union(peers))
        if not forced.issubset(members):
            # The entries of topics outside the group must not stay in a reader's full vector: say it anew next time.
            self.rekey.add(topic)
        return keyframe, peers

    def rows_of(self, stamps: Iterable[_Stamp]) -> StampRows:
        """Columns of some stamps, sorted by (topic, g); `source` still counts in the state's numbering."""
        ordered = sorted(stamps)
        starts = np.zeros(len(ordered) + 1, dtype=np.int64)
        np.cumsum([len(stamp.entry_topics) for stamp in ordered], out=starts[1:])

        def column(values: Iterable[int]) -> Ints:
            return np.fromiter(values, dtype=np.int64)

        return StampRows(
            topic=column(stamp.topic for stamp in ordered),
            n=column(stamp.n for stamp in ordered),
            g=column(stamp.g for stamp in ordered),
            source=column(stamp.source for stamp in ordered),
            offset=column(stamp.offset for stamp in ordered),
            crc=column(stamp.crc for stamp in ordered),
            keyframe=np.fromiter((stamp.keyframe for stamp in ordered), dtype=np.bool_),
            entry_start=starts,
            entry_topic=column(peer for stamp in ordered for peer in stamp.entry_topics),
            entry_n=column(n for stamp in ordered for n in stamp.entry_ns),
        )
