"""What the project itself has logged: clients of other tests go on saying things of their own."""

import logging

import pytest


def by_us(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> list[str]:
    """The messages of this project's loggers, from `level` on, in their order."""
    ours = (record for record in caplog.records if record.name.partition(".")[0] == "totalorder")
    return [record.getMessage() for record in ours if record.levelno >= level]
