"""What a Session is told, checked before anything is asked of a broker."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, cast

from totalorder.sequencer.wire.signing import Signer
from totalorder.subscriber.checks import check_count, check_lease, check_name, check_seconds
from totalorder.subscriber.position import Position
from totalorder.subscriber.start import Start


@dataclass(frozen=True, kw_only=True)
class SessionSettings:
    """Settings of one process of a subscriber id; seconds and counts."""

    id: str
    domain: str
    lease_s: int = 86_400
    start_timeout_s: float = 60.0
    save_interval_s: float = 0.0
    max_buffered: int = 1_000
    max_waiting: int = 20_000
    stalled_after_s: float = 10.0
    start: Start | Literal["saved"] = "saved"
    skips_lost: bool = False
    receipts: bool = True
    control_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_name(self.id, self.domain)
        check_lease(self.lease_s)
        check_seconds("start_timeout_s", self.start_timeout_s)
        check_seconds("save_interval_s", self.save_interval_s, zero=True)
        check_seconds("stalled_after_s", self.stalled_after_s)
        check_count("max_buffered", self.max_buffered)
        check_count("max_waiting", self.max_waiting)
        self.signer()

    @property
    def place(self) -> Position | datetime | Literal["earliest"] | None:
        """Where in the order to begin, if that is said."""
        return None if self.start in ("saved", "now") else cast("Position | datetime | Literal['earliest']", self.start)

    @property
    def begin_anew(self) -> bool:
        """Whether what is saved does not count."""
        return self.start != "saved"

    def signer(self) -> Signer | None:
        """Who signs what is asked; SettingsError where the key is none of this id."""
        return Signer(key=self.control_key, domain=self.domain, signer=self.id) if self.control_key else None
