"""Control keys: read from files alone, shown by nothing; the command that makes one for an id."""

import traceback
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from totalorder.cli.app import build_app
from totalorder.config import load_settings, make_settings
from totalorder.control_keys import read_keys, read_signatures
from totalorder.errors import SettingsError
from totalorder.sequencer.wire.signing import key_of
from totalorder.streaming.cut.source_settings import SourceSettings

KEY, OTHER = "k3y" * 20, "0ther" * 12


def written(folder: Path, *lines: str) -> str:
    path = folder / "keys"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_file_has_a_key_a_line(tmp_path: Path) -> None:
    path = written(tmp_path, "# the new one", OTHER, "", f"  {KEY}  ")
    assert read_keys(path) == (OTHER, KEY)
    signatures = read_signatures(path, "d")
    assert signatures is not None
    assert signatures.keys == (OTHER, KEY)
    assert read_signatures(None, "d") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "has no key"),
        (b"# only words\n", "has no key"),
        (b"short-secret\n", "32 to 512"),
        (b"k" * 40 + b" secret\n", "32 to 512"),
        ("schlüsselsecret".encode(), "is not text"),
        (b"k" * 70_000, "more than 65536 bytes"),
    ],
)
def test_what_holds_no_key_is_refused_without_a_word_of_it(tmp_path: Path, content: bytes, why: str) -> None:
    path = tmp_path / "keys"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=why) as caught:
        read_signatures(str(path), "d")
    assert str(path) in str(caught.value)
    assert "secret" not in "".join(traceback.format_exception(caught.value))
    with pytest.raises(SettingsError, match="No such file"):
        read_signatures(str(tmp_path / "none"), "d")


def test_settings_have_the_place_of_the_keys_and_never_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, KEY)
    monkeypatch.setenv("TOTALORDER_CONTROL_KEY_FILE", path)
    settings = load_settings(None, {"topics": "a", "checkpoint_dir": str(tmp_path)})
    assert settings.control_key_file == path
    told = SourceSettings.of(settings, str(tmp_path))
    assert told.control_key_file == path
    assert KEY not in repr(settings) + told.encode()
    assert make_settings(topics=["a"], checkpoint_dir="c").control_key_file is None


def invoke(*words: str) -> Result:
    return CliRunner().invoke(build_app(), list(words))


def test_the_command_prints_the_key_of_an_id(tmp_path: Path) -> None:
    path = written(tmp_path, KEY, OTHER)
    done = invoke("control-key", "billing", "--domain", "shop", "--control-key-file", path)
    assert done.output.strip() == key_of(KEY, domain="shop", signer="billing")
    for words, why in (
        (["/retire", "--control-key-file", path], "cannot be a subscriber's id"),
        (["billing"], "--control-key-file is missing"),
        (["billing", "--domain", "a b", "--control-key-file", path], "domain"),
    ):
        failed = invoke("control-key", *words).exception
        assert isinstance(failed, SettingsError)
        assert why in str(failed)
        assert KEY not in str(failed)
