"""Which way of reading is taken."""

from collections.abc import Iterator

import confluent_kafka
import pytest
from structlog.testing import capture_logs

from totalorder.errors import EnvironmentProblem
from totalorder.streaming.cut import consumers, librdkafka
from totalorder.streaming.cut.fast import FastReader
from totalorder.streaming.cut.plain import PlainReader

SETTINGS = consumers.client_settings("127.0.0.1:1", {})


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    consumers.is_fast.cache_clear()
    yield
    consumers.is_fast.cache_clear()


def test_the_installed_library_can_be_called() -> None:
    with capture_logs() as logs:
        made = consumers.make(SETTINGS)
    assert isinstance(made, FastReader)
    assert logs == []
    made.close()


def test_another_library_is_read_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is not the library that confluent-kafka has loaded; a log line says so once."""
    librdkafka.library.cache_clear()
    monkeypatch.setattr(confluent_kafka, "libversion", lambda: ("2.0.0", 0x020000FF))
    try:
        with capture_logs() as logs:
            made = [consumers.make(SETTINGS) for _ in range(2)]
        assert [type(each) for each in made] == [PlainReader, PlainReader]
        assert [(line["log_level"], line["event"]) for line in logs] == [("warning", "events are read the slow way")]
        for each in made:
            each.close()
    finally:
        librdkafka.library.cache_clear()


def test_a_library_of_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    present = librdkafka.library().version()
    for name, value in (("LEAST_VERSION", present + 1), ("ABOVE_VERSION", present)):
        librdkafka.library.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(librdkafka, name, value)
            with pytest.raises(EnvironmentProblem, match="which is not known here"):
                librdkafka.library()
    librdkafka.library.cache_clear()
