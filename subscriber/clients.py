"""The Kafka clients by which a Subscriber can read and write; each is imported only when it is used."""

from collections.abc import Callable
from typing import Literal

from totalorder.errors import EnvironmentProblem
from totalorder.subscriber.transport import Transport

Client = Literal["kafka-python", "confluent"]
CLIENTS: tuple[Client, ...] = ("kafka-python", "confluent")


def transport_of(client: Client) -> Callable[..., Transport]:
    """The transport's class; EnvironmentProblem where its package is not installed."""
    if client == "kafka-python":
        from totalorder.subscriber.kafka_python import KafkaPythonTransport

        return KafkaPythonTransport
    try:
        from totalorder.subscriber.librdkafka import LibrdkafkaTransport
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise EnvironmentProblem(
            'client="confluent" needs the package confluent-kafka, which is not installed',
            remedy="pip install 'totalorder[fast]', or leave client (--client) out",
        ) from error
    return LibrdkafkaTransport
