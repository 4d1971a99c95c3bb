"""The way into the command `totalorder`: from here on Ctrl-C ends it without a word, amid imports too."""

import os
import signal

INTERRUPTED = 128 + 2
"""What a shell reports for a process that SIGINT ended."""


def end_at_once(*_: object) -> None:
    """While nothing was begun that an end would tear. An exception amid an import may come out as any other one."""
    os._exit(INTERRUPTED)


def main() -> None:
    """See totalorder.cli.app, which is imported here only: that takes a while."""
    signal.signal(signal.SIGINT, end_at_once)
    from totalorder.cli.app import main as run

    run()
