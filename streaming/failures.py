"""How an error of a Python worker reaches the driver: as one line of JSON in Spark's long message, and back."""

import errno
import json
import math
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from totalorder import errors
from totalorder.defects import defect_in
from totalorder.errors import BrokerUnavailable, Defect, Error, EventsLost, StateError, TopicChanged

STOPPED = "Nothing of what was under way holds, and starting again goes on with it"
"""Of a job that meets a defect of ours."""
_MARK = "totalorder-error "
_LINE = re.compile(re.escape(_MARK) + r"(\{.*\})")
_EVENTS_LOST = re.compile(r"KAFKA_DATA_LOSS|[Ss]ome data may have been|failOnDataLoss|OffsetOutOfRangeException")
_DAMAGED = re.compile(
    r"STREAMING_STATEFUL_OPERATOR|CANNOT_LOAD_STATE_STORE|CANNOT_READ_STREAMING_STATE|(?<!WRITE_)STATE_STORE|MALFORMED_LOG_FILE|MISSING_LOG"
    r"|Incomplete log file|malformed|SST|RocksDBException|CHECKSUM|[Cc]hecksum"
)
_NO_WORKER = re.compile(r"Python worker failed to connect back")
"""Spark gives the Python process that it starts with each query 10 s, which a busy machine can exceed."""
_WORKER_KILLED = re.compile(r"Python worker exited unexpectedly \(crashed\)")
"""A worker was killed amid a task. An error of its own would be told."""
_SOURCE_ENDED = re.compile(
    r"java\.(?:io|net)\.(?:EOFException|\w+: (?:Broken pipe|Connection reset))[^\n]*\n(?:[^\n]*\n){0,12}?"
    r"\s*at [\w.]*\.PythonStreamingSourceRunner\."
)
"""Java's trace when the process in which the source lives was killed: its socket ends, and nothing else is said."""
_ENDED = "the Python process of the source has ended without a word"
_WORKER_ENDED = "a Python worker of Spark has ended without a word"
_RETRIABLE = re.compile(
    r"org\.apache\.kafka\.common\.errors\.(Retriable|Timeout|Disconnect|Network|NotLeaderOrFollower|LeaderNotAvailable"
    r"|NotController|NotCoordinator|CoordinatorNotAvailable|CoordinatorLoadInProgress|NotEnoughReplicas\w*|KafkaStorage"
    r"|ReplicaNotAvailable|BrokerNotAvailable|FencedLeaderEpoch|UnknownLeaderEpoch|OffsetNotAvailable"
    r"|UnknownTopicOrPartition|UnknownTopicId|ConcurrentTransactions|ThrottlingQuotaExceeded)Exception"
    r"|Cannot fetch record for offset"
)
"""What Java's client throws when its own patience with a broker, a minute or two, is over."""
_NO_BROKER = re.compile(
    r"TimeoutException|DisconnectException|[Tt]imed out|Failed to update metadata|No resolvable bootstrap urls"
    rf"|{_RETRIABLE.pattern}"
)
_NO_MEMORY = re.compile(r"OutOfMemoryError|GC overhead limit")
_NO_ROOM = re.compile(r"No space left on device|Disk quota exceeded")
_UNWRITTEN = re.compile(r"CANNOT_WRITE_STATE_STORE")
"""Not all traces say why."""
_NO_ROOM_CODES = (errno.ENOSPC, errno.EDQUOT)
_FULL_BYTES = 16 << 20


class WorkerFailure(Exception):
    """An Error on its way from a Python worker; the text survives Spark, the class would not."""

    def __init__(self, error: Error) -> None:
        content = {"error": type(error).__name__, "what": error.what, "remedy": error.remedy}
        super().__init__(_MARK + json.dumps(content))


def words_of(failure: BaseException) -> str:
    """What Spark says of a query that failed, behind a line of ours where Java's trace alone tells what happened."""
    trace = getattr(getattr(failure, "_cause", None), "_stackTrace", "")
    if _SOURCE_ENDED.match(trace):
        return f"{_ENDED}\n{failure}"
    no_room = _NO_ROOM.search(trace)
    return f"{no_room[0]}\n{failure}" if no_room else str(failure)


def is_passing(message: str) -> bool:
    """Whether a query that failed so is worth another try as it is; `message` is `words_of` its failure.

    A source or a worker that was killed is: the next one begins from Spark's log and Kafka, as behind a kill of the
    whole job, and takes the place of a cut that the former one sent and nobody ran.
    """
    if (ours := _LINE.search(message)) is not None:
        return isinstance(_ours(ours[1]), BrokerUnavailable | TopicChanged)
    lost = _EVENTS_LOST.search(message) or _DAMAGED.search(message)
    passing = message.startswith(_ENDED) or any(
        cause.search(message) for cause in (_NO_WORKER, _WORKER_KILLED, _RETRIABLE)
    )
    return lost is None and passing


