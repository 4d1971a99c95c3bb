"""The shared Spark session as a fixture."""

import pytest
from pyspark.sql import SparkSession
from spark_shared import shared_session


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The one session of the run; leave it running."""
    return shared_session()
