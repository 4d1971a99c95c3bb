"""What is told of a Subscriber's life, and of a Reader's waits: to Python's log, to callbacks, in metrics. No clock and
no I/O; times are given.

The domain's log has no sign of life of a sequencer to which nothing comes: it writes stamps when events come, and
answers when somebody asks. So what it owes is watched: stamps of events that are here, an answer to the renewal of the
lease. A quiet topic owes nothing.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from totalorder.subscriber.delivery.waits import Wait as Wait
from totalorder.words import few

WORD_S: Final = 3.0
"""A wait that lasts longer is told."""
_AGAIN_S, _MOST_AGAIN_S = 10.0, 600.0
"""A stall that goes on is told again, more and more seldom."""
_WORDS_APART_S = 60.0
_MOST_NAMED = 10
_STEP_S = 2.0
"""An application that does not poll waits for nothing: no more than so much counts between two looks."""


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The subscription is this process's, with this set of topics, from position `g` of the order on."""

    g: int
    topics: tuple[str, ...]
    generation: int


@dataclass(frozen=True, kw_only=True)
class Changed:
    """The next event is of this set of topics: everything of the former set, through position `g`, was handed out."""

    g: int
    topics: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Stalled:
    """What is waited for has not come for `for_s` seconds; `over`: it has come now, or is not waited for any more.

    `stamps_s` is how many seconds ago stamps of anything came last, None where none came since this process began.
    """

    wait: Wait
    for_s: float
    stamps_s: float | None
    over: bool = False


News = Granted | Changed | Stalled


@dataclass(frozen=True, kw_only=True)
class Word:
    """A line for the log, at one of Python's levels, and what callbacks are told with it."""

    level: int
    text: str
    news: News | None = None


@dataclass(frozen=True, kw_only=True)
class Hold:
    """What delivery waits for, and for how many seconds."""

    wait: Wait
    for_s: float


@dataclass(kw_only=True)
class _Told:
    """A stall that was told, and is not over."""

    wait: Wait
    since: float
    again_at: float
    pause_s: float = _AGAIN_S


