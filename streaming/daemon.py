"""Spark's Python daemon with the engine's imports done beforehand: workers are forked from it, so the first batch and
every replaced worker begin at once."""

import gc

from pyspark.daemon import manager

import totalorder.streaming.processor  # noqa: F401
from totalorder.sequencer import kernel
from totalorder.streaming import stateful_frames

if __name__ == "__main__":
    kernel.warm()
    stateful_frames.install()
    # A worker collects garbage after every task: not of all that has been imported, which takes some 50 ms.
    gc.collect()
    gc.freeze()
    manager()
