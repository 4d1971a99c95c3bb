"""What a look is: pure decisions on ends that brokers told, or did not tell, and on who is to be asked for which.

A look is whole or none. Brokers are patiently waited for, for a bounded time; then looks come with the last ends of
what they lead, and name it, since order by looks does not hold for it meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from kafka.errors import BrokerResponseError, RetriableError, for_code

from totalorder.errors import Error, StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.requests import UNKNOWN_TOPIC, Address, Cluster, Offsets

Ints = npt.NDArray[np.int64]

FALL_S = 2.0
"""For so long the brokers may contradict themselves about an end that was higher before."""

MOMENT_S = 0.1
"""For so long a look waits for a broker that was silent and can be asked again."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Look:
    """The ends of `sources`, by place: all records before them are committed or aborted, and were so at `ended_s`.

    `ends` is not to be changed; it is the same object as in the look before when nothing moved, and -1 where no end is
    known yet. All were asked for and told between `began_s` and `ended_s` (monotonic time), but for those of the places
    in `silent`, which are older.
    """

    sources: tuple[Source, ...]
    ends: Ints
    began_s: float
    ended_s: float
    silent: frozenset[int]


class Routes(NamedTuple):
    """Places by the broker that leads them. `gone`: Kafka has no such topic, or another one of this name."""

    led: dict[Address, list[int]]
    gone: list[int]


def routes(sources: Sequence[Source], cluster: Cluster) -> Routes:
    """A place that has no leader now, or whose partition the broker does not know yet, is in neither."""
    led: dict[Address, list[int]] = {}
    gone = []
    for place, (name, topic_id, partition) in enumerate(sources):
        topic = cluster.topics.get(name)
        if topic is None or topic.topic_id != topic_id:
            if name not in cluster.errors:
                gone.append(place)
        elif partition < len(topic.leaders) and topic.leaders[partition] in cluster.brokers:
            led.setdefault(cluster.brokers[topic.leaders[partition]], []).append(place)
    return Routes(led, gone)


