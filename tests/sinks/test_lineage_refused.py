"""What the lineage job refuses before it starts Spark: one error, and no word of a job that ran."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from totalorder.errors import BrokerUnavailable, PreflightFailed, SettingsError
from totalorder.sinks.runner import Lineage, run_compaction
from totalorder.sinks.settings import LineageSettings
from totalorder.streaming.preflight import TopicFacts

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("below", [".", "below/tables"])
def test_a_root_that_is_or_lies_below_a_file(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    job = Lineage(LineageSettings(tables=str(file / below)))
    with capture_logs() as said, pytest.raises(SettingsError, match=r"tables cannot lie in .*file.*\(--tables\)"):
        job.start()
    assert not said
    assert file.read_text() == "mine"


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    job = Lineage(LineageSettings(tables=str(tmp_path), bootstrap_servers=NOWHERE, broker_timeout_s=0.2))
    with capture_logs() as said, pytest.raises(BrokerUnavailable):
        job.start()
    assert not said


class Unreachable:
    """Topics of a domain that has none, and whose connection cannot even be closed any more."""

    def __init__(self, *_: object) -> None: ...

    def facts(self, _names: object) -> dict[str, TopicFacts]:
        return {}

    def close(self) -> None:
        raise ConnectionRefusedError(111, "Connection refused")


def test_what_fails_at_the_end_does_not_hide_the_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("totalorder.sinks.runner.Topics", Unreachable)
    job = Lineage(LineageSettings(tables=str(tmp_path), domain="nowhere"))
    with capture_logs() as said, pytest.raises(PreflightFailed, match=r"has no topic nowhere\.cuts, nowhere\.grants"):
        job.start()
    assert [(line["event"], line["error"]) for line in said] == [("while stopping", "[Errno 111] Connection refused")]
    Lineage(LineageSettings(tables=str(tmp_path), domain="nowhere")).stop()


@pytest.mark.parametrize("name", ["file", "nothing"])
def test_a_compaction_of_no_directory(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setattr("totalorder.sinks.runner.configure_logging", lambda _: None)
    with capture_logs() as said, pytest.raises(SettingsError, match="there is no lineage table at"):
        run_compaction(LineageSettings(tables=str(tmp_path / name)))
    assert not said
