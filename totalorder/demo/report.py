"""The figures of a run, and whether the promise was kept."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from totalorder.demo.audit import Stamps
from totalorder.demo.compare import Account, Agreement, account, all_agreements, total
from totalorder.demo.proof import Proof

Ints = npt.NDArray[np.int64]
Rows = npt.NDArray[np.void]
Grants = Sequence[tuple[int, frozenset[str]]]
"""What one subscriber was granted: (position in the order, topics), by position."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """One way of subscribing: ours, or a plain consumer for each board."""

    deliveries: int
    missing: int
    repeated: int
    again: int
    foreign: int
    agreement: Agreement
    disagreeing_pairs: int
    """Pairs of subscribers with at least one disagreement."""
    delay_p50_ms: float
    delay_p99_ms: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Everything that the demo reports."""

    events: int
    airports: int
    boards: int
    stamps: int
    unstamped: int
    batches: int
    stamps_bytes: int
    stamps_bytes_per_event: float
    entries_per_event: float
    ours: Side
    plain: Side
    boards_detail: Mapping[str, Mapping[str, int]]
    disagreements_by_pair: Mapping[str, tuple[int, int]]
    """Pair of subscribers → disagreements of (ours, plain)."""
    proof: Proof
    seconds: Mapping[str, float]

    @property
    def ok(self) -> bool:
        """Whether every promise was kept, by what the subscribers wrote down and by the lineage tables."""
        ours = self.ours
        broken = ours.missing or ours.repeated or ours.foreign or ours.agreement.disagreements or self.unstamped
        return not (broken or self.unproven or self.proof.violated)

    @property
    def unproven(self) -> int:
        """Published events that the tables lack."""
        return self.events - self.proof.events

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return {"ok": self.ok, **asdict(self)}


def expected_events(grants: Grants, published: Rows, g: Ints, airports: Sequence[str]) -> Ints:
    """The events that a subscriber has to deliver: `g[i]` is the place of `published[i]` in the order.

    From the position of a grant on it is the grant's topics that count, up to the position of the next one.
    """
    wanted = np.array([[airport in topics for airport in airports] for _, topics in grants], dtype=np.bool_)
    in_force = np.searchsorted([position for position, _ in grants], g) - 1
    if not len(grants):
        return np.zeros(0, dtype=np.int64)
    return np.sort(published["event"][(in_force >= 0) & wanted[in_force, published["topic"]]])


def side(
    rows: Mapping[str, Rows], expected: Mapping[str, Ints], published: Rows
) -> tuple[Side, dict[str, Account], dict[tuple[str, str], Agreement]]:
    """Figures of one side, from what its subscribers wrote down."""
    accounts = {id_: account(expected[id_], each["event"], each["again"] != 0) for id_, each in rows.items()}
    agreements = all_agreements({id_: each["event"] for id_, each in rows.items()})
    p50, p99 = _delays(np.concatenate(list(rows.values())), published)
    found = Side(
        deliveries=sum(each.delivered for each in accounts.values()),
        missing=sum(each.missing for each in accounts.values()),
        repeated=sum(each.repeated for each in accounts.values()),
        again=sum(each.again for each in accounts.values()),
        foreign=sum(each.foreign for each in accounts.values()),
        agreement=total(list(agreements.values())),
        disagreeing_pairs=sum(each.disagreements > 0 for each in agreements.values()),
        delay_p50_ms=p50,
        delay_p99_ms=p99,
    )
    return found, accounts, agreements


def figures(
    *,
    ours: Mapping[str, Rows],
    plain: Mapping[str, Rows],
    expected: Mapping[str, Ints],
    published: Rows,
    stamps: Stamps,
    proof: Proof,
) -> Figures:
    """Compares everything; what it took is filled in by `timed`."""
    our_side, accounts, our_pairs = side(ours, expected, published)
    plain_side, _, plain_pairs = side(plain, expected, published)
    count = len(published)
    return Figures(
        events=count,
        airports=len(np.unique(published["topic"])),
        boards=len(ours),
        stamps=len(stamps.event),
        unstamped=int((stamps.g_of(published["event"]) == 0).sum()),
        batches=stamps.batches,
        stamps_bytes=stamps.bytes,
        stamps_bytes_per_event=round(stamps.bytes / max(count, 1), 2),
        entries_per_event=round(stamps.entries / max(count, 1), 2),
        ours=our_side,
        plain=plain_side,
        boards_detail={id_: asdict(each) for id_, each in accounts.items()},
        disagreements_by_pair={
            f"{a}+{b}": (our_pairs[a, b].disagreements, plain_pairs[a, b].disagreements) for a, b in our_pairs
        },
        proof=proof,
        seconds={},
    )


def timed(found: Figures, seconds: Mapping[str, float]) -> Figures:
    """The same with the duration of each phase."""
    return replace(found, seconds={name: round(taken, 1) for name, taken in seconds.items()})


def _delays(rows: Rows, published: Rows) -> tuple[float, float]:
    """Median and 99th percentile of the time from publishing to delivery, in ms."""
    order = np.argsort(published["event"])
    events, sent_ms = published["event"][order], published["at_ms"][order]
    if not len(events) or not len(rows):
        return 0.0, 0.0
    at = np.minimum(np.searchsorted(events, rows["event"]), len(events) - 1)
    known = events[at] == rows["event"]
    delays = (rows["at_ms"] - sent_ms[at])[known]
    if not len(delays):
        return 0.0, 0.0
    p50, p99 = np.percentile(delays, [50, 99])
    return float(p50), float(p99)
