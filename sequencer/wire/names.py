"""Names: the domain's own topics, and which stamps partition and shard a pub/sub topic belongs to."""

import hashlib
import re
from dataclasses import dataclass

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.limits import MAX_ID_CHARS, MAX_NONCE_CHARS, MAX_TOPIC_CHARS

_DOMAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}(\.[A-Za-z0-9_-]{1,60})*")
_ID = re.compile(rf"[A-Za-z0-9._:@-]{{1,{MAX_ID_CHARS}}}")
_NONCE = re.compile(rf"[A-Za-z0-9._:@-]{{1,{MAX_NONCE_CHARS}}}")


@dataclass(frozen=True, kw_only=True)
class DomainTopics:
    """The Kafka topics that a domain owns (protocol.md, "Log first, stamp after")."""

    domain: str

    def __post_init__(self) -> None:
        if len(self.domain) > 200 or not _DOMAIN.fullmatch(self.domain):
            raise SettingsError(
                f"domain {self.domain!r} is not a usable name",
                remedy="Use letters, digits, '-', '_' and inner dots, at most 200 of them",
            )

    @property
    def control(self) -> str:
        """One partition, never expires: subscribe, unsubscribe, renew, and the sequencers' claims."""
        return f"{self.domain}.control"

    @property
    def stamps(self) -> str:
        """P partitions, fixed for life: the timestamps."""
        return f"{self.domain}.stamps"

    @property
    def grants(self) -> str:
        """One partition, compacted: the answers to control records."""
        return f"{self.domain}.grants"

    @property
    def positions(self) -> str:
        """Compacted: the saved positions of subscribers."""
        return f"{self.domain}.positions"

    @property
    def receipts(self) -> str:
        """P partitions: what subscribers say that they handed to their applications."""
        return f"{self.domain}.receipts"

    @property
    def cuts(self) -> str:
        """One partition, kept as long as stamps: where each batch was cut out of the event partitions."""
        return f"{self.domain}.cuts"

    @property
    def state(self) -> str:
        """One partition: the newest snapshot of the sequencer's state, for a recovery; the job takes older ones out."""
        return f"{self.domain}.state"

    def own(self) -> frozenset[str]:
        """Every topic that is the domain's own, never an event topic."""
        return frozenset({self.control, self.stamps, self.grants, self.positions, self.receipts, self.cuts, self.state})


def stamps_partition(topic: str, partitions: int) -> int:
    """Stamps partition of a pub/sub topic: a stable hash of its name modulo P, so that everyone can compute it."""
    return int.from_bytes(hashlib.blake2b(topic.encode(), digest_size=8).digest(), "big") % partitions


def valid_id(value: object) -> bool:
    """Whether a value can be a subscriber's id; '/' is kept out, since it separates the parts of Kafka keys."""
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def valid_nonce(value: object) -> bool:
    """Whether a value can be a process's nonce."""
    return isinstance(value, str) and _NONCE.fullmatch(value) is not None


def valid_topic(value: object) -> bool:
    """Whether a value can name a pub/sub topic: any non-empty text that UTF-8 can carry, within the limit."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TOPIC_CHARS:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
