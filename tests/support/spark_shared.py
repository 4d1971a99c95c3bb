"""The one Spark session of a test run, and what tests do with it."""

from functools import cache

from pyspark.sql import SparkSession

from totalorder.config import Settings, make_settings
from totalorder.java import SHORT_RUN
from totalorder.sinks.runner import SPARK
from totalorder.sinks.session import INTERPRETED, start_delta_session

QUICK_JAVA = {"spark.driver.extraJavaOptions": SHORT_RUN}


@cache
def shared_session() -> SparkSession:
    """Started when the first test asks, for sequencer and lineage; its Java ends with this process.

    Queries over few rows are run as they are; who wants them compiled asks for it in a session of its own.
    """
    return start_delta_session("tests", SPARK | QUICK_JAVA | INTERPRETED)


def settings_for(domain: str, bootstrap_servers: str, checkpoint_dir: object, **more: object) -> Settings:
    """Settings of a small test domain that looks for topics often."""
    given: dict[str, object] = {"topic_poll_s": 0.3, "stamps_partitions": 2, "master": "local[2]"}
    return make_settings(
        **given
        | more
        | {"domain": domain, "bootstrap_servers": bootstrap_servers, "checkpoint_dir": str(checkpoint_dir)}
    )
