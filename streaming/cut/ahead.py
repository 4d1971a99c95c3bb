"""Small batches are read in the driver's process, while Spark writes the batch down and plans it.

So what a small batch costs most, a Python worker of the source's own in the task and the way through it, falls away,
and the reading itself costs no time. What is read is a function of the plan: should it be lost, a worker reads the
same.
"""

import threading
from dataclasses import dataclass, field

from totalorder.errors import Error
from totalorder.streaming.cut import consumers, reading
from totalorder.streaming.cut.chunk import Chunk
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.records import Reader
from totalorder.streaming.cut.verifying import present_ids

MAX_EVENTS = 4_000
"""Of a batch that is small; a plain loop takes some 3 µs for each, and Spark 30 ms before it asks."""
MAX_CONTROLS = 16
"""Of them: they come with their values, of a megabyte at most."""
_END_S = 5.0


@dataclass
class _Read:
    """One plan on its way; `chunks` or `error` are there when it is done."""

    plan: ReadPlan
    done: threading.Event = field(default_factory=threading.Event)
    chunks: list[Chunk] = field(default_factory=list)
    error: BaseException | None = None


class Ahead:
    """Reads one plan at a time, in a thread of its own. Its methods are for one thread at a time."""

    def __init__(self) -> None:
        self._reader: Reader | None = None
        self._read: _Read | None = None

    def begin(self, plan: ReadPlan) -> None:
        """Begins to read a plan that is small; does nothing for others, and while one that nobody took is read."""
        if not is_small(plan) or (self._read is not None and not self._read.done.is_set()):
            return
        self._read = _Read(plan)
        threading.Thread(target=self._run, args=(self._read,), name="totalorder-read-ahead", daemon=True).start()

    def chunks(self, plan: ReadPlan) -> list[Chunk] | None:
        """All chunks of the plan where it is the one that was begun last, else None; waits for them.

        Raises what `reading.read` raises.
        """
        read = self._read
        if read is None or read.plan != plan:
            return None
        read.done.wait()  # reading itself gives up in time
        self._read = None
        if read.error is not None:
            raise read.error
        return read.chunks

    def close(self) -> None:
        """Ends the connection; a reading that is under way is waited for, some seconds at most."""
        if (self._read is None or self._read.done.wait(_END_S)) and self._reader is not None:
            self._reader.close()

    def _run(self, read: _Read) -> None:
        try:
            if self._reader is None:
                self._reader = consumers.plain(consumers.client_settings(read.plan.bootstrap_servers, read.plan.kafka))
            read.chunks.extend(reading.read(read.plan, verify=present_ids, reader=self._reader))
        except Error as error:
            read.error = error
        except Exception as error:
            read.error = Error(f"Reading a small batch failed: {type(error).__name__}: {error}")
        finally:
            read.done.set()


def is_small(plan: ReadPlan) -> bool:
    """Whether the driver's process reads the plan."""
    sizes = [(part.topic == plan.control, part.end - part.begin) for part in plan.ranges]
    controls = sum(size for is_control, size in sizes if is_control)
    return sum(size for _, size in sizes) <= MAX_EVENTS and controls <= MAX_CONTROLS
