"""How Kafka cleans a topic, as the subscriber's clients see it, also where ACLs hide it."""

from collections.abc import Callable, Iterator

import pytest
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType
from secure_broker import ACLS, LOGIN, USER, SecureBroker

from totalorder import kafka_clients
from totalorder.subscriber.kafka_transport import KafkaTransport

pytestmark = pytest.mark.broker
POLICIES = {"parked": "compact", "events": "delete", "both": "compact,delete", "hidden": "compact"}


@pytest.fixture(scope="module")
def strict() -> Iterator[SecureBroker]:
    """A broker on which USER may write to all these topics, and see the settings of all but one."""
    with SecureBroker(settings=ACLS) as running, kafka_clients.admin(running.bootstrap_servers) as admin:
        admin.create_topics(
            {name: {"num_partitions": 1, "configs": {"cleanup.policy": policy}} for name, policy in POLICIES.items()}
        )
        admin.wait_for_topics(list(POLICIES))
        allowed = [(name, ACLOperation.WRITE) for name in POLICIES]
        allowed += [(name, ACLOperation.DESCRIBE_CONFIGS) for name in POLICIES if name != "hidden"]
        for name, operation in allowed:
            topic = ResourcePattern(ResourceType.TOPIC, name)
            made = admin.create_acls([ACL(f"User:{USER}", "*", operation, ACLPermissionType.ALLOW, topic)])
            assert not made["failed"]
        yield running


def test_it_is_as_it_was_made_and_nothing_where_acls_hide_it(
    strict: SecureBroker, make_transport: Callable[..., KafkaTransport]
) -> None:
    transport = make_transport(strict.login, LOGIN)
    try:
        seen = {name: transport.cleanup(name) for name in POLICIES}
        assert seen == {
            "parked": {"compact"}, "events": {"delete"}, "both": {"compact", "delete"}, "hidden": None
        }  # fmt: skip
        assert transport.partitions("hidden") == 1
    finally:
        transport.close()
