"""The JAAS line is read as Java's tokenizer reads it: tests/totalorder/test_kafka_security.py asks a real broker."""

import pytest

from totalorder.errors import SettingsError
from totalorder.kafka_jaas import user_and_password

MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("username='alice' password='se;c=r\"et'", ("alice", 'se;c=r"et')),
        ("username=\"alice\" password='it\\'s'", ("alice", "it's")),
        ('username="us\\"er" password="p;w=1"', ('us"er', "p;w=1")),
        ("username=alice password=se-cr.et_1$", ("alice", "se-cr.et_1$")),
        ("username='a' password='back\\\\slash\\ttab\\101'", ("a", "back\\slash\ttabA")),
        ("username='a' password=''", ("a", "")),
        ("username='a'\n  /* old: password='x' */ password='b' // end\n", ("a", "b")),
        ("user_alice='x' 'username'='a' password='b' serviceName=kafka password='c'", ("a", "c")),
        ("username='größe' password='пароль'", ("größe", "пароль")),
    ],
)
def test_options(options: str, expected: tuple[str, str]) -> None:
    assert user_and_password(f"{MODULE} required {options};") == expected
    assert user_and_password(f"  ScramLoginModule Required {options} ; ") == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "does not begin with PlainLoginModule"),
        ("com.example.OtherLoginModule required username='a' password='b';", "does not begin with"),
        ("com.example.NotPlainLoginModule required username='a' password='b';", "does not begin with"),
        (f"{MODULE} username='a' password='b';", "the word required"),
        (f"{MODULE} required username='a';", "has no password"),
        (f"{MODULE} required username='a' password='b'", "one semicolon"),
        (f"{MODULE} required username='a' password='b'; {MODULE} required username='c' password='d';", "one semicolon"),
        (f"{MODULE} required username='a' password=12345;", "password must be followed by = and a value, in quotes"),
        (f"{MODULE} required username='a' password=s3cret!;", "username|semicolon|followed"),
        (f"{MODULE} required username='a' password='b;", "password must be followed"),
        (f"{MODULE} required username='a' password;", "password must be followed"),
        (f"{MODULE} required username='a', password='b';", "semicolon"),
    ],
)
def test_what_java_refuses_is_refused_and_not_repeated(line: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=f"sasl.jaas.config is not understood: .*({reason})") as refused:
        user_and_password(line)
    assert "s3cret" not in str(refused.value)
    assert "12345" not in str(refused.value)
