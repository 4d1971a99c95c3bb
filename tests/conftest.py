"""One real broker for the whole run, started when the first test asks for it."""

import signal
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings
from kafka import KafkaAdminClient
from kafka.errors import InvalidReplicationFactorError
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.sequencer.wire import invariants

NewTopic = Callable[..., str]

# The speed of a machine is nobody's fault; a failing example prints what repeats it.
settings.register_profile("totalorder", deadline=None, print_blob=True)
settings.load_profile("totalorder")


_WALKS_EVERY = 7
"""Whole states are walked at each so many-th chance (sequencer/wire/invariants.py)."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def pytest_configure() -> None:
    """A shell starts what it puts in the background with Ctrl-C ignored, and what tests start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Commands that a test runs within this process leave handlers of signals, and what is forked later has them too:
    a process that does not end by SIGTERM, for one.
    """
    former = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        return (yield)
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@pytest.fixture(scope="session", autouse=True)
def _whole_states() -> Iterator[None]:
    """Dear invariants are looked at in the process of the tests."""
    with invariants.looking(_WALKS_EVERY):
        yield


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBroker]:
    """A running broker. Shared by all tests: leave it running, and use topics and domains of your own names."""
    with LocalBroker() as running:
        yield running


@pytest.fixture(scope="session")
def kafka_admin(broker: LocalBroker) -> Iterator[KafkaAdminClient]:
    """An admin client of the shared broker."""
    with kafka_clients.admin(broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture(scope="session")
def _unique() -> Iterator[int]:
    return iter(range(1_000_000))


@pytest.fixture
def unique_name(_unique: Iterator[int]) -> Callable[[str], str]:
    """`unique_name("orders")` -> `orders-7`: a name that no other test of this run has."""
    return lambda stem: f"{stem}-{next(_unique)}"


def _is_made(admin: KafkaAdminClient, name: str, partitions: int, configs: dict[str, str]) -> bool:
    """False where no broker can take the topic just now: a machine that stood still has had its broker fenced."""
    try:
        admin.create_topics({name: {"num_partitions": partitions, "configs": configs}})
    except InvalidReplicationFactorError:
        return False
    return True


@pytest.fixture
def new_topic(kafka_admin: KafkaAdminClient, unique_name: Callable[[str], str]) -> NewTopic:
    """`new_topic("orders", partitions=2, **configs)` makes a topic of its own on the shared broker; returns its name.

    `configs` are the topic's settings with _ for the dots: `cleanup_policy="compact"`.
    """

    def make(stem: str = "topic", *, partitions: int = 1, **configs: str) -> str:
        name = unique_name(stem)
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        wait_until(lambda: _is_made(kafka_admin, name, partitions, settings), f"topic {name} is made")
        kafka_admin.wait_for_topics([name])
        return name

    return make
