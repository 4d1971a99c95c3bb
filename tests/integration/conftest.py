"""The shared Spark session as a fixture, and both of the subscriber's Kafka clients."""

from collections.abc import Callable
from typing import cast

import pytest
from pyspark.sql import SparkSession
from spark_shared import shared_session

from totalorder.subscriber.clients import CLIENTS, Client, transport_of
from totalorder.subscriber.kafka_transport import KafkaTransport


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The one session of the run; leave it running."""
    return shared_session()


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Client:
    """What a subscriber reads and writes by: each test runs with both."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def make_transport(client: Client) -> Callable[..., KafkaTransport]:
    """The same, by itself."""
    return cast("Callable[..., KafkaTransport]", transport_of(client))