class Watch:
    """Decides what is told. Every input returns the words that are due. Without an id it is of a Reader."""

    def __init__(self, *, id: str | None, domain: str, stalled_after_s: float) -> None:  # noqa: A002
        self._id, self._domain, self._stalled_after_s = id, domain, stalled_after_s
        self._seen_s = 0.0
        """Time for which somebody has looked."""
        self._looked_at: float | None = None
        self._since: dict[Wait, float] = {}
        """In time that was seen: since when each thing is waited for."""
        self._asked_at: float | None = None
        self._word_at = -_WORDS_APART_S
        self._told: _Told | None = None
        self._quiet_until = 0.0
        """What waits behind what has come just now has a while to come too."""
        self._incarnation = 0
        self._vanished = ""
        """The id of the topic that went last."""
        self._stamped_at: float | None = None
        self._behind_at: dict[int, float] = {}
        """By partition when old stamps came last: later ones are still to be read, and nobody fails to write them."""
        self._lost = 0
        self._lost_at: float | None = None

    # --- what happens -------------------------------------------------------------------------------------------------

    def granted(self, g: int, topics: tuple[str, ...], generation: int, former: int) -> list[Word]:
        """A request of this process took effect; `former` is the generation of another process before, or 0."""
        over = f", after generation {former} of another process" if former else ""
        text = f"granted to {self._who} at g {g}: {named(topics)} (generation {generation}{over})"
        return [Word(level=logging.INFO, text=text, news=Granted(g=g, topics=topics, generation=generation))]

    def changed(self, g: int, topics: tuple[str, ...]) -> list[Word]:
        """Another set holds for what is handed out next."""
        text = f"{self._who} goes on behind g {g} with {named(topics)}"
        return [Word(level=logging.INFO, text=text, news=Changed(g=g, topics=topics))]

    def stamped(self, incarnation: int, partition: int, age_s: float) -> list[Word]:
        """A batch's stamps came, in a partition of stamps, so long after it was stamped."""
        self._stamped_at = self._seen_s
        if age_s > self._stalled_after_s:
            self._behind_at[partition] = self._seen_s
        before, self._incarnation = self._incarnation, max(incarnation, self._incarnation)
        if self._id is None or not 0 < before < incarnation:
            return []  # to a Reader that is history
        text = f"the sequencer of domain {self._domain!r} was replaced by a recovered one, incarnation {incarnation}"
        return [Word(level=logging.WARNING, text=text)]

    def vanished(self, topic: str, topic_id: str) -> list[Word]:
        """Kafka has a topic no longer; it is told of one partition after the other."""
        if topic_id == self._vanished:
            return []
        self._vanished = topic_id
        text = f"Kafka topic {topic!r} with id {topic_id} was deleted, or replaced by another of its name"
        return [Word(level=logging.WARNING, text=text)]

    def lost(self, what: str, now: float) -> list[Word]:
        """The application is told that something is lost, which it asked to skip."""
        self._lost += 1
        if self._lost_at is not None and now < self._lost_at + _WORDS_APART_S:
            return []
        more = f", and {self._lost - 1} times more since the last word" if self._lost > 1 else ""
        self._lost, self._lost_at = 0, now
        return [Word(level=logging.WARNING, text=f"{self._who} skips what Kafka has no longer: {what}{more}")]

    def unsaved(self, why: str) -> list[Word]:
        """It ends, and its last position could not be written."""
        text = f"{self._who} was closed unsaved: what was acknowledged since it was saved last comes again. {why}"
        return [Word(level=logging.WARNING, text=text)]

    def asked(self) -> None:
        """The lease is to be renewed."""
        if self._asked_at is None:
            self._asked_at = self._seen_s

    def answered(self) -> None:
        """It was."""
        self._asked_at = None

    # --- what does not happen -----------------------------------------------------------------------------------------

    def look(self, now: float, waits: Iterable[Wait], *, silent_s: float = 0.0) -> list[Word]:
        """What is waited for now; `silent_s`: no broker has answered for so long, which explains all of it."""
        if self._looked_at is not None:
            self._seen_s += min(now - self._looked_at, _STEP_S)
        self._looked_at = now
        waited = list(waits)
        if silent_s:
            waited = [Wait(kind="broker")]
        since = {wait: max(self._since.get(wait, self._seen_s), self._read_since(wait)) for wait in waited}
        if self._asked_at is not None and not silent_s:
            since[Wait(kind="renewal")] = self._asked_at
        self._since = since
        return self._words()

    def _read_since(self, wait: Wait) -> float:
        """Since when all is read that could end it."""
        return 0.0 if wait.stamps_partition is None else self._behind_at.get(wait.stamps_partition, 0.0)

    @property
    def hold(self) -> Hold | None:
        """What is waited for the longest."""
        if not self._since:
            return None
        wait = min(self._since, key=self._since.__getitem__)
        return Hold(wait=wait, for_s=self._seen_s - self._since[wait])

    @property
    def stalled(self) -> bool:
        """Whether a stall was told, and not its end."""
        return self._told is not None

    def _words(self) -> list[Word]:
        words = []
        if self._told is not None and self._since.get(self._told.wait) != self._told.since:
            words.append(self._stall(self._told, over=True))
            self._told, self._quiet_until = None, self._seen_s + self._stalled_after_s
        hold = self.hold
        if self._told is not None:
            if self._seen_s >= self._told.again_at:
                words.append(self._stall(self._told))
        elif hold is not None and self._is_stall(hold) and self._seen_s >= self._quiet_until:
            self._told = _Told(wait=hold.wait, since=self._since[hold.wait], again_at=self._seen_s)
            words.append(self._stall(self._told))
        elif hold is not None and hold.for_s >= WORD_S and self._seen_s >= self._word_at + _WORDS_APART_S:
            self._word_at = self._seen_s
            words.append(Word(level=logging.INFO, text=f"{self._who} waits for {hold.wait}, for {hold.for_s:.0f} s"))
        return words

    def _is_stall(self, hold: Hold) -> bool:
        """What is read comes, however long it is."""
        return hold.for_s >= self._stalled_after_s and hold.wait.kind != "history"

    def _stall(self, told: _Told, *, over: bool = False) -> Word:
        for_s = self._seen_s - told.since
        stamps_s = None if self._stamped_at is None else self._seen_s - self._stamped_at
        news = Stalled(wait=told.wait, for_s=for_s, stamps_s=stamps_s, over=over)
        if over:
            text = f"{self._who} waits no longer for {told.wait}; that took {for_s:.0f} s"
        else:
            told.again_at = self._seen_s + told.pause_s
            told.pause_s = min(2 * told.pause_s, _MOST_AGAIN_S)
            text = f"{self._who} has waited {for_s:.0f} s for {told.wait}. {self._remedy(told.wait, stamps_s)}"
        return Word(level=logging.WARNING, text=text, news=news)

    def _remedy(self, wait: Wait, stamps_s: float | None) -> str:
        if wait.kind == "broker":
            return "Check that it runs"
        if wait.kind == "log":
            return "Look at the broker, and at what else this machine has to do"
        if wait.kind == "event":
            return "Check that the leader of its partition runs"
        runs = f"Check that `totalorder sequence` runs for domain {self._domain!r}"
        if wait.kind != "stamps":
            return runs
        last = "None came since this process began" if stamps_s is None else f"The last ones came {stamps_s:.0f} s ago"
        return f"{last}. {runs}" + ("" if wait.topic is None else f" and reads topic {wait.topic!r}")

    @property
    def _who(self) -> str:
        return f"{'a reader' if self._id is None else f'subscriber {self._id!r}'} of domain {self._domain!r}"


def named(topics: tuple[str, ...]) -> str:
    """Of many a few."""
    return f"topics {few(topics, _MOST_NAMED) or 'none'}"
