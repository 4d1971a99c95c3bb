"""Which set of topics a process asks for: what is named, or what a pattern stands for, now and later."""

from collections.abc import Callable

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.control import Answer, Grant
from totalorder.sequencer.wire.cuts import KEY_EVERY
from totalorder.subscriber.following import Following
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.transport import Record, Transport

_EACH_S = 1.0
"""Topics that come to a pattern are asked for together, so often at most: each change costs the sequencer some work."""


class Choosing:
    """`wait` lets records of cuts come to `take`; it is told why, and raises when it has waited long enough. `stir` has
    the sequencer make a batch.
    """

    def __init__(
        self,
        transport: Transport,
        domain: str,
        *,
        clock: Callable[[], float],
        wait: Callable[[str], None],
        stir: Callable[[], None],
    ) -> None:
        self._transport, self._clock, self._wait, self._stir = transport, clock, wait, stir
        self._following = Following(domain)
        self._choice: Choice | None = None
        """By a pattern, where one chooses the topics."""
        self._due_at = 0.0

    @property
    def pattern(self) -> str | None:
        """What chooses the topics, where they are not named."""
        return None if self._choice is None else self._choice.pattern

    def may_read(self, topic: str) -> bool:
        """Whether the pattern chooses a topic, when it comes."""
        return self._choice is not None and self._choice.selects(topic)

    def chosen(self, choice: Choice, held: tuple[str, ...]) -> tuple[str, ...]:
        """The set to ask for, of one that holds these; for a pattern cuts are read to their end.

        A pattern that Following refuses leaves what is chosen as it was.
        """
        if choice.pattern is None:
            self._let_go()
            return tuple(sorted(choice.topics))
        self._following.check_by_topic()
        kept = [name for name in held if choice.selects(name)]
        if self._choice is None or not self._following.knows:
            self._read_cuts(self._following, is_held=bool(kept))
        try:
            wanted = self._following.wanted(choice, kept)
        except SettingsError:
            if self._choice is None:
                self._let_go()
            raise
        self._choice, self._following.moved = choice, True
        return wanted

    def _let_go(self) -> None:
        """Cuts are read no longer."""
        self._transport.stop(self._following.cuts)
        self._choice = None

    def _read_cuts(self, following: Following, *, is_held: bool) -> None:
        """From the newest one on that names all topics, through the present end, and on. Where none does yet, or by
        now, the domain's next batch brings one, which is asked for; but who holds topics that fit goes on with them,
        and learns of others then.
        """
        at, count, following.knows = following.cuts, KEY_EVERY, False
        begin, end = (of([at])[at] for of in (self._transport.beginning_offsets, self._transport.end_offsets))
        self._transport.read(at, max(begin, end - count))
        has_stirred = False
        while not following.knows or self._transport.position(at) < end:
            if not following.knows and self._transport.position(at) >= end:
                if end > begin + count:
                    count *= 4
                    self._transport.read(at, max(begin, end - count))
                elif is_held:
                    break
                elif not has_stirred:
                    has_stirred = True
                    self._stir()
            self._wait(f"{at.topic} has no record that names all topics: it comes with the domain's next batch")

    def due(self, held: tuple[str, ...]) -> tuple[str, ...] | None:
        """The set to ask for now, where a pattern stands for another one than that."""
        following = self._following
        if self._choice is None or not following.moved or (now := self._clock()) < self._due_at:
            return None
        self._due_at = now + _EACH_S
        wanted = following.wanted(self._choice, held)
        following.moved = wanted != held
        return wanted if following.moved else None

    def take(self, records: list[Record]) -> None:
        """The next records of cuts."""
        self._following.take(records)

    def note(self, answer: Answer) -> None:
        """The next answer on grants."""
        self._following.note(answer)
        if self._choice is not None:
            self._following.check_by_topic()

    def say_joined(self, grant: Grant) -> None:
        """See Following."""
        if self._choice is not None:
            self._following.say_joined(grant)
