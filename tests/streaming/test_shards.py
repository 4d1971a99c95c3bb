"""Group keys of shards: each in a shuffle partition of its own, by Spark's own hash."""

import pytest
from pyspark.sql import SparkSession

from totalorder.streaming.shards import shard_keys, spark_hash

NUMBERS = [0, 1, 2, 3, 42, 1_000_003, 2**31 - 1]


@pytest.mark.spark
def test_the_hash_is_sparks(spark: SparkSession) -> None:
    rows = spark.createDataFrame([(number,) for number in NUMBERS], "n int").selectExpr("hash(n) as h").collect()
    assert [row["h"] for row in rows] == [spark_hash(number) for number in NUMBERS]


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 7, 16, 64, 256])
def test_every_shard_has_a_partition_of_its_own(shards: int) -> None:
    keys = shard_keys(shards)
    assert sorted(spark_hash(key) % shards for key in keys) == list(range(shards))
