"""Carries what the watch decides: lines to Python's log, and news to whoever polls."""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

from totalorder.errors import Error
from totalorder.sequencer.wire.stamps import StampedBatch
from totalorder.subscriber.delivery.effects import DeliverLost, Finished, Switched
from totalorder.subscriber.delivery.machine import Delivery
from totalorder.subscriber.delivery.waits import Wait
from totalorder.subscriber.event import Event
from totalorder.subscriber.ready import Ready
from totalorder.subscriber.transport import Record
from totalorder.subscriber.watch import Hold, News, Watch, Word

LOG = logging.getLogger("totalorder.subscriber")
_LOOK_S = 1.0


class Seeing:
    """What one process shows of itself. `silent_s` asks the transport."""

    def __init__(self, watch: Watch, clock: Callable[[], float], silent_s: Callable[[], float]) -> None:
        self.news: deque[News] = deque()
        """What callbacks are still to be told: nothing is handed out before."""
        self._watch, self._clock, self._silent_s = watch, clock, silent_s
        self._look_at = 0.0
        self._changes: deque[tuple[int, tuple[str, ...]]] = deque()
        """Of the set of topics, and nothing behind them is handed out yet."""
        self._in_force: tuple[str, ...] = ()

    def _say(self, words: Iterable[Word]) -> None:
        for word in words:
            LOG.log(word.level, "%s", word.text)
            if word.news is not None:
                self.news.append(word.news)

    # --- what happens -------------------------------------------------------------------------------------------------

    def begins(self, topics: tuple[str, ...]) -> None:
        """Delivery goes on with this set of topics."""
        self._in_force = topics

    def granted(self, g: int, topics: tuple[str, ...], generation: int, *, first: bool) -> None:
        """A request of this process took effect, its first or a later one."""
        self._say(self._watch.granted(g, topics, generation, generation - 1 if first else 0))
        self._in_force = self._in_force or topics

    def switched(self, effect: Switched | Finished) -> None:
        """Another set of topics holds behind what is ready."""
        topics = effect.topics if isinstance(effect, Switched) else ()
        if topics != self._in_force:
            self._in_force = topics
            self._changes.append((effect.g, topics))

    def stamped(self, batch: StampedBatch, now_s: float) -> None:
        """A batch's stamps came, now by the clock on the wall."""
        self._say(self._watch.stamped(batch.incarnation, batch.partition, now_s - batch.time_ms / 1000))

    def lost(self, effect: DeliverLost) -> None:
        """Something that is lost takes its place in the order."""
        place = f"{effect.source.topic}[{effect.source.partition}]@{effect.begin}"
        more = f" to {effect.end - 1}" if effect.end > effect.begin + 1 else ""
        self._say(self._watch.lost(f"{place}{more}, at g {effect.g}", self._clock()))

    def unsaved(self, error: Error) -> None:
        """It is closed while nothing can be written."""
        self._say(self._watch.unsaved(str(error)))

    def vanished(self, topic: str, topic_id: str) -> None:
        """Kafka has a topic no longer."""
        self._say(self._watch.vanished(topic, topic_id))

    def asked(self) -> None:
        """A renewal of the lease was sent."""
        self._watch.asked()

    def answered(self) -> None:
        """It was answered."""
        self._watch.answered()

    def holds_back(self, next_g: int | None) -> bool:
        """Whether a change has to be told before the event at `next_g` is handed out, or (None) while none is ready."""
        due = 0
        while self._changes and (next_g is None or self._changes[0][0] < next_g):
            self._say(self._watch.changed(*self._changes.popleft()))
            due += 1
        return bool(due)

    @property
    def through(self) -> int | None:
        """Events behind this g must not be handed out together with those before."""
        return self._changes[0][0] if self._changes else None

    def drop(self) -> None:
        """What was owed is given up, and changes with it."""
        self._changes.clear()

    # --- what does not ------------------------------------------------------------------------------------------------

    def look(self, waits: Callable[[], Iterable[Wait]]) -> None:
        """Looks, about once in a second, at what is waited for."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._say(self._watch.look(now, waits(), silent_s=self._silent_s()))

    @property
    def hold(self) -> Hold | None:
        """What has been waited for the longest."""
        return self._watch.hold

    @property
    def stalled(self) -> bool:
        """Whether a wait was told as a stall, and not its end."""
        return self._watch.stalled


def lag_s(ready: Ready, machine: Delivery, hold: Hold | None, now_s: float) -> float:
    """How old the oldest event is that is here and was not handed out, by the time of its record; or how long one is
    waited for, when that is longer.
    """
    times = [cast("Record", head).timestamp_ms for head in machine.heads]
    if ready and isinstance(ready.front, Event):
        times.append(ready.front.timestamp_ms)
    age_s = now_s - min(times) / 1000 if times else 0.0
    return max(0.0, age_s, hold.for_s if hold is not None else 0.0)