def error_from(message: str, disks: Iterable[str] = ()) -> Error:
    """The totalorder error behind the message of a query that failed; `disks` are where the job writes."""
    if (found := _LINE.search(message)) is not None:
        return _ours(found[1])
    first = _first_line(message)
    if first == _ENDED:
        return _ended(first)
    if _NO_ROOM.search(message) or (_UNWRITTEN.search(message) and any(_free(disk) < _FULL_BYTES for disk in disks)):
        return no_room(first, disks)  # before what it leads to
    if _EVENTS_LOST.search(message):
        return EventsLost(
            f"Kafka no longer has records that were still to be stamped: {first}",
            remedy="Nothing was skipped. Raise the retention, and begin a new domain if the records are gone",
        )
    if _DAMAGED.search(message):
        return StateError(
            f"Spark cannot read the checkpoint: {first}",
            remedy="Restore the whole of it from a copy, or make it anew by `totalorder recover`; never delete single "
            "files in it",
        )
    if _NO_MEMORY.search(message):
        return Error(f"Java's memory was full: {first}", remedy="Give it more, by --spark spark.driver.memory=4g")
    if _WORKER_KILLED.search(message):
        return _ended(_WORKER_ENDED)
    if _NO_BROKER.search(message):
        return BrokerUnavailable(f"the Kafka brokers stopped answering: {first}", remedy="Start the job again")
    return Error(f"the Spark query failed: {first}", remedy="The log has the whole trace; starting again is safe")


def say_trace(log: Any, message: str) -> None:
    """Logs the whole of what Spark said of a query that failed, where that is no error of ours, or a Defect, to be
    reported: Spark itself, whose log would have all of ours too, is silent about it.
    """
    if (found := _LINE.search(message)) is None or isinstance(_ours(found[1]), Defect):
        log.error("spark failed", trace=message.partition("=== Streaming Query ===")[0])


def is_no_room(error: BaseException) -> bool:
    """Whether an error of the system says that a disk is full."""
    return isinstance(error, OSError) and error.errno in _NO_ROOM_CODES


def no_room(what: str, disks: Iterable[str]) -> Error:
    """The error for a full disk; of `disks`, where the job writes, it tells how much room there is now."""
    free = [f"{_free(disk) / 1e6:,.1f} MB under {disk}" for disk in disks if Path(disk).exists()]
    now = f"; free now: {', '.join(free)}" if free else ""
    return Error(
        f"a disk is full: {what}{now}",
        remedy="Make room there, and start again: what was begun runs again, and nothing of it is lost",
    )


def explained(error: Exception, job: str, disks: Iterable[str] = ()) -> Error:
    """What went wrong in a job that drives Spark and writes to `disks`, in totalorder's terms."""
    if isinstance(error, Error):
        return error
    if (defect := defect_in(error, stopped=STOPPED)) is not None:
        return defect
    if is_no_room(error):
        return no_room(str(error), disks)
    if isinstance(error, Py4JNetworkError | ConnectionError) or type(error) is Py4JError or not is_told(error):
        return Error(
            "Spark's Java process has ended", remedy="Look at its log and at its memory; starting again is safe"
        )
    if isinstance(error, PySparkException | Py4JError):
        return error_from(str(error), disks)
    return Error(f"{job} failed: {type(error).__name__}: {error}", remedy="Starting again is safe")


def _ended(what: str) -> Error:
    return Error(what, remedy="Look at the machine's memory: Linux ends what takes too much; starting again is safe")


def _free(disk: str) -> float:
    """Bytes that are free on it; infinite where nobody can tell."""
    try:
        return shutil.disk_usage(disk).free
    except OSError:
        return math.inf


def _ours(line: str) -> Error:
    content = json.loads(line)
    kind: type[Error] = getattr(errors, content["error"], Error)
    return kind(content["what"], remedy=content["remedy"])


def text_of(error: BaseException) -> str:
    """Its message; no more than its kind where it cannot be told."""
    return str(error) if is_told(error) else type(error).__name__


def is_told(error: BaseException) -> bool:
    """Whether an error can say what it is: one of Java's asks Java for it, which may be gone."""
    try:
        str(error)
    except Exception:
        return False
    return True


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:500] if lines else "no reason given"
