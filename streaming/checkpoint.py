"""What lies in `checkpoint_dir`: `domain.json`, the lock, and Spark's own checkpoint in `query/`."""

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Self

from totalorder.errors import StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.store import Store

RECORD = "domain.json"
QUERY = "query"
SEED = "seed"
"""The states that a recovered checkpoint begins with, in base64: a file of this name and the number for each shard."""
LOCK = "lock"
_REMEDY = "Restore the checkpoint from a copy, or make it anew by `totalorder recover`"
_LOCK_POLL_S = 0.1
_OPERATOR = f"{QUERY}/state/0/_metadata/v2"
_SCHEMA_PATH = re.compile(r'"[^"]*(/state/0/_stateSchema/[^"]*)"')


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """What the checkpoint says: `record` is None for a new one, `planned` the newest batch in Spark's write-ahead log,
    `committed` the newest that was finished (-1: none), `next_offsets` where the batch after that one begins.
    `planned_offsets` is where the planned batch ends, and `planned_ms` its time, which its stamps have too.
    """

    record: DomainRecord | None
    planned: int
    committed: int
    next_offsets: Mapping[Source, int]
    planned_offsets: Mapping[Source, int]
    planned_ms: int


def read_checkpoint(store: Store, where: str) -> CheckpointFacts:
    """Reads the record and the newest entries of Spark's logs; StateError when one is damaged."""
    text = _text(store, RECORD, where)
    record = DomainRecord.decode(text, f"{where}/{RECORD}") if text is not None else None
    planned, committed = newest_planned(store), _newest(store, "commits")
    _check_commit(store, committed, where)
    _, next_offsets = _planned(store, record, committed, where)
    planned_ms, planned_offsets = _planned(store, record, planned, where)
    return CheckpointFacts(
        record=record,
        planned=planned,
        committed=committed,
        next_offsets=next_offsets,
        planned_offsets=planned_offsets,
        planned_ms=planned_ms,
    )


def settle(store: Store, query: str) -> None:
    """Lets Spark find the state's schema in a checkpoint that was moved or copied: it wrote down where that lay then.

    `query` is Spark's own checkpoint as Spark is told of it now, a path or a URI.
    """
    root = json.dumps(query if "://" in query else f"file:{query}")[1:-1]
    for number in filter(str.isdecimal, store.names(_OPERATOR)):
        name = f"{_OPERATOR}/{number}"
        text = store.read(name) or ""
        settled = _SCHEMA_PATH.sub(lambda found: f'"{root}{found[1]}"', text)
        if settled != text:
            store.remove(f"{_OPERATOR}/.{number}.crc")  # Hadoop's check sum is of what was there
            store.write(name, settled)


def read_seeds(store: Store, record: DomainRecord, where: str) -> tuple[bytes, ...]:
    """The states that the checkpoint's first batch is given, by shard; none where it has had them, or began the domain.

    StateError when one is missing or damaged.
    """
    if record.recovered is None or _newest(store, "commits") >= 0:
        return ()
    return tuple(_seed(store, shard, digest, where) for shard, digest in enumerate(record.recovered.seeds))


def _seed(store: Store, shard: int, digest: str, where: str) -> bytes:
    text = _text(store, f"{SEED}-{shard}", where)
    with contextlib.suppress(ValueError):
        if text is not None and seed_digest(data := base64.b64decode(text, validate=True)) == digest:
            return data
    raise StateError(
        f"{where}/{SEED}-{shard} is {'missing' if text is None else 'damaged'}", remedy="Run `totalorder recover` again"
    )


def write_seed(store: Store, shard: int, data: bytes) -> None:
    """Writes what `read_seeds` reads."""
    store.write(f"{SEED}-{shard}", base64.b64encode(data).decode())


