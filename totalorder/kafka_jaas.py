"""The line `sasl.jaas.config`, read as Java reads it, so that it logs in here with the same user and password.

Java's tokenizer takes words, quotes of both kinds with C's escapes, and comments; a bare value begins with a letter,
`_` or `$`: a number, for one, needs quotes.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from totalorder.errors import SettingsError

_TOKEN = re.compile(
    r"""(?P<blank>\s+|/\*.*?\*/|/[^\n]*)
    |(?P<quote>["'])(?P<quoted>(?:\\.|(?!(?P=quote))[^\\\r\n])*)(?P=quote)
    |(?P<word>[^\W\d][\w.$-]*|\$[\w.$-]*)
    |(?P<sign>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_MODULE = re.compile(r"(?:[\w$]+\.)*(?:Plain|Scram)LoginModule")
_FLAGS = {"required", "requisite", "sufficient", "optional"}


class _Token(NamedTuple):
    text: str
    is_sign: bool


def user_and_password(line: str) -> tuple[str, str]:
    """Out of `…PlainLoginModule required username="u" password="p";` (or ScramLoginModule).

    Raises SettingsError, which says what is amiss and does not repeat the line, for all that Java would refuse.
    """
    tokens = list(_tokens(line))
    if len(tokens) < 2 or not _MODULE.fullmatch(tokens[0].text):
        raise _not_understood("it does not begin with PlainLoginModule or ScramLoginModule")
    if tokens[1].text.lower() not in _FLAGS:
        raise _not_understood("the word required must follow the module")
    options = _options(tokens[2:])
    for name in ("username", "password"):
        if name not in options:
            raise _not_understood(f"it has no {name}")
    return options["username"], options["password"]


def _options(tokens: list[_Token]) -> dict[str, str]:
    options: dict[str, str] = {}
    at = 0
    while at < len(tokens) and not tokens[at].is_sign:
        name = tokens[at].text
        sign, value = (tokens[at + 1 : at + 3] + [_Token("", True)] * 2)[:2]
        if sign != _Token("=", True) or value.is_sign:
            raise _not_understood(f"{name} must be followed by = and a value, in quotes where it is more than a word")
        options[name] = value.text
        at += 3
    if tokens[at:] != [_Token(";", True)]:
        raise _not_understood("it must end with one semicolon behind the last value")
    return options


def _tokens(line: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(line):
        if found["quote"]:
            yield _Token(_ESCAPE.sub(_unescaped, found["quoted"]), False)
        elif not found["blank"]:
            yield _Token(found["word"] or found["sign"], found["word"] is None)


def _unescaped(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code, 8)) if code.isdecimal() and code < "8" else _ESCAPES.get(code, code)


def _not_understood(reason: str) -> SettingsError:
    return SettingsError(
        f"kafka.sasl.jaas.config is not understood: {reason}",
        remedy='Give PlainLoginModule or ScramLoginModule with required username="…" password="…" and a semicolon.',
    )
