"""What the log says of finished batches: a summary every few seconds, or a line for each."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from totalorder.streaming.progress import BatchProgress

PERIOD_S = 5.0
"""How far apart summaries are at least; one after a longer silence comes at once."""


class BatchLog:
    """Gathers batches, and says what has come. `now_s` is the time in seconds, `stood_s` how long the job stood still
    since that was asked last.
    """

    def __init__(
        self,
        log: Any,
        *,
        verbose: bool,
        now_s: Callable[[], float] = time.monotonic,
        stood_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._log = log
        self._stood_s = stood_s
        self._verbose = verbose
        self._now_s = now_s
        self._said_s: float | None = None
        self._gathered: list[BatchProgress] = []
        self._told_of_unsigned = False

    def add(self, batch: BatchProgress) -> None:
        """Takes note of a finished batch."""
        self._gathered.append(batch)

    def say_if_due(self) -> None:
        """Says what has been gathered when enough time has gone by."""
        if self._verbose or self._said_s is None or self._now_s() - self._said_s >= PERIOD_S:
            self.say()

    def say(self) -> None:
        """Says what has been gathered."""
        batches, self._gathered = self._gathered, []
        if not batches:
            return
        self._said_s = self._now_s()
        self._warn_of_unroutable(batches)
        self._warn_of_late(batches)
        self._warn_of_unsigned(batches)
        if self._verbose:
            for batch in batches:
                self._log.info("batch", **_one(batch))
        else:
            stood_s = self._stood_s()
            self._log.info("batches", **_several(batches), **({"stood_s": round(stood_s, 1)} if stood_s else {}))

    def _warn_of_unroutable(self, batches: list[BatchProgress]) -> None:
        count = sum(batch.figures["unroutable"] for batch in batches)
        if count:
            named = next(batch.figures["unroutable_at"] for batch in batches if batch.figures["unroutable"])
            self._log.warning("events without a topic left out", count=count, at=named)

    def _warn_of_late(self, batches: list[BatchProgress]) -> None:
        """Somebody still writes to a topic that was retired; it is read a moment longer."""
        if count := sum(batch.figures["late"] for batch in batches):
            self._log.warning("events of retired topics left out", count=count)

    def _warn_of_unsigned(self, batches: list[BatchProgress]) -> None:
        """Once: whoever writes such records may write any number of them. The figures count on."""
        if not self._told_of_unsigned and sum(batch.figures["unsigned"] for batch in batches):
            self._told_of_unsigned = True
            self._log.warning(
                "control records refused that no key of control_key_file has signed",
                remedy="Give subscribers their control_key, or find out who writes to control",
            )


def _of_looks(batches: list[BatchProgress]) -> dict[str, int]:
    """`look_ms` is the longest look of a minute. `silent`, where there are any, counts partitions that looks went on
    without: for those the promise of looks does not hold.
    """
    most = {name: max(float(batch.looks.get(name, 0)) for batch in batches) for name in ("longest_ms", "silent")}
    silent = {"silent": round(most["silent"])} if most["silent"] else {}
    return {"look_ms": round(most["longest_ms"]), **silent}


def _one(batch: BatchProgress) -> dict[str, Any]:
    figures, durations_ms = batch.figures, batch.durations_ms
    return {
        **{name: figures[name] for name in ("batch", "events", "controls", "unroutable", "unsigned")},
        "g": _range(figures["g_first"], figures["g_last"]),
        "trigger_ms": durations_ms.get("triggerExecution"),
        "plan_ms": durations_ms.get("queryPlanning"),
        "add_batch_ms": durations_ms.get("addBatch"),
        "log_ms": durations_ms.get("walCommit", 0) + durations_ms.get("commitOffsets", 0),
        "events_per_s": round(1000 * figures["events"] / max(1, durations_ms.get("triggerExecution", 0))),
        **_of_looks([batch]),
        "looks_share": round(float(batch.looks.get("share", 0)), 3),
    }


def _several(batches: list[BatchProgress]) -> dict[str, Any]:
    """`trigger_ms` is the median, `longest_ms` the longest."""
    triggers_ms = [batch.durations_ms.get("triggerExecution", 0) for batch in batches]
    return {
        "newest": batches[-1].figures["batch"],
        "count": len(batches),
        **{name: sum(batch.figures[name] for batch in batches) for name in ("events", "controls")},
        "g": _range(batches[0].figures["g_first"], batches[-1].figures["g_last"]),
        "trigger_ms": round(median(triggers_ms)),
        "longest_ms": max(triggers_ms),
        **_of_looks(batches),
    }


def _range(first: int, last: int) -> str:
    return f"{first}..{last}" if last >= first else "-"