def seed_digest(data: bytes) -> str:
    """What the record says of a seed."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def _text(store: Store, name: str, where: str) -> str | None:
    try:
        return store.read(name)
    except (UnicodeDecodeError, OSError) as error:
        raise StateError(f"{where}/{name} cannot be read: {error}", remedy=_REMEDY) from error


def _newest(store: Store, log: str) -> int:
    return max((int(name) for name in store.names(f"{QUERY}/{log}") if name.isdecimal()), default=-1)


def _check_commit(store: Store, batch: int, where: str) -> None:
    """StateError where what Spark wrote of the newest finished batch is not whole. There may be none."""
    if batch < 0:
        return
    name = f"{QUERY}/commits/{batch}"
    content: object = None
    with contextlib.suppress(ValueError):
        _version, text, *_ = (_text(store, name, where) or "").splitlines()
        content = json.loads(text)
    if not isinstance(content, dict):
        raise StateError(f"{where}/{name} is damaged, and batch {batch} was finished", remedy=_REMEDY)


def _planned(store: Store, record: DomainRecord | None, batch: int, where: str) -> tuple[int, dict[Source, int]]:
    """Time of a batch and the offsets at its end, from Spark's write-ahead log; for batch -1 none, or where a recovered
    checkpoint begins.

    Without the domain's record the log's numbers name no topics: such a checkpoint is refused for what it is.
    """
    if batch < 0 or record is None:
        begin = record.beginning if record else None
        return 0, offsets_at(record, begin) if record and begin else {}
    with _readable(store, batch, where) as (metadata, end):
        return int(json.loads(metadata)["batchTimestampMs"]), offsets_at(record, end)


def newest_planned(store: Store) -> int:
    """The newest batch in Spark's write-ahead log, -1 for none."""
    return _newest(store, "offsets")


def planned_end(store: Store, record: DomainRecord, batch: int, where: str) -> BatchEnd:
    """Where a batch ends, from Spark's write-ahead log. StateError where that has it no longer, or is damaged."""
    with _readable(store, batch, where) as (_, end):
        offsets_at(record, end)
        return end


@contextlib.contextmanager
def _readable(store: Store, batch: int, where: str) -> Iterator[tuple[str, BatchEnd]]:
    """Spark's metadata of a batch, and its end; in the block too, what cannot be read is a StateError."""
    name = f"{QUERY}/offsets/{batch}"
    text = _text(store, name, where)
    try:
        _version, metadata, source, *_ = (text or "").splitlines()
        yield metadata, BatchEnd.decode(json.loads(source), f"{where}/{name}")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        state = "missing" if text is None else "damaged"
        raise StateError(f"{where}/{name} is {state}, and batch {batch} was planned", remedy=_REMEDY) from None


def offsets_at(record: DomainRecord, end: BatchEnd) -> dict[Source, int]:
    """The next offset of every event partition, and of control, at the end of a batch. IndexError for a topic that the
    record does not have.
    """
    topics = record.numbered()
    return {
        Source(topics[number].name, topics[number].topic_id, partition): offset
        for number, offsets in end.ends.items()
        for partition, offset in enumerate(offsets)
    }


class CheckpointLock:
    """An exclusive lock of the operating system on a local checkpoint, held for the life of the job.

    It hangs on the open file, so a Java that inherits `fd` goes on holding it when Python is killed first: no second
    job begins while the first one's Java may still write. The file names the holder and stays; only the lock counts.
    """

    def __init__(self, directory: Path, wait_s: float) -> None:
        """Takes the lock; StateError when a living job has it. A holder that was killed gets `wait_s` to be gone."""
        directory.mkdir(parents=True, exist_ok=True)
        self.fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(directory, wait_s)
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, str(os.getpid()).encode(), 0)
        except BaseException:
            self.release()
            raise

    def _take(self, directory: Path, wait_s: float) -> None:
        deadline = monotonic() + wait_s
        while not self._try():
            holder = os.pread(self.fd, 20, 0).decode(errors="replace").strip()
            if _alive(holder) or monotonic() > deadline:
                raise StateError(
                    f"the checkpoint {directory} is in use by another sequencer (process {holder or 'unknown'})",
                    remedy="Stop that one first; two drivers on one checkpoint would contradict each other",
                )
            sleep(_LOCK_POLL_S)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Gives the lock up (a Java that inherited it keeps it until it ends)."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _alive(pid: str) -> bool:
    if not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
