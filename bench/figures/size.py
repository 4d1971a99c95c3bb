"""Timestamp size as in the paper's figures 7 and 8, and what is left of it when only what has advanced is written."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from totalorder.bench.workload import Ints, Workload

Groups = npt.NDArray[np.bool_]
"""A row and a column a topic: row T tells which topics are in SG_T."""


@dataclass(frozen=True, kw_only=True)
class TimestampSize:
    """Entries, at one number of topic-subscriptions: of SG_T over all topics T, and of an event's delta."""

    mean: float
    std: float
    delta_entries: float


def timestamp_sizes(workload: Workload, subscribers: int, size: int, events: int) -> dict[int, TimestampSize]:
    """By m: with 2 as the paper defines sequencing groups, and with 1 as totalorder does unless told otherwise.

    Delta entries are those of the second half of so many events, on topics that had one before.
    """
    together = co_subscriptions(workload.subscriptions(subscribers, size), workload.topics)
    return {m: _size(sequencing_groups(together, m), workload.events(events)) for m in (2, 1)}


def _size(groups: Groups, events: Ints) -> TimestampSize:
    sizes = groups.sum(axis=1)
    late = delta_entries(groups, events)[len(events) // 2 :]
    return TimestampSize(mean=float(sizes.mean()), std=float(sizes.std()), delta_entries=float(late[late >= 0].mean()))


def co_subscriptions(subscriptions: Ints, topics: int) -> Ints:
    """How many subscriptions hold both topics, for each two of them."""
    # In float32, which is exact up to 2^24 and multiplied many times faster than integers.
    held = np.zeros((len(subscriptions), topics), dtype=np.float32)
    np.put_along_axis(held, subscriptions, 1, axis=1)
    return (held.T @ held).astype(np.int64)


def sequencing_groups(together: Ints, m: int) -> Groups:
    """SG_T by the paper's definition 1: T itself, and all topics that at least m subscriptions hold together with T."""
    groups: Groups = together >= m
    np.fill_diagonal(groups, val=True)
    return groups


def delta_entries(groups: Groups, events: Ints) -> Ints:
    """Of each event, how many topics of its group advanced since its topic's event before; -1 where there is none."""
    others = [np.flatnonzero(row) for row in groups]
    last = np.full(len(groups), -1)
    found = np.full(len(events), -1)
    for g, topic in enumerate(events.tolist()):
        if last[topic] >= 0:
            found[g] = np.count_nonzero(last[others[topic]] > last[topic])
        last[topic] = g
    return found
