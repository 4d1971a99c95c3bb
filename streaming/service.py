"""The job as a process of its own: logging, signals, exit."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import structlog

from totalorder.config import Settings
from totalorder.errors import Error
from totalorder.streaming.runner import Sequencer

_WAIT_S = 0.5


def run_until_signal(settings: Settings) -> None:
    """Runs the job until SIGTERM or SIGINT, which end it in good order, or until it fails (raises totalorder.Error)."""
    configure_logging(settings.log_format)
    sequencer = Sequencer(settings, on_abandoned=end_process)
    listen(sequencer.request_stop)
    sequencer.start()
    while not sequencer.wait(_WAIT_S):
        pass


def end_process(error: Error) -> NoReturn:
    """From whatever thread: the main one may be in a call that does not return, and then never hears of it."""
    sys.stderr.write(f"totalorder: {error}\n")
    sys.stderr.flush()
    os._exit(1)


def listen(request_stop: Callable[[], None]) -> None:
    """From here on SIGTERM and SIGINT ask for a stop, with a log line."""

    def stop(number: int, _frame: FrameType | None) -> None:
        structlog.get_logger().info("stopping", signal=signal.Signals(number).name)
        request_stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)


def configure_logging(log_format: str) -> None:
    """Log lines to stderr: for people, or as JSON for programs."""
    logging.getLogger().addHandler(logging.NullHandler())  # py4j would print traces for what is reported in one line
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if log_format == "json":
        shared.append(structlog.processors.JSONRenderer())
    else:
        shared.append(structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False))
    structlog.configure(
        processors=shared,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        # Looked up for each logger: whoever calls commands as functions may put another stderr in place.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )
