"""Spark's Python daemon with the engine's imports done beforehand: workers are forked from it, so the first batch and
every replaced worker begin at once."""

import gc
import socket

from pyspark import daemon

import totalorder.streaming.cut.verifying
import totalorder.streaming.processor  # noqa: F401
from totalorder.sequencer import kernel
from totalorder.streaming import state_calls, stateful_frames
from totalorder.streaming.cut import consumers
from totalorder.streaming.relay import log_through_java

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Spark's worker for one task; its exit code. One that Java dismisses ends without a traceback.

    Over TCP its last words vanish unseen when Java has closed the connection; a Unix domain socket refuses them.
    """
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return 1


if __name__ == "__main__":
    log_through_java()  # Java reads from standard output where the daemon listens
    kernel.warm()
    consumers.is_fast()
    stateful_frames.install()
    state_calls.install()
    daemon.worker = worker
    # A worker collects garbage after every task: not of all that has been imported, which takes some 50 ms.
    gc.collect()
    gc.freeze()
    daemon.manager()
