"""Settings: where they come from, which one wins, and what a fault says."""

from pathlib import Path

import pytest

from totalorder.config import Settings, load_settings, make_settings
from totalorder.errors import SettingsError

GIVEN = {"topics": ("a",), "checkpoint_dir": "x"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "job.toml"
    path.write_text(
        'domain = "shop"\ntopics = ["orders", "payments"]\ncheckpoint_dir = "/state"\ntrigger_ms = 5\n'
        '[kafka]\n"security.protocol" = "SSL"\nretries = 3\n[topic_settings]\nreplication_factor = 3\n',
        encoding="utf-8",
    )
    return path


def test_file_then_environment_then_flags(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOTALORDER_TRIGGER_MS", "6")
    monkeypatch.setenv("TOTALORDER_SHARDS", "2")
    settings = load_settings(config, {"shards": 4, "domain": None})
    assert (settings.trigger_ms, settings.shards, settings.domain) == (6, 4, "shop")
    assert settings.kafka == {"security.protocol": "SSL", "retries": "3"}
    assert settings.topic_settings.replication_factor == 3


def test_tables_are_merged(config: Path) -> None:
    settings = load_settings(config, {"kafka": {"kafka.retries": "9"}})
    assert settings.kafka == {"security.protocol": "SSL", "retries": "9"} or settings.kafka["retries"] == "9"


def test_topics_from_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOTALORDER_TOPICS", "a, b")
    assert load_settings(None, {"checkpoint_dir": "x"}).topics == ("a", "b")


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({**GIVEN, "topic_patern": "x"}, "topic_pattern"),
        ({**GIVEN, "kafka": {"group.id": "g"}}, "group.id cannot be set"),
        ({**GIVEN, "kafka": {"kafka.group.id": "g"}}, "group.id cannot be set"),
        ({**GIVEN, "kafka": {"acks": 0}}, "acks cannot be set"),
        ({**GIVEN, "kafka": {"sasl.username": "u"}}, "kafka.sasl.username means nothing to Spark's Kafka client. Give"),
        ({**GIVEN, "kafka": {"kafka.ssl.ca.location": "ca"}}, "Give kafka.ssl.truststore.location instead"),
        (
            {**GIVEN, "kafka": {"kafka.security.protocol": "SASL-SSL"}},
            "Use one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({**GIVEN, "topic_pattern": "x"}, "either topics or topic_pattern"),
        ({**GIVEN, "topic_order": ("a", "b")}, "topic_order: b is none of the event topics"),
        ({**GIVEN, "topic_order": ("a", "a")}, "stands twice"),
        ({**GIVEN, "look_ms": 0}, "look_ms"),
        ({**GIVEN, "reading_tasks": 0}, "reading_tasks"),
        ({"checkpoint_dir": "x"}, "topics (or else topic_pattern) is missing"),
        ({"topics": ("a",)}, "the setting checkpoint_dir is missing. "),
        ({**GIVEN, "topics": ("totalorder.control",)}, "domain's own"),
        ({**GIVEN, "topics": ("a", "a")}, "stands twice"),
        ({**GIVEN, "topics": ("a b",)}, "not the name of a Kafka topic; patterns are for topic_pattern"),
        ({**GIVEN, "topic_order": ("a", "b.*")}, "'b.*' is not the name of a Kafka topic. `totalorder sequence"),
        ({"checkpoint_dir": "x", "topic_pattern": "("}, "not a regular expression"),
        ({**GIVEN, "topic_by": "value"}, "topic_by"),
        ({**GIVEN, "min_subscriptions": 3}, "min_subscriptions"),
        ({**GIVEN, "trigger_ms": -1}, "trigger_ms"),
        ({**GIVEN, "shards": 8}, "stamps_partitions"),
        ({**GIVEN, "starting_offsets": "now"}, "starting_offsets"),
        ({**GIVEN, "domain": "a/b"}, "not a usable name"),
        ({**GIVEN, "topic_settings": {"replicas": 1}}, "replicas"),
        ({**GIVEN, "topic_settings": {"replication_factor": 0}}, "replication_factor"),
    ],
)
def test_a_fault_is_named(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        make_settings(**values)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_fault_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        make_settings(**GIVEN, trigger_ms=-1, keyframe_every=0)
    assert "trigger_ms" in str(caught.value)
    assert "keyframe_every" in str(caught.value)


def test_everything_missing_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        make_settings(shards=0)
    for said in ("checkpoint_dir is missing", "topics (or else topic_pattern) is missing", "shards"):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "flags", "table", "says"),
    [
        ({"KAFKA": "no"}, {}, "", "TOTALORDER_KAFKA is not JSON"),
        ({"KAFKA": "[1]"}, {}, "", "TOTALORDER_KAFKA: must be a table of names and values"),
        ({"KAFKA": '{"a": [1]}'}, {}, "", "a in TOTALORDER_KAFKA: must be text"),
        ({"KAFKA": '{"b": "1"}'}, {}, "kafka = {a = [1]}", "kafka.a in FILE: must be text"),
        ({"SHARDS": "x"}, {}, "", "TOTALORDER_SHARDS: must be a whole number (given: 'x')"),
        ({"SHARDS": "x"}, {}, "shards = 1", "TOTALORDER_SHARDS: must be a whole number (given: 'x')"),
        ({"SHARDS": "1"}, {"shards": 0}, "", "--shards: must be at least 1 (given: 0)"),
        ({"TOPIC_POLL_S": "x"}, {}, "", "TOTALORDER_TOPIC_POLL_S: must be a number (given: 'x')"),
        ({"TOPIC_POLL_S": "0"}, {}, "", "TOTALORDER_TOPIC_POLL_S: must be more than 0"),
        ({"TOPIC_POLL_S": "inf"}, {}, "", "TOTALORDER_TOPIC_POLL_S: must be at most 86400"),
        ({"FAST_CHECKPOINT_FS": "x"}, {}, "", "TOTALORDER_FAST_CHECKPOINT_FS: must be true or false (given: 'x')"),
        ({"TOPIC_SETTINGS__REPLICAS": "1"}, {}, "", "TOTALORDER_TOPIC_SETTINGS__REPLICAS: there is no such setting"),
        ({}, {"topic_settings": {"replication_factor": 40_000}}, "", "--replication-factor: must be at most 32767"),
        ({}, {"starting_offsets": "now"}, "", "--starting-offsets: must be 'earliest' or 'latest' (given: 'now')"),
        ({}, {}, "shards = 2.5", "shards in FILE: must be a whole number (given: 2.5)"),
        ({}, {}, "topic_settings = 1", "topic_settings in FILE: must be a table of names and values (given: 1)"),
        ({}, {"topics": None}, "topics = 1", "topics in FILE: must be a list of names (given: 1)"),
        ({}, {"topic_by": "value"}, "", '--topic-by: must be "topic", "key" or "header:NAME" (given: \'value\')'),
    ],
)
def test_a_fault_is_told_in_plain_words_and_with_what_was_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    flags: dict[str, object],
    table: str,
    says: str,
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(table, encoding="utf-8")
    for key, value in environment.items():
        monkeypatch.setenv(f"TOTALORDER_{key}", value)
    with pytest.raises(SettingsError) as caught:
        load_settings(path, {**GIVEN, **flags})
    assert str(caught.value).startswith(says.replace("FILE", str(path)))


