"""Signatures of control records: who may ask for what, where a domain has a control key.

A domain's *control key* is a secret that its sequencer holds, and whoever administers it. From it follows a key for
each subscriber id, which signs for that id alone: given to a tenant, it changes and ends the tenant's own subscription
and no other. Topics are retired with the control key itself. A signature is HMAC-SHA-256, in hex, over the domain and
the whole content of the request (id, generation and nonce among it): docs/operating.md says what that does and what
not.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass, field

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.names import valid_id

RETIRE = "/retire"
"""In the place of an id, for requests to retire a topic; no id has a slash."""
_CONTROL_KEY = re.compile(r"[A-Za-z0-9+/=_-]{32,512}")
_KEY_OF_ID = re.compile(r"[0-9a-f]{64}")


def key_of(control_key: str, *, domain: str, signer: str) -> str:
    """The key that signs for one subscriber id alone: the id, a colon, and 64 hex digits. SettingsError for a control
    key that cannot be one.
    """
    _check_control_key(control_key)
    return f"{signer}:{_hmac(control_key, 'totalorder key', domain, signer)}"


@dataclass(frozen=True, kw_only=True)
class Signer:
    """Signs what one subscriber id asks, or `RETIRE`. `key` is the domain's control key, or the id's own.

    SettingsError where it is none, or another id's; no key is ever shown.
    """

    key: str = field(repr=False)
    domain: str
    signer: str

    def __post_init__(self) -> None:
        if ":" not in self.key:
            object.__setattr__(self, "key", key_of(self.key, domain=self.domain, signer=self.signer))
        name, _, digits = self.key.rpartition(":")
        if not _KEY_OF_ID.fullmatch(digits) or not (valid_id(name) or name == RETIRE):
            raise SettingsError("control_key is neither a domain's control key nor a subscriber id's", remedy=_REMEDY)
        if name != self.signer:
            wanted = "to retire topics" if self.signer == RETIRE else f"of id {self.signer!r}"
            raise SettingsError(f"control_key is that of id {name!r}, and not {wanted}", remedy=_REMEDY)

    def sign(self, content: bytes) -> str:
        """The signature of a request's content."""
        return _signature(self.key, self.domain, content)


@dataclass(frozen=True, kw_only=True)
class Signatures:
    """Tells which requests are signed with one of a domain's control keys; several, so that they can be replaced."""

    keys: tuple[str, ...] = field(repr=False)
    domain: str

    def __post_init__(self) -> None:
        for key in self.keys:
            _check_control_key(key)

    def hold(self, content: bytes, signer: str, signature: object) -> bool:
        """Whether the signature is one of this content for this signer."""
        if not isinstance(signature, str) or not signature.isascii():
            return False
        keys = (key_of(key, domain=self.domain, signer=signer) for key in self.keys)
        return any(hmac.compare_digest(_signature(key, self.domain, content), signature) for key in keys)

    @property
    def prints(self) -> tuple[str, ...]:
        """What tells the keys from others without showing them."""
        return tuple(_hmac(key, "totalorder print", self.domain) for key in self.keys)

    def signer(self, signer: str) -> Signer:
        """What the sequencer itself signs with: the first key."""
        return Signer(key=self.keys[0], domain=self.domain, signer=signer)


_REMEDY = "`totalorder control-key ID` prints the key of an id"


def _check_control_key(key: str) -> None:
    name, _, digits = key.rpartition(":")
    if name and _KEY_OF_ID.fullmatch(digits):
        raise SettingsError(
            f"this is the key of id {name!r}, and the domain's own control key is wanted",
            remedy="Whoever runs `totalorder sequence` has it",
        )
    if not _CONTROL_KEY.fullmatch(key):
        raise SettingsError(
            "a control key is not 32 to 512 of the characters A-Z a-z 0-9 + / = _ -",
            remedy="`openssl rand -hex 32` makes one",
        )


def _signature(key: str, domain: str, content: bytes) -> str:
    return _hmac(key, "totalorder control", domain, content.decode())


def _hmac(key: str, *parts: str) -> str:
    # Neither a domain nor an id has a zero byte, so that no two lists of parts give one text.
    return hmac.new(key.encode(), "\0".join(parts).encode(), hashlib.sha256).hexdigest()
