"""Single values out of JSON from outside: a number or a text as all formats have them, or a ValueError."""

MAX_NUMBER = 2**63 - 1


def number(value: object) -> int:
    """The value, which must be a whole number, not negative, of 64 bits with a sign."""
    if type(value) is not int or not 0 <= value <= MAX_NUMBER:
        raise ValueError(f"{value!r:.60} is not an integer from 0 to {MAX_NUMBER}")
    return value


def text(value: object) -> str:
    """The value, which must be text that UTF-8 can hold: half a character could not be written again."""
    if type(value) is not str:
        raise ValueError(f"{value!r:.60} is not text")
    value.encode()
    return value
