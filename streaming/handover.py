"""What the driver and the source's own process tell each other: small files in a folder of the query's own.

The source lives in a process that Spark starts on the driver's machine, and has nothing of the driver's but options.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from totalorder.streaming.record import DomainRecord

_RECORD, _LOOKED, _FIGURES, _CHANGED = "domain.json", "first-trigger-over", "looks.json", "topics-changed"
_SEED = "seed"


class Handover:
    """A folder on the driver's machine. The driver writes the domain's record, whenever topics are admitted; the source
    says when the query's first trigger is over, how its looks go, and when it finds that a topic is gone.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @classmethod
    def make(cls) -> "Handover":
        """A new folder, for a query that is about to start."""
        return cls(tempfile.mkdtemp(prefix="totalorder-query-"))

    def remove(self) -> None:
        """Takes the folder away; the query has ended."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def tell(self, record: DomainRecord) -> None:
        """Hands the record over; it is in the checkpoint already."""
        self._write(_RECORD, record.encode())

    def _write(self, name: str, text: str) -> None:
        """Replaces a file: whoever reads it has the one or the other."""
        aside = self.folder / f"{name}.tmp"
        aside.write_text(text, encoding="utf-8")
        aside.replace(self.folder / name)

    def version(self) -> tuple[int, int]:
        """Another one whenever a record was handed over."""
        found = os.stat(self.folder / _RECORD)
        return found.st_ino, found.st_mtime_ns

    def record(self) -> DomainRecord:
        """The record that was handed over last. StateError when it is damaged."""
        return DomainRecord.decode((self.folder / _RECORD).read_text(encoding="utf-8"), str(self.folder / _RECORD))

    def give_seeds(self, seeds: Sequence[bytes]) -> None:
        """Hands over the states that a recovered checkpoint's first batch brings to its shards."""
        for shard, data in enumerate(seeds):
            (self.folder / f"{_SEED}-{shard}").write_bytes(data)

    def seeds(self) -> list[bytes]:
        """Those that were handed over, in order of shards."""
        found = sorted(self.folder.glob(f"{_SEED}-*"), key=lambda path: int(path.name.partition("-")[2]))
        return [path.read_bytes() for path in found]

    def say_first_trigger_over(self) -> None:
        """Said by the source, once."""
        (self.folder / _LOOKED).touch()

    @property
    def is_first_trigger_over(self) -> bool:
        """Whether the source has been asked for a second time, which is behind the first trigger."""
        return (self.folder / _LOOKED).exists()

    def say_topics_changed(self) -> None:
        """Said by the source: the driver need not wait until it looks at topics the next time."""
        (self.folder / _CHANGED).touch()

    def take_topics_changed(self) -> bool:
        """Whether it was said since this was asked last."""
        try:
            (self.folder / _CHANGED).unlink()
        except FileNotFoundError:
            return False
        return True

    def say_looks(self, figures: Mapping[str, Any]) -> None:
        """Said by the source with each batch that it plans: the figures of its looks."""
        self._write(_FIGURES, json.dumps(figures))

    def looks(self) -> dict[str, Any]:
        """The figures that were said last; empty before."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _FIGURES).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found
