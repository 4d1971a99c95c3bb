"""What was answered before a process had its machine."""

from collections.abc import Iterator

from totalorder.sequencer.wire.control import Answer, Ended, Grant, Retired, Skipped


class History:
    """Answers in the log's order: those of the id, those on what nobody is owed any more, and the last of all."""

    def __init__(self, *, id: str, nonce: str) -> None:  # noqa: A002
        self.answers: list[Answer] = []
        self._id, self._nonce = id, nonce

    def note(self, answer: Answer) -> None:
        """The next one."""
        if self.answers and not self._is_lasting(self.answers[-1]):
            self.answers.pop()
        self.answers.append(answer)

    def _is_lasting(self, answer: Answer) -> bool:
        """Whether a machine that is made later must know of it, though others come after it."""
        return answer.id == self._id or isinstance(answer, Retired | Skipped)

    def _own(self) -> Iterator[Answer]:
        """Those of the id, but for what is repeated by a job that was replaced."""
        through = 0
        for answer in self.answers:
            if answer.id == self._id and answer.g > through:
                through = answer.g
                yield answer

    def held(self) -> tuple[str, ...]:
        """The set of the id's last grant; none behind its end by a request."""
        topics: tuple[str, ...] = ()
        for answer in self._own():
            if isinstance(answer, Grant):
                topics = answer.topics
            elif isinstance(answer, Ended) and answer.reason == "unsubscribed":
                topics = ()
        return topics

    def never_saved(self) -> Grant | None:
        """The first grant of the id since it was unsubscribed last; None to begin at this process's own.

        Former processes were granted this and what followed, and were gone before they could save anything, so they
        handed nothing out: all is owed.
        """
        first: Grant | None = None
        for answer in self._own():
            if isinstance(answer, Ended) and answer.reason == "unsubscribed":
                first = None
            elif isinstance(answer, Grant):
                first = first or answer
        return first if first is not None and first.nonce != self._nonce else None

    def without_former(self, grant: Grant) -> list[Answer]:
        """All but what changed the id's subscription before this grant."""
        return [
            answer
            for answer in self.answers
            if not (isinstance(answer, Grant | Ended) and answer.id == self._id and answer.g < grant.g)
        ]
