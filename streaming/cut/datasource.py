"""The source as Spark sees it: offsets and ranges in a process of the driver, reading in the workers.

Spark pickles the reader to its workers, which only read; what lives in the driver's process is made when Spark asks
for an offset for the first time. Spark loads this module in four processes when a query starts, one after another, and
two of them need neither: so both are imported where they are used.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.datasource_internal import _SimpleStreamReaderWrapper
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from totalorder.errors import Error
from totalorder.streaming.cut.batches import CHUNK
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.failures import WorkerFailure
from totalorder.streaming.relay import log_through_java

if TYPE_CHECKING:
    from totalorder.streaming.cut.cutter import Cutter

FORMAT = "totalorder"
_OPTION = "secret.settings"
"""Spark shows no option of such a name in plans and logs: it holds passwords."""
_IDLE_WAIT_S = 0.1
"""How long Spark waits for an offset when nothing comes: it asks again at once, and an answer takes Java's time."""


def read(spark: SparkSession, settings: SourceSettings) -> DataFrame:
    """The domain's records as a stream of chunks, one in each row."""
    spark.dataSource.register(CutSource)
    return spark.readStream.format(FORMAT).option(_OPTION, settings.encode()).load()


class CutSource(DataSource):
    """Kafka's records in batches, slices and ranges of our own."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return f"{CHUNK} binary"

    def streamReader(self, schema: StructType) -> "CutReader":  # noqa: ARG002, N802
        return CutReader(SourceSettings.decode(self.options[_OPTION]))


class Share(InputPartition):
    """What one task reads."""

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan


class CutReader(_SimpleStreamReaderWrapper):
    """See `Cutter` for what the driver's part does, `reading` for the workers'.

    pyspark 4.2 asks readers of this class alone for rows that the driver's process has already, which then need no
    worker of the source's own. It asks them for no figures.
    """

    simple_reader: Any = None
    """pyspark looks at what its own class wraps; here it is nothing."""

    def __init__(self, settings: SourceSettings) -> None:
        self._settings = settings
        self._made: Cutter | None = None
        self._is_first_trigger = True
        self._rows: list[bytes] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the domain begins."""
        with _told():
            return self._cutter().beginning().encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """At most so many events a batch."""
        return ReadMaxRows(self._settings.max_events)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends; `start` itself as long as there is nothing to read."""
        with _told():
            cutter = self._cutter()
            is_first, self._is_first_trigger = self._is_first_trigger, False
            wait_s = 0.0 if is_first else _IDLE_WAIT_S
            if not is_first:
                cutter.say_first_trigger_over()
            begin = BatchEnd.decode(start, "the offset in Spark's log")
            if is_first and cutter.is_beginning(begin):
                return start
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._settings.max_events
            end = cutter.end_after(begin, most, wait_s)
            return start if end is begin else end.encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What the tasks of a batch read, which is in Spark's log by now; its cut is public when this returns."""
        with _told():
            self._is_first_trigger = False
            where = "the offset in Spark's log"
            begins, ends = BatchEnd.decode(start, where), BatchEnd.decode(end, where)
            if begins == ends and (seeds := self._cutter().seeds()):
                self._rows = seeds
                return [Share(self._settings.plan(cut=begins.cut, topic_order=(), ranges=()))]
            plans = self._cutter().shares(begins, ends)
            self._rows = self._handed_over(plans[0]) if len(plans) == 1 else None
            return [Share(plan) for plan in plans]

    def _handed_over(self, plan: ReadPlan) -> list[bytes] | None:
        """What a task is given in the place of a share to read: the chunks where they are there, or else the plan,
        where the task that takes it is the only one; None where it has to read. Spark takes no empty list well.
        """
        from totalorder.streaming.cut.chunk import encode
        from totalorder.streaming.cut.rows import encode_plan

        chunks = self._cutter().read_ahead(plan)
        if chunks:
            return [encode(chunk) for chunk in chunks]
        return [encode_plan(plan)] if self._settings.shards == 1 else None

    def getCache(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any] | None:  # noqa: ARG002, N802
        """Asked behind `partitions`: the rows that Spark keeps for the one task, None where it is to read its share."""
        return None if self._rows is None else _batches(self._rows)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for batches that are over."""

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a worker: the chunks of one share."""
        from totalorder.streaming.cut import reading
        from totalorder.streaming.cut.chunk import encode
        from totalorder.streaming.cut.verifying import present_ids

        assert isinstance(partition, Share)
        with _told():
            yield from _batches(encode(chunk) for chunk in reading.read(partition.plan, verify=present_ids))

    def stop(self) -> None:
        """Ends what the driver's process holds."""
        if self._made is not None:
            self._made.close()

    def _cutter(self) -> "Cutter":
        if self._made is None:
            from totalorder.streaming.cut.cutter import Cutter

            log_through_java()
            self._made = Cutter(self._settings)
        return self._made


def _batches(rows: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
    """Each row a batch: it may be large."""
    return (pa.RecordBatch.from_arrays([pa.array([row], pa.binary())], names=[CHUNK]) for row in rows)


@contextmanager
def _told() -> Iterator[None]:
    """Lets an Error come through Spark to the driver."""
    try:
        yield
    except Error as error:
        raise WorkerFailure(error) from error
