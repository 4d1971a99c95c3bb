"""What more cores would carry, from what few were measured to need."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

_NEARLY = 0.99


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Core seconds an event, by a quantity: `each` whatever that is, and `share` for each unit of it."""

    each: float
    share: float


def fitted(measured: Mapping[float, float]) -> Costs:
    """Least squares of seconds over the quantity, neither cost below zero (noise would make it so)."""
    quantity, seconds = np.array(list(measured)), np.array(list(measured.values()))
    share, each = np.polyfit(quantity, seconds, 1)
    if share < 0:
        return Costs(each=float(seconds.mean()), share=0.0)
    if each < 0:
        return Costs(each=0.0, share=float((seconds * quantity).sum() / (quantity**2).sum()))
    return Costs(each=float(each), share=float(share))


def carried(cores: int, reading: Costs, stamping: Costs) -> tuple[int, float]:
    """The fewest shards with which `cores` carry nearly the most, and how many events a second that is.

    Every shard has a core, and needs `stamping` of every event, `share` of it only for its own 1/K of them. The other
    cores read, and send every event to each of K shards.
    """

    def limit(shards: int) -> float:
        stamped = 1 / (stamping.each + stamping.share / shards)
        return min(stamped, (cores - shards) / (reading.each + reading.share * shards))

    most = max(map(limit, range(1, cores)))
    best = next(shards for shards in range(1, cores) if limit(shards) >= _NEARLY * most)
    return best, limit(best)
