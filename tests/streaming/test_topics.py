"""Connecting to the broker."""

import pytest
from structlog.testing import capture_logs

from totalorder import slow
from totalorder.config import make_settings
from totalorder.errors import BrokerUnavailable
from totalorder.streaming import topics
from totalorder.streaming.runner import _few


@pytest.mark.parametrize(("silence_s", "said"), [(0.1, 1), (30.0, 0)])
def test_an_absent_broker_is_named_while_it_is_waited_for(
    silence_s: float, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slow, "LONG_S", silence_s)
    settings = make_settings(topics=("a",), checkpoint_dir="x", bootstrap_servers="127.0.0.1:1", broker_timeout_s=1.0)
    with capture_logs() as logged, pytest.raises(BrokerUnavailable):
        topics.Topics(settings)
    line = {
        "event": "no broker yet",
        "bootstrap_servers": "127.0.0.1:1",
        "waiting_up_to_s": 1.0,
        "log_level": "warning",
    }
    assert logged == [line] * said


def test_a_log_line_names_the_first_of_many_topics() -> None:
    assert _few({"b", "a"}) == ["a", "b"]
    names = [f"t{number:05}" for number in range(10_000)]
    assert _few(names[:20]) == names[:20]
    assert _few(names) == [*names[:20], "and 9,980 more"]
