"""The code of a query's rows, compiled or interpreted; on a real query, since Spark's own settings are switched."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from totalorder.streaming.gear import LARGE_BATCH, Gear

pytestmark = pytest.mark.spark
MODE = "spark.sql.codegen.factoryMode"


@pytest.fixture
def query(spark: SparkSession) -> Iterator[StreamingQuery]:
    rows = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    started = rows.writeStream.format("noop").start()
    yield started
    started.stop()


def test_a_large_batch_is_compiled_and_a_small_one_is_not(spark: SparkSession, query: StreamingQuery) -> None:
    before = spark.conf.get(MODE)
    gear = Gear(query)
    found = [gear.compiled]
    for rows in (1, LARGE_BATCH - 1, LARGE_BATCH, 10 * LARGE_BATCH, 0):
        gear.suit(rows)
        found.append(gear.compiled)
    assert found == [True, False, False, True, True, False]
    assert spark.conf.get(MODE) == before, "other queries stay as they are"
