"""Processor time of this thread: what other processes take of the cores does not count."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What is made, and the seconds that it took."""
    began = time.thread_time()
    made = work()
    return made, time.thread_time() - began


def best_of(tries: int, work: Callable[[], T]) -> tuple[T, float]:
    """What the last try made, and the least time: a collection of garbage falls into some tries and not others."""
    made, least = timed(work)
    for _ in range(tries - 1):
        made, seconds = timed(work)
        least = min(least, seconds)
    return made, least
