"""Control keys as they are kept: in a file, one a line, which no setting, log or list of processes shows."""

from pathlib import Path

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.signing import Signatures

_MOST_BYTES = 65_536


def read_keys(path: str) -> tuple[str, ...]:
    """The keys of a file; empty lines, and those that begin with #, are none. SettingsError, which shows no key."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise SettingsError(f"control_key_file {path} has more than {_MOST_BYTES} bytes")
        lines = [line.strip() for line in content.decode("ascii").splitlines()]
    except OSError as error:
        raise SettingsError(f"control_key_file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"control_key_file {path} is not text") from None
    if not (keys := tuple(line for line in lines if line and not line.startswith("#"))):
        raise SettingsError(f"control_key_file {path} has no key", remedy="Write one a line")
    return keys


def read_signatures(path: str | None, domain: str) -> Signatures | None:
    """What tells signed requests from others; None where the domain takes unsigned ones."""
    if path is None:
        return None
    try:
        return Signatures(keys=read_keys(path), domain=domain)
    except SettingsError as error:
        raise SettingsError(f"control_key_file {path}: {error.what}", remedy=error.remedy) from None
