"""Pure: the figures of one scene, from what the subscribers wrote down."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from totalorder.bench.peers.load import PAYLOAD_BYTES
from totalorder.demo.compare import account, all_agreements

Ints = npt.NDArray[np.int64]
EVENT, SENT_US, AT_US = range(3)
"""Columns of what a subscriber writes down, a row for each delivery, in their order."""


@dataclass(frozen=True, kw_only=True)
class Heard:
    """One subscriber's scene: what it delivered, what it had to, and the bytes that came in through its sockets."""

    rows: Ints
    expected: Ints
    received_bytes: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    """One peer's scene. `violations` are pairs of subscribers that disagree on the order of events they both got."""

    deliveries_per_s: float
    p50_ms: float
    p99_ms: float
    bytes_ratio: float
    violations: int
    subscriber_pairs: int
    events_in_different_order: int
    """Pairs of events, summed over the pairs of subscribers."""
    lost: int
    repeated: int
    foreign: int

    def as_json(self, *, with_delay: bool) -> dict[str, Any]:
        """Without the delays where events were published long before."""
        return {name: value for name, value in vars(self).items() if with_delay or name not in ("p50_ms", "p99_ms")}


def judge(heard: Mapping[str, Heard], *, start_us: int, measured_from_us: int) -> Figures:
    """Figures of a scene that began at `start_us`; speed and delay are of events sent from `measured_from_us` on."""
    rows = np.concatenate([each.rows for each in heard.values()])
    measured = rows[rows[:, SENT_US] >= measured_from_us]
    accounts = [account(each.expected, each.rows[:, EVENT]) for each in heard.values()]
    pairs = all_agreements({name: each.rows[:, EVENT] for name, each in heard.items()}).values()
    p50_ms, p99_ms = delays_ms(measured)
    return Figures(
        deliveries_per_s=speed(measured, since_us=max(start_us, measured_from_us)),
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        bytes_ratio=bytes_ratio(heard),
        violations=sum(pair.disagreements > 0 for pair in pairs),
        subscriber_pairs=len(pairs),
        events_in_different_order=sum(pair.disagreements for pair in pairs),
        lost=sum(each.missing for each in accounts),
        repeated=sum(each.repeated for each in accounts),
        foreign=sum(each.foreign for each in accounts),
    )


def delays_ms(rows: Ints) -> tuple[float, float]:
    """Median and 99th percentile of publish to deliver; 0 without deliveries."""
    if not len(rows):
        return 0.0, 0.0
    p50, p99 = np.percentile(rows[:, AT_US] - rows[:, SENT_US], [50, 99]) / 1000
    return float(p50), float(p99)


def speed(rows: Ints, *, since_us: int) -> float:
    """Deliveries a second up to the last one."""
    return len(rows) / max(int(rows[:, AT_US].max()) - since_us, 1) * 1e6 if len(rows) else 0.0


def bytes_ratio(heard: Mapping[str, Heard]) -> float:
    """Bytes received for each byte of an event delivered, by the subscribers of few topics."""
    subsets = [each for name, each in heard.items() if name.startswith("subset")]
    useful = sum(len(each.rows) for each in subsets) * PAYLOAD_BYTES
    return sum(each.received_bytes for each in subsets) / useful if useful else 0.0
