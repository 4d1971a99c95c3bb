"""Settings of the lineage job: three sources, and a word on every mistake."""

from pathlib import Path

import pytest

from totalorder.errors import SettingsError
from totalorder.jars import locked_jars
from totalorder.sinks.settings import load_lineage_settings

CONF = Path(__file__).resolve().parents[2] / "conf" / "lineage.toml"


def test_the_example_is_valid() -> None:
    settings = load_lineage_settings(CONF, {})
    assert (settings.is_local, settings.root) == (True, str(Path(".cache/lineage/totalorder").absolute()))


def test_flags_beat_the_environment_and_that_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "lineage.toml"
    file.write_text('tables = "s3a://bucket/file"\ndomain = "file"\ninterval_s = 1\n[kafka]\n"a.b" = "file"\n')
    monkeypatch.setenv("TOTALORDER_DOMAIN", "environment")
    monkeypatch.setenv("TOTALORDER_KAFKA", '{"ssl.key.password": "secret"}')
    settings = load_lineage_settings(file, {"interval_s": 3})
    assert (settings.tables, settings.domain, settings.interval_s) == ("s3a://bucket/file", "environment", 3)
    assert settings.root == "s3a://bucket/file"
    assert dict(settings.kafka) == {"a.b": "file", "ssl.key.password": "secret"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", r"^the setting tables is missing\. `totalorder lineage --help`"),
        ('tabels = "x"', "unknown setting 'tabels' in .*The nearest one that exists is 'tables'"),
        ('tables = "x"\ninterval_s = "soon"', "interval_s in .*: must be a number"),
        ('tables = "x"\ndomain = "no good"', "domain 'no good' is not a usable name"),
        ('tables = "x"\n[kafka]\n"group.id" = "mine"', "group.id cannot be set"),
        ('tables = "x"\n[kafka]\n"security.protocol" = "SSLL"', "kafka.security.protocol='SSLL' is not known here"),
        ("tables = x", "is not TOML"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "lineage.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=said):
        load_lineage_settings(file, {})


def test_a_misspelt_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOTALORDER_TOPICS", "a")  # the sequencer's
    monkeypatch.setenv("TOTALORDER_TABLES", "x")
    monkeypatch.setenv("TOTALORDER_INTERVALS", "3")
    with pytest.raises(SettingsError, match=r"TOTALORDER_INTERVALS names no setting.*TOTALORDER_INTERVAL_S"):
        load_lineage_settings(None, {})


def test_the_page_names_the_jars_of_the_lock() -> None:
    page = (CONF.parents[1] / "docs" / "lineage.md").read_text(encoding="utf-8")
    for name in ("delta-spark_4.2_2.13", "spark-sql-kafka-0-10_2.13"):
        (jar,) = (jar for jar in locked_jars("spark") if jar.name == name)
        assert f"{jar.organisation}:{jar.name}:{jar.version}" in page


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_lineage_settings(tmp_path / "none.toml", {})
