"""The compiled part of stamping: one pass over a run of events in π (protocol.md, "Timestamp of event e").

Compiled at the first call and kept on disk, so that the next process loads it: `warm` is for before it matters.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, ParamSpec, TypeVar

import numba
import numpy as np
import numpy.typing as npt

P = ParamSpec("P")
R = TypeVar("R")
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NONE = -1
_NO_TOPIC = np.zeros(0, dtype=np.int64)
_SPARSEST = 64
_LONGEST_WALK, _STEP_SHIFT = 64, 3
"""Topics looked at in order of recency before the group is looked through instead: 64, and no more than an eighth of
the group, since one step takes as long as to look several topics through.
"""


def _compiled(function: Callable[P, R]) -> Callable[P, R]:
    try:
        return numba.njit(cache=True)(function)
    except RuntimeError:  # neither the package's folder nor the user's can be written to
        return numba.njit()(function)


class Recency(NamedTuple):
    """Topics in the order of their last events, the latest first, as a list linked both ways; NONE is the end.

    `head` holds the first topic in its only place. Topics without an event are not in the list.
    """

    head: Ints
    older: Ints
    newer: Ints

    @classmethod
    def of(cls, last_g: Ints) -> "Recency":
        """The list for topics whose last events are at `last_g`, 0 where there is none."""
        order = np.argsort(-last_g, kind="stable")
        order = order[: np.count_nonzero(last_g)]
        older, newer = np.full(len(last_g), NONE, dtype=np.int64), np.full(len(last_g), NONE, dtype=np.int64)
        older[order[:-1]] = order[1:]
        newer[order[1:]] = order[:-1]
        return cls(head=order[:1].copy() if len(order) else np.array([NONE]), older=older, newer=newer)


class Groups(NamedTuple):
    """What the topics of one run have: row r belongs to topic `topic[r]`.

    SG_T \\ {T} is `members[start[r]:start[r+1]]`; where it is large, `held[held_row[r]]` says of every topic whether it
    is one of them, and `held_row[r]` is NONE elsewhere. `forced[forced_start[r]:forced_start[r+1]]` are the entries
    that the topic's first event of the run must write. Both ascend. `rekey` asks for a keyframe there. `own` tells the
    topics that this shard stamps.
    """

    topic: Ints
    own: Flags
    rekey: Flags
    start: Ints
    members: Ints
    held: Flags
    held_row: Ints
    forced_start: Ints
    forced: Ints

    @classmethod
    def of(
        cls, topic: Ints, *, own: Flags, rekey: Flags, members: Sequence[Ints], forced: Sequence[Ints], topics: int
    ) -> "Groups":
        """Columns from one array a row; `topics` is the number of all topics."""
        sizes = np.array([len(peers) for peers in members], dtype=np.int64)
        start = np.append(0, np.cumsum(sizes))
        # A row of flags costs a byte a topic: only where the group's own array takes an eighth of that or more.
        large = np.flatnonzero(sizes * _SPARSEST >= topics)
        held_row = np.full(len(topic), NONE, dtype=np.int64)
        held_row[large] = np.arange(len(large))
        held = np.zeros((len(large), topics), dtype=np.bool_)
        for row, group in enumerate(large.tolist()):
            held[row, members[group]] = True
        return cls(
            topic=topic,
            own=own,
            rekey=rekey,
            start=start,
            members=np.concatenate([_NO_TOPIC, *members]),
            held=held,
            held_row=held_row,
            forced_start=np.append(0, np.cumsum([len(peers) for peers in forced], dtype=np.int64)),
            forced=np.concatenate([_NO_TOPIC, *forced]),
        )


class Stamped(NamedTuple):
    """The run's own stamps in π: `row` of the event in the run, and the columns of `StampRows`.

    `rekey` tells for each row of `Groups` whether the topic's event after the run is to be a keyframe.
    """

    row: Ints
    n: Ints
    g: Ints
    keyframe: Flags
    entry_start: Ints
    entry_topic: Ints
    entry_n: Ints
    rekey: Flags


def stamp_run(
    of_group: Ints, groups: Groups, every: int, g: int, clocks: Ints, last_g: Ints, recency: Recency
) -> Stamped:
    """Stamps a run of events; event i is of topic `groups.topic[of_group[i]]` and takes position g + 1 + i.

    Moves `clocks`, `last_g` and `recency` on in place. `every` is K of the keyframes. Every array is made here: numba
    makes one by a call of Python, and a signal whose handler raises in that (Ctrl-C) would end the process.
    """
    size, done, stamped = len(of_group), 0, 0
    fresh = np.ones(len(groups.topic), dtype=np.bool_)
    row, n, at = np.empty((3, size), dtype=np.int64)
    keyframe, entry_start = np.empty(size, dtype=np.bool_), np.zeros(size + 1, dtype=np.int64)
    entry_topic, entry_n = np.empty((2, 8 * size + 64), dtype=np.int64)
    rekey = groups.rekey.copy()
    while True:
        out = Stamped(row, n, at, keyframe, entry_start, entry_topic, entry_n, rekey)
        done, stamped, missing = stamp_while_room(
            of_group, groups, every, g, clocks, last_g, recency, fresh, out, done, stamped
        )
        used = int(entry_start[stamped])
        if done == size:
            break
        entry_topic, entry_n = _grown(entry_topic, used, missing), _grown(entry_n, used, missing)
    return Stamped(
        row=row[:stamped],
        n=n[:stamped],
        g=at[:stamped],
        keyframe=keyframe[:stamped],
        entry_start=entry_start[: stamped + 1],
        entry_topic=entry_topic[:used],
        entry_n=entry_n[:used],
        rekey=rekey,
    )


def _grown(values: Ints, used: int, missing: int) -> Ints:
    larger = np.empty(max(2 * len(values), used + missing), dtype=np.int64)
    larger[:used] = values[:used]
    return larger


@_compiled
def stamp_while_room(
    of_group: Ints,
    groups: Groups,
    every: int,
    g: int,
    clocks: Ints,
    last_g: Ints,
    recency: Recency,
    fresh: Flags,
    out: Stamped,
    done: int,
    stamped: int,
) -> tuple[int, int, int]:
    """Goes on after `done` events and `stamped` stamps, to the end or until an event may find no room for its entries.

    Returns both numbers, and the room that is missing then. Arrays stay where they are in here, and have names of their
    own: a loop that may replace one, or that looks it up in a tuple, takes one and a half times as long.
    """
    row, n, at, keyframe, entry_start, entry_topic, entry_n, rekey = out
    topics, own, _, start, members, held, held_row, forced_start, owed = groups
    older, newer = recency.older, recency.newer
    head, used, missing = recency.head[0], entry_start[stamped], 0
    while done < len(of_group):
        group = of_group[done]
        topic = topics[group]
        n_now, g_now = clocks[topic] + 1, g + 1 + done
        low, high = start[group], start[group + 1]
        forced = forced_start[group + 1] - forced_start[group] if fresh[group] else 0
        missing = high - low + forced + 1  # one place more: a topic is written there before it is judged
        if used + missing > len(entry_topic):
            break
        clocks[topic] = n_now
        if own[group]:
            whole = (n_now - 1) % every == 0 or rekey[group]
            rekey[group] = False
            if whole:
                end = used
                for j in range(low, high):
                    entry_topic[end] = members[j]
                    end += 1
            else:
                walk = 0 if held_row[group] == NONE else min(_LONGEST_WALK, (high - low) >> _STEP_SHIFT)
                end, met = _walked(topic, held, held_row[group], walk, head, older, entry_topic, used)
                if not met:
                    end = _searched(members, low, high, last_g, last_g[topic], entry_topic, used)
            if forced:
                wanted = owed[forced_start[group] : forced_start[group + 1]]
                # An entry of a topic outside the group must not stay in a reader's full vector: say all anew next time.
                rekey[group] = not _within(wanted, members[low:high])
                end = _merged(entry_topic, used, end, wanted)
            for j in range(used, end):
                entry_n[j] = clocks[entry_topic[j]]
            row[stamped], n[stamped], at[stamped], keyframe[stamped] = done, n_now, g_now, whole
            stamped, used = stamped + 1, end
            entry_start[stamped] = used
            fresh[group] = False
        if head != topic:
            if last_g[topic] > 0:
                _unlink(topic, older, newer)
            older[topic], newer[topic] = head, NONE
            if head != NONE:
                newer[head] = topic
            head = topic
        last_g[topic] = g_now
        done += 1
    recency.head[0] = head
    return done, stamped, missing


@_compiled
def _walked(
    topic: int, held: Flags, row: int, most: int, head: int, older: Ints, found: Ints, used: int
) -> tuple[int, bool]:
    """Writes to `found[used:]`, ascending, the topics of `held[row]` that come before `topic` in order of recency.

    Returns their end, and whether `topic` was met within `most` steps; else nothing counts as written.
    """
    end, other, steps = used, head, 0
    while other != topic and steps < most:
        found[end] = other
        end += int(held[row, other])  # no branch: which topics advanced is nothing that a processor can guess
        other = older[other]
        steps += 1
    if other != topic:
        return used, False
    for i in range(used + 1, end):
        moved, place = found[i], i
        while place > used and found[place - 1] > moved:
            found[place] = found[place - 1]
            place -= 1
        found[place] = moved
    return end, True


@_compiled
def _searched(members: Ints, low: int, high: int, last_g: Ints, since: int, found: Ints, used: int) -> int:
    """Writes to `found[used:]` the topics of `members[low:high]` that have an event after `since`; returns the end."""
    end = used
    for j in range(low, high):
        found[end] = members[j]
        end += int(last_g[members[j]] > since)
    return end


@_compiled
def _contains(ascending: Ints, wanted: int) -> bool:
    low, high = 0, len(ascending)
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low < len(ascending) and ascending[low] == wanted


@_compiled
def _within(part: Ints, whole: Ints) -> bool:
    for wanted in part:  # noqa: SIM110 (compiled: a loop is what it becomes)
        if not _contains(whole, wanted):
            return False
    return True


@_compiled
def _merged(found: Ints, used: int, end: int, forced: Ints) -> int:
    """Adds what is missing of `forced` to the ascending `found[used:end]`; returns the new end."""
    old = found[used:end].copy()
    i, j, end = 0, 0, used
    while i < len(old) or j < len(forced):
        if j == len(forced) or (i < len(old) and old[i] <= forced[j]):
            if j < len(forced) and old[i] == forced[j]:
                j += 1
            found[end] = old[i]
            i += 1
        else:
            found[end] = forced[j]
            j += 1
        end += 1
    return end


@_compiled
def _unlink(topic: int, older: Ints, newer: Ints) -> None:
    before, after = newer[topic], older[topic]
    older[before] = after
    if after != NONE:
        newer[after] = before


def gather(order: Ints, start: Ints, values: Ints) -> Ints:
    """`values[start[r]:start[r+1]]` of each row r of `order`, one after the other."""
    found = np.empty(int((start[order + 1] - start[order]).sum()), dtype=np.int64)
    gather_into(found, order, start, values)
    return found


@_compiled
def gather_into(found: Ints, order: Ints, start: Ints, values: Ints) -> None:
    """`gather`, into an array that is there."""
    used = 0
    for row in order:
        for index in range(start[row], start[row + 1]):
            found[used] = values[index]
            used += 1


def warm() -> None:
    """Compiles what this module has, or loads it where an earlier process kept it."""
    none = np.zeros(1, dtype=np.int64)
    yes = np.ones(1, dtype=np.bool_)
    groups = Groups.of(none, own=yes, rekey=yes, members=[_NO_TOPIC], forced=[_NO_TOPIC], topics=1)
    stamped = stamp_run(none, groups, 1, 0, none.copy(), none.copy(), Recency.of(none))
    gather(none, stamped.entry_start, stamped.entry_topic)
