"""The saved positions of one subscriber id: those that are there, and what this process saves."""

from collections.abc import Iterable

from totalorder.sequencer.wire.limits import MAX_COUNT
from totalorder.sequencer.wire.position import Progress, SavedPosition, decode_saved, encode_saved
from totalorder.subscriber.transport import Partition, Record, Transport

_MOST_DIGITS = len(str(MAX_COUNT))
"""Of a generation; somebody else may write a longer key."""


class Positions:
    """What is saved says where to go on, and how far (g) events may have been handed out: a promise made beforehand.

    The promise is what a later process tells a repetition by, so it is on the log before an event that it covers is
    handed out, and it never falls below what former processes promised.
    """

    def __init__(
        self,
        transport: Transport,
        partition: Partition,
        *,
        id: str,  # noqa: A002
        nonce: str,
        stored: bool,
    ) -> None:
        self.partition = partition
        self._transport, self._id, self._nonce, self._stored = transport, id, nonce, stored
        self.saved: Progress | None = None
        """What this process saved last."""
        self.promised = 0
        """The g that it saved with it."""
        self._keys: set[bytes] = set()
        """Of all that is saved of the id; one is enough."""

    def newest(self, records: Iterable[Record]) -> tuple[SavedPosition | None, int]:
        """Of all records of the partition: the newest position of the id, and how far any process promised to go."""
        prefix = f"{self._id}/".encode()
        values: dict[bytes, bytes] = {}
        for record in records:
            if record.key is not None and record.key.startswith(prefix):
                values.pop(record.key, None)
                if record.value is not None:
                    values[record.key] = record.value
        self._keys = set(values)
        saves = [decode_saved(value) for value in values.values()]
        promised = max((saved.delivered_through for saved in saves), default=0)
        return max(saves, key=lambda saved: saved.age, default=None), promised

    def later(self, records: Iterable[Record], generation: int) -> int | None:
        """The newest generation behind this one under which a process of the id has saved, by records of the
        partition; None where there is none. What was saved under one is there, or under a later one.
        """
        prefix = f"{self._id}/".encode()
        keys = (record.key for record in records if record.key is not None and record.key.startswith(prefix))
        numbers = (key[len(prefix) :] for key in keys)
        newest = max((int(number) for number in numbers if number.isdigit() and len(number) <= _MOST_DIGITS), default=0)
        return newest if newest > generation else None

    def save(
        self, position: Progress, *, generation: int, through: int, timeout_s: float | None, anew: bool = False
    ) -> None:
        """Writes a position, and the promise that nothing behind g `through` has been handed out or will be yet; with
        `anew` also that a database's position is to be put there.
        """
        saved = SavedPosition(
            id=self._id,
            generation=generation,
            nonce=self._nonce,
            delivered_through=through,
            position=position,
            stored=self._stored,
            anew=anew,
        )
        self._transport.send(self.partition, saved.key, encode_saved(saved), timeout_s=timeout_s)
        self.saved, self.promised = position, through
        for key in sorted(self._keys - {saved.key}):
            self._transport.send(self.partition, key, None, timeout_s=timeout_s)
        self._keys = {saved.key}
