"""What `totalorder subscribe` shows of the library's log."""

import json
import logging

import pytest

from totalorder.cli.subscribe import saying

LOG = logging.getLogger("totalorder.subscriber")


@pytest.mark.parametrize("as_json", [False, True])
def test_waits_are_said_on_stderr_while_events_are_printed_and_what_ends_it_is_not_said_twice(
    as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    level = LOG.level
    with saying(as_json=as_json) as log:
        LOG.info("granted, which the command says itself")
        LOG.warning("before %d", 1)
        log.setLevel(logging.INFO)
        LOG.info("waits")
        LOG.error("has stopped")
    LOG.warning("not of this command")
    out, err = capsys.readouterr()
    assert out == ""
    said = [{"level": "warning", "said": "before 1"}, {"level": "info", "said": "waits"}]
    assert err.splitlines() == [json.dumps(each) if as_json else each["said"] for each in said]
    assert LOG.level == level