class Ends:
    """Takes what brokers answered in one attempt, and judges whether it makes a look."""

    def __init__(self, *, patience_s: float) -> None:
        """For `patience_s` a place that is lacking holds looks back."""
        self._patience_s = patience_s
        self.sources: tuple[Source, ...] = ()
        self._resize(0)

    def _resize(self, count: int) -> None:
        self._ends = np.full(count, -1, np.int64)
        self._ends.flags.writeable = False
        self._epochs = np.full(count, -1, np.int64)
        self._lacking_since = np.full(count, np.inf)
        self._fell_since = np.full(count, np.inf)
        self._gone = np.zeros(count, np.bool_)
        self._in_trouble = False
        self._standing: list[tuple[Ints, Offsets]] = []
        self.begin(0.0)

    def watch(self, sources: Sequence[Source], known: Sequence[int] | None = None) -> None:
        """Other sources from now on; what is known of those that stay is kept.

        `known`: ends that were seen before, in another process, say; -1 for none.
        """
        before = {source: place for place, source in enumerate(self.sources)}
        ends, epochs, lacking = self._ends, self._epochs, self._lacking_since
        self.sources = tuple(sources)
        self._resize(len(self.sources))
        kept = [(place, before[source]) for place, source in enumerate(self.sources) if source in before]
        new, old = np.array(kept, np.int64).reshape(-1, 2).T
        renewed = self._ends.copy()
        renewed[new], self._epochs[new], self._lacking_since[new] = ends[old], epochs[old], lacking[old]
        if known is not None:
            np.maximum(renewed, np.asarray(known, np.int64), out=renewed)
        self._settle(renewed)
        self._in_trouble = bool(np.isfinite(self._lacking_since).any())

    def _settle(self, ends: Ints) -> None:
        ends.flags.writeable = False
        self._ends = ends

    # --- one attempt --------------------------------------------------------------------------------------------------

    def begin(self, now_s: float) -> None:
        """Nothing is answered yet."""
        self._began_s = now_s
        self._next: Ints | None = None
        self._next_epochs: Ints | None = None
        self._good: list[Ints] = []
        self._taken: list[tuple[Ints, Offsets]] = []
        self._count = 0

    def take(self, places: Ints, offsets: Offsets) -> None:
        """What the leader of these places answered; what is an error, or older than what is known, does not count.

        Raises Error for what a broker refuses.
        """
        if any(places is known and offsets is equal for known, equal in self._standing):
            self._note_good(places, offsets)  # as in the look before: the most frequent case
            return
        fell = offsets.offset < self._ends[places]
        stale = (offsets.epoch >= 0) & (offsets.epoch < self._epochs[places])
        bad = fell | stale | (offsets.error != 0) | (offsets.offset < 0)
        if not bad.any():
            self._accept(places, offsets.offset, offsets.epoch)
            self._note_good(places, offsets)
            return
        self._refuse_errors(places, offsets.error)
        good = ~bad
        self._accept(places[good], offsets.offset[good], offsets.epoch[good])
        self._note_good(places[good], None)
        truly = places[fell & ~stale & (offsets.error == 0)]
        self._fell_since[truly] = np.minimum(self._fell_since[truly], self._began_s)

    def _note_good(self, places: Ints, offsets: Offsets | None) -> None:
        self._count += len(places)
        self._good.append(places)
        if offsets is not None:
            self._taken.append((places, offsets))

    def _accept(self, places: Ints, ends: Ints, epochs: Ints) -> None:
        if not np.array_equal(ends, self._ends[places]):
            if self._next is None:
                self._next = self._ends.copy()
            self._next[places] = ends
        epochs = np.maximum(epochs, self._epochs[places])
        if not np.array_equal(epochs, self._epochs[places]):
            if self._next_epochs is None:
                self._next_epochs = self._epochs.copy()
            self._next_epochs[places] = epochs

    def _refuse_errors(self, places: Ints, codes: Ints) -> None:
        for place, code in zip(places[codes != 0].tolist(), codes[codes != 0].tolist(), strict=True):
            kind = for_code(code)
            if code != UNKNOWN_TOPIC and not issubclass(kind, RetriableError):
                raise refused(self.sources[place].topic, kind)

    def waits_until_s(self, places: Ints, took_s: float) -> float:
        """Until when the attempt is to wait for the leader of these places, which it asked.

        One that was silent for long is given a moment only, until it is known that its last answer, which came too
        late, took it less (`took_s`) than one is patient.
        """
        until_s = np.minimum(self._lacking_since[places], self._began_s) + self._patience_s
        moment_s = self._patience_s if took_s <= self._patience_s else min(self._patience_s, MOMENT_S)
        return float(np.where(until_s > self._began_s, until_s, self._began_s + moment_s).max(initial=0.0))

    def judge(self, now_s: float) -> Look | None:
        """The look that the attempt made, or None: something is lacking that is still waited for."""
        silent: frozenset[int] = frozenset()
        if self._in_trouble or self._count < len(self.sources):
            lacking = self._note_lacking()
            held = lacking & ~self._gone & (now_s - self._lacking_since < self._patience_s)
            if held.any():
                return None
            silent = frozenset(np.flatnonzero(lacking).tolist())
        if self._next is not None:
            self._settle(self._next)
        if self._next_epochs is not None:
            self._epochs = self._next_epochs
        self._standing = self._taken
        return Look(sources=self.sources, ends=self._ends, began_s=self._began_s, ended_s=now_s, silent=silent)

    def _note_lacking(self) -> npt.NDArray[np.bool_]:
        lacking = np.ones(len(self.sources), np.bool_)
        for places in self._good:
            lacking[places] = False
        self._lacking_since[~lacking] = np.inf
        self._fell_since[~lacking] = np.inf
        self._lacking_since[lacking] = np.minimum(self._lacking_since[lacking], self._began_s)
        self._in_trouble = bool(lacking.any())
        return lacking

    # --- ids ----------------------------------------------------------------------------------------------------------

    def confirm(self, gone: Sequence[int], asked_s: float) -> None:
        """The brokers were asked at `asked_s` which topics have which ids: all but `gone` have those of the sources.

        Raises StateError for ends that fell before, and are of the same topic still.
        """
        self._gone[:] = False
        self._gone[list(gone)] = True
        fallen = np.flatnonzero(~self._gone & (self._fell_since + FALL_S <= asked_s))
        if len(fallen):
            topic, topic_id, partition = self.sources[fallen[0]]
            raise StateError(
                f"Kafka has fewer records in partition {partition} of topic {topic} than it had before: what was "
                f"before offset {self._ends[fallen[0]]} has been cut off, and the topic's id {topic_id} is the same",
                remedy="Records were lost: a replica that lagged became leader (unclean.leader.election.enable), or a "
                "broker lost its disk. What was stamped cannot be told from what comes in its place: begin a new "
                "domain.",
            )


def refused(topic: str, kind: type[BrokerResponseError]) -> Error:
    """What to tell about an error code that does not pass."""
    return Error(
        f"The Kafka brokers do not tell the ends of topic {topic}: {kind.__name__}",
        remedy="Allow the sequencer's user to read and describe it.",
    )
