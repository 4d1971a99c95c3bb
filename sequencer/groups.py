"""Sequencing groups from co-subscription counts (paper §3.3; supplement fig. 1; protocol.md, "Timestamp of event e").

X is in SG_T when at least m live subscriptions hold T and X together. A member that joins, or leaves, is owed one entry
in T's next event whether it advanced or not: the joining entry gives the baseline, the closing entry keeps the order
for subscribers that still hold events from before the change. With m = 2 a subscription that swaps T for X needs more:
X's next event also carries an entry for every topic that any one subscription holds together with X (opening
entries), else a subscriber that holds both alone may deliver X's event before an earlier one of T.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Counts = Mapping[int, Mapping[int, int]]
_NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True, kw_only=True)
class GroupChange:
    """What one subscription change did to the sequencing groups of this shard's topics.

    `counts` holds the rows of the topics touched (an empty row removes the topic); `owed` the entries that each
    topic's next event must write; `shrunk` the topics that lost a member, whose next event is a keyframe; `opened` the
    topics that the subscription gained, where m = 2.
    """

    counts: Counts
    owed: Mapping[int, frozenset[int]]
    shrunk: frozenset[int]
    opened: frozenset[int]


def change(
    counts: Mapping[int, dict[int, int]],
    *,
    own: Iterable[int],
    former: frozenset[int],
    topics: frozenset[int],
    min_subscriptions: int,
) -> GroupChange:
    """Replaces one subscription's set `former` by `topics` at one position; `own` are the shard's topics of both.

    Changes the rows in place: to copy a popular topic's for each subscription would cost more than all the rest.
    """
    rows: dict[int, dict[int, int]] = {}
    owed: dict[int, frozenset[int]] = {}
    shrunk, opened = set(), set()
    added, dropped = topics - former, former - topics
    for topic in own:
        if topic not in former:
            more, less = topics, _NOBODY
        elif topic not in topics:
            more, less = _NOBODY, former
        else:
            more, less = added, dropped
        row = counts.get(topic, {})
        joined = _raise(row, topic, more, min_subscriptions)
        left = _lower(row, topic, less, min_subscriptions)
        if more or less:
            rows[topic] = row
        if joined or left:
            owed[topic] = frozenset((*joined, *left))
        if left:
            shrunk.add(topic)
        if min_subscriptions > 1 and topic in added:
            opened.add(topic)
    return GroupChange(counts=rows, owed=owed, shrunk=frozenset(shrunk), opened=frozenset(opened))


def _raise(row: dict[int, int], topic: int, peers: Iterable[int], min_subscriptions: int) -> list[int]:
    """Counts one subscription more with each peer but the topic itself; returns those that join the group by it."""
    joined = []
    counted = row.get
    for peer in peers:
        if peer != topic:
            row[peer] = count = counted(peer, 0) + 1
            if count == min_subscriptions:
                joined.append(peer)
    return joined


def _lower(row: dict[int, int], topic: int, peers: Iterable[int], min_subscriptions: int) -> list[int]:
    """Counts one subscription less with each peer but the topic itself; returns those that leave the group by it."""
    left = []
    for peer in peers:
        if peer == topic:
            continue
        row[peer] = count = row[peer] - 1
        if count == min_subscriptions - 1:
            left.append(peer)
        if count == 0:
            del row[peer]
    return left


def members(row: Mapping[int, int], min_subscriptions: int) -> Ints:
    """SG_T without T itself, in ascending topic id, from T's row of counts."""
    return np.array(sorted(peer for peer, count in row.items() if count >= min_subscriptions), dtype=np.int64)
