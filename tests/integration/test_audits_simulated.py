"""The audits, in Spark, of what was left by simulated worlds: no storm makes them find what is not there."""

import pytest
from pyspark.sql import SparkSession
from sim_lineage import lineage_of
from sim_world import World

from totalorder.sinks.audit import FEW_ROWS, SQL_CONF, Auditor, audits
from totalorder.sinks.schema import TABLES

pytestmark = pytest.mark.spark

STEPS = 400


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    """The run's Spark with views and settings of its own."""
    own = spark.newSession()
    for key, value in (SQL_CONF | FEW_ROWS).items():
        own.conf.set(key, value)
    return own


@pytest.mark.parametrize("seed", [1, pytest.param(6, marks=pytest.mark.long)])
def test_nothing_is_found_in_a_simulated_world(spark: SparkSession, seed: int) -> None:
    with World(seed, without=["deletes"]) as world:  # what is lost with a topic is a gap
        world.run(STEPS)
        world.heal()
    tables = lineage_of(world)
    for name in TABLES:
        spark.createDataFrame(tables.rows(name)).createOrReplaceTempView(name)
    auditor = Auditor.of_views(spark)
    asked = [audit for audit in audits() if not audit.view and not audit.parameters]
    results = [auditor.ask(audit, {}, most_rows=5) for audit in asked]
    assert {result.audit.name: result.rows for result in results if result.verdict == "violated"} == {}