@pytest.mark.parametrize("text", ["domain = ", "\ud800"])
def test_a_file_that_is_no_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(SettingsError, match="not TOML"):
        load_settings(path)


def test_a_file_that_is_absent(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings(tmp_path / "none.toml")


def test_unknown_keys_of_file_and_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.toml"
    path.write_text('checkpont_dir = "x"\n', encoding="utf-8")
    with pytest.raises(SettingsError, match="'checkpoint_dir'"):
        load_settings(path)
    monkeypatch.setenv("TOTALORDER_CHECKPOINT_DIRS", "x")
    with pytest.raises(SettingsError, match="TOTALORDER_CHECKPOINT_DIRS"):
        load_settings(None, GIVEN)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOTALORDER_DOMIAN", "TOTALORDER_DOMAIN"),
        ("TOTALORDER_SHARD", "TOTALORDER_SHARDS"),
        ("TOTALORDER_TOPIC", "TOTALORDER_TOPICS"),
        ("totalorder_start_offsets", "TOTALORDER_STARTING_OFFSETS"),
        ("TOTALORDER_KAFAK__SECURITY", "TOTALORDER_KAFKA"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_right_name(
    monkeypatch: pytest.MonkeyPatch, name: str, meant: str
) -> None:
    monkeypatch.setenv(name, "x")
    with pytest.raises(SettingsError, match=rf"{name} names no setting\. Write {meant},"):
        load_settings(None, GIVEN)


@pytest.mark.parametrize("key", ["CACHE", "IVY_SETTINGS", "REWRITE_TRACES", "SIM_FROM", "SIM_TO", "HOME", "VERSION"])
def test_other_variables_of_the_environment_are_none_of_its_business(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(f"TOTALORDER_{key}", "x")
    assert isinstance(load_settings(None, GIVEN), Settings)


def test_a_pattern_selects_whole_names_and_never_own_topics() -> None:
    settings = make_settings(domain="d", topic_pattern=".*|d", checkpoint_dir="x")
    chosen = [name for name in ("d", "events", "d.stamps", "d.control", "__consumer_offsets") if settings.selects(name)]
    assert chosen == ["d", "events"]
    assert not make_settings(topic_pattern="even", checkpoint_dir="x").selects("events")
