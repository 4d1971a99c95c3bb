"""The examples in conf/ are settings that work, and name the versions that the lock has."""

from pathlib import Path

import pytest

from totalorder.config import load_settings
from totalorder.jars import locked_jars

CONF = Path(__file__).resolve().parents[2] / "conf"


@pytest.mark.parametrize("name", ["local", "cluster"])
def test_settings_files_are_valid(name: str) -> None:
    settings = load_settings(CONF / f"{name}.toml")
    assert settings.topic_pattern


def test_the_environment_adds_to_the_kafka_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOTALORDER_KAFKA", '{"ssl.key.password": "secret"}')
    kafka = load_settings(CONF / "cluster.toml").kafka
    assert (kafka["ssl.key.password"], kafka["security.protocol"]) == ("secret", "SSL")


def test_spark_defaults_name_the_kafka_source_of_the_lock() -> None:
    lines = (CONF / "spark-defaults.conf").read_text().splitlines()
    settings = dict(line.split(None, 1) for line in lines if line and not line.startswith("#"))
    assert all(name.startswith("spark.") for name in settings)
    (source,) = (jar for jar in locked_jars("spark") if jar.name.startswith("spark-sql-kafka"))
    assert settings["spark.jars.packages"] == f"{source.organisation}:{source.name}:{source.version}"


def test_every_logger_has_a_name_and_a_level() -> None:
    lines = (CONF / "log4j2.properties").read_text().splitlines()
    keys = {line.split("=")[0].strip() for line in lines if line.strip() and not line.startswith("#")}
    loggers = {key.split(".")[1] for key in keys if key.startswith("logger.")}
    assert all({f"logger.{logger}.name", f"logger.{logger}.level"} <= keys for logger in loggers)
