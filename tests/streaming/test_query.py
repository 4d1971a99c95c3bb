"""What the query does around the engine: real Spark."""

import pytest
from pyspark.sql import SparkSession

from totalorder.streaming.query import batch_time_ms, to_shards

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("keys", [(7,), (0, 5)])
def test_every_chunk_goes_to_every_shard_with_one_time(spark: SparkSession, keys: tuple[int, ...]) -> None:
    frame = spark.createDataFrame([(bytes([at]),) for at in range(3)], "chunk binary")
    rows = to_shards(frame.withColumn("time_ms", batch_time_ms()), keys).collect()
    assert sorted((row["shard_key"], bytes(row["chunk"])) for row in rows) == [
        (key, bytes([at])) for key in keys for at in range(3)
    ]
    assert len({row["time_ms"] for row in rows}) == 1
