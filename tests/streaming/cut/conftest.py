"""Sources without Spark, on the shared broker."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cut_driver import Driver
from kafka import KafkaAdminClient
from spark_shared import settings_for

from totalorder.broker import LocalBroker


@pytest.fixture
def drive(
    broker: LocalBroker, kafka_admin: KafkaAdminClient, unique_name: Callable[[str], str], tmp_path: Path
) -> Iterator[Callable[..., Driver]]:
    made: list[Driver] = []

    def start(topics: list[str], **more: object) -> Driver:
        settings = settings_for(unique_name("cut"), broker.bootstrap_servers, tmp_path, topics=tuple(topics), **more)
        made.append(Driver(settings, kafka_admin))
        return made[-1]

    yield start
    for driver in made:
        driver.close()
