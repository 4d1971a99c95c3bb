"""The one Spark session of a test run, and what tests do with it."""

from functools import cache

from pyspark.sql import SparkSession

from totalorder.config import Settings, make_settings
from totalorder.streaming.session import start_session

QUICK_JAVA = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Compiles less: a short run needs half the processor time."""


@cache
def shared_session() -> SparkSession:
    """Started when the first test asks; its Java ends with this process."""
    return start_session(make_settings(topic_pattern="unused", checkpoint_dir="unused", spark=QUICK_JAVA))


def settings_for(domain: str, bootstrap_servers: str, checkpoint_dir: object, **more: object) -> Settings:
    """Settings of a small test domain that looks for topics often."""
    given: dict[str, object] = {"topic_poll_s": 0.3, "stamps_partitions": 2, "master": "local[2]"}
    return make_settings(
        **given
        | more
        | {"domain": domain, "bootstrap_servers": bootstrap_servers, "checkpoint_dir": str(checkpoint_dir)}
    )
