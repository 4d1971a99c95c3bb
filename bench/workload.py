"""The paper's workload (§5.2, §5.3): power-law popularity of topics, for subscriptions and for events.

With a shape s, the topic of rank r is chosen with probability proportional to r^-(1+s): at 10,000 subscribers of 10 out
of 1,000 topics and m = 2 this gives the paper's mean timestamps of 46 (0.349) and 17 (0.901) entries.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
SHAPES = (0.349, 0.901)
_ROWS = 1_000
"""Subscriptions that are drawn at once, so that millions fit in memory."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Subscriptions and events over `topics` topics, from one seed."""

    topics: int
    shape: float
    seed: int = 1

    @property
    def popularity(self) -> npt.NDArray[np.float64]:
        """Probability of each topic, the most popular one first."""
        weights = np.arange(1, self.topics + 1, dtype=np.float64) ** -(1 + self.shape)
        return np.asarray(weights / weights.sum())

    def subscriptions(self, subscribers: int, size: int) -> Ints:
        """A row of `size` different topics for each subscriber."""
        random = np.random.default_rng([self.seed, 1])
        scores = np.log(self.popularity)
        found = np.empty((subscribers, size), dtype=np.int64)
        for first in range(0, subscribers, _ROWS):
            rows = found[first : first + _ROWS]
            # The largest of Gumbel-perturbed weights are a sample without replacement (Efraimidis & Spirakis).
            noisy = scores + random.gumbel(size=(len(rows), self.topics))
            rows[:] = np.argpartition(noisy, self.topics - size, axis=1)[:, self.topics - size :]
        return found

    def events(self, count: int) -> Ints:
        """The topics of so many events."""
        random = np.random.default_rng([self.seed, 2])
        return random.choice(self.topics, size=count, p=self.popularity)
