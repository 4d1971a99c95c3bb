"""Which pub/sub topics a Reader reads."""

import re
from collections.abc import Mapping

from totalorder.sequencer.wire.position import partitions_of


class Choice:
    """Topics by their names, or by a regular expression that fits the whole name."""

    def __init__(self, topics: tuple[str, ...] = (), pattern: str | None = None) -> None:
        self.topics, self.pattern = frozenset(topics), pattern
        self._pattern = re.compile(pattern) if pattern is not None else None
        self._known: dict[str, bool] = {}

    def selects(self, topic: str) -> bool:
        """Whether a topic of this name is one of them."""
        return topic in self.topics or (self._pattern is not None and self._pattern.fullmatch(topic) is not None)

    def ids(self, names: Mapping[int, str]) -> set[int]:
        """The ids of those that are chosen."""
        for name in names.values():
            if name not in self._known:
                self._known[name] = self.selects(name)
        return {topic for topic, name in names.items() if self._known[name]}

    def partitions(self, count: int) -> list[int]:
        """The stamps partitions, of so many, that may hold their timestamps."""
        return sorted(partitions_of(self.topics, count)) if self._pattern is None else list(range(count))
