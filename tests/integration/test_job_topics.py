"""Event topics that are deleted, made again under their names, or retired, while the job runs and while it does not."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient
from kafka.errors import TopicAlreadyExistsError
from pyspark.sql import SparkSession
from spark_job import read_log
from spark_shared import settings_for
from structlog.testing import capture_logs
from typer.testing import CliRunner
from waiting import wait_until

from totalorder.broker import LocalBroker
from totalorder.cli.app import build_app
from totalorder.config import Settings
from totalorder.errors import PreflightFailed, StateError
from totalorder.sequencer.wire.control import Retired
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.checkpoint import RECORD
from totalorder.streaming.record import DomainRecord
from totalorder.streaming.runner import Sequencer

pytestmark = [pytest.mark.broker, pytest.mark.spark]
NewTopic = Callable[..., str]
BOUND_S = 150.0
RACES = 3
AT_ONCE, ROUNDS = 4, 2


class World:
    """Topics that come and go, and what was published to each incarnation of them."""

    def __init__(self, admin: KafkaAdminClient, servers: str) -> None:
        self.admin = admin
        self.servers = servers
        self.published: dict[Source, list[bytes]] = {}
        self.ids: dict[str, list[str]] = {}

    def make(self, topic: str) -> None:
        self.admin.create_topics({topic: {"num_partitions": 1}})
        known = self.ids.setdefault(topic, [])

        def topic_id() -> str:
            (found,) = self.admin.describe_topics([topic])
            return "" if found["error_code"] else str(found["topic_id"])

        # For a moment the broker may not have heard, and tell the one that was deleted.
        wait_until(lambda: topic_id() not in {"", *known}, "the topic is there")
        known.append(topic_id())

    def fill(self, topic: str, count: int) -> None:
        """Each value tells its incarnation. A producer that knew the topic before would not notice."""
        source = Source(topic, self.ids[topic][-1], 0)
        values = self.published.setdefault(source, [])
        producer: Any = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        more = [f"{source.topic_id}-{len(values) + at}".encode() for at in range(count)]
        for value in more:
            producer.produce(topic, value, partition=0)
        assert producer.flush(60) == 0
        values += more

    def again(self, topic: str, count: int) -> float:
        """Deletes, makes and fills it again; how long that took, in ms."""
        began = time.monotonic()
        self.admin.delete_topics([topic])
        while True:
            try:
                self.make(topic)
                break
            except TopicAlreadyExistsError:
                pass  # still
        self.fill(topic, count)
        return (time.monotonic() - began) * 1000

    def stamped(self, settings: Settings) -> dict[Source, dict[int, int]]:
        """Of each incarnation, crc by offset; fails where n or g of a topic is not as it must be."""
        found: dict[Source, dict[int, int]] = {}
        counts: dict[str, list[tuple[int, int]]] = {}
        for _, partitions in sorted(read_log(settings).batches().items()):
            for stamped in partitions.values():
                rows = stamped.rows
                for row in range(len(rows)):
                    source, offset = stamped.sources[int(rows.source[row])], int(rows.offset[row])
                    assert offset not in found.setdefault(source, {})
                    found[source][offset] = int(rows.crc[row])
                    counts.setdefault(source.topic, []).append((int(rows.g[row]), int(rows.n[row])))
        for topic, places in counts.items():
            assert [n for _, n in sorted(places)] == list(range(1, len(places) + 1)), topic
        return found

    def judge(self, settings: Settings, topic: str) -> None:
        """The last incarnation is stamped whole; of those before it a beginning, and the rest is told as lost."""
        stamped = self.stamped(settings)
        told = {(one.topic, one.topic_id): one for one in read_log(settings).answers if isinstance(one, Retired)}
        lengths = [len(self.published.get(Source(topic, topic_id, 0), [])) for topic_id in self.ids[topic]]
        for number, topic_id in enumerate(self.ids[topic]):
            source = Source(topic, topic_id, 0)
            values, got = self.published.get(source, []), stamped.get(source, {})
            assert got == {offset: crc32(values[offset]) for offset in range(len(got))}
            if number + 1 == len(self.ids[topic]):
                assert len(got) == len(values)
            elif got:
                lost = told[topic, topic_id].lost.get(0)
                # A look asks by name: it may have seen how far a later one goes.
                assert lost is None or (lost[0] == len(got) and lost[1] <= max(lengths[number:]))


@pytest.fixture
def world(broker: LocalBroker, kafka_admin: KafkaAdminClient) -> World:
    return World(kafka_admin, broker.bootstrap_servers)


@pytest.fixture
def domain(unique_name: Callable[[str], str]) -> str:
    return unique_name("topics")


def until_stamped(sequencer: Sequencer, world: World, *sources: Source) -> None:
    def done() -> bool:
        sequencer.wait(0)
        found = world.stamped(sequencer.settings)
        return all(len(found.get(source, {})) == len(world.published[source]) for source in sources)

    wait_until(done, "all published is stamped", bound_s=BOUND_S)


def record_of(settings: Settings) -> DomainRecord:
    return DomainRecord.decode((Path(settings.checkpoint_dir) / RECORD).read_text(encoding="utf-8"), "here")


def test_a_topic_that_is_made_again_is_another_one_of_the_same_name(
    world: World, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    a, b = f"{domain}.e.a", f"{domain}.e.b"
    world.make(a)
    world.make(b)
    keys = tmp_path / "control-keys"
    keys.write_text("k" * 40)  # the job's own request to retire a topic must be signed as anybody's
    settings = settings_for(
        domain, world.servers, tmp_path, topic_pattern=f"{domain}[.]e[.].*", control_key_file=str(keys)
    )
    with Sequencer(settings, spark=spark) as sequencer:
        world.fill(a, 5)
        world.fill(b, 2)
        until_stamped(sequencer, world, *world.published)
        world.again(a, 3)
        world.fill(b, 2)
        until_stamped(sequencer, world, Source(a, world.ids[a][1], 0), Source(b, world.ids[b][0], 0))
        wait_until(lambda: any(isinstance(one, Retired) for one in read_log(settings).answers), "told", bound_s=BOUND_S)
        wait_until(
            lambda: {topic.state for topic in record_of(settings).topics} == {"read", "retired"},
            "noted",
            bound_s=BOUND_S,
        )
        sequencer.wait(0)
    (retired,) = [one for one in read_log(settings).answers if isinstance(one, Retired)]
    assert (retired.topic, retired.topic_id, dict(retired.lost)) == (a, world.ids[a][0], {})
    world.again(a, 4)  # while nothing runs
    with Sequencer(settings, spark=spark) as sequencer:
        until_stamped(sequencer, world, Source(a, world.ids[a][2], 0))
    world.judge(settings, a)
    world.judge(settings, b)


def test_topics_made_again_while_they_are_read_are_never_mixed_up(
    world: World, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    """Events are under way at each deletion: some are planned, some are read, some nobody has seen."""
    a, b = f"{domain}.e.a", f"{domain}.e.b"
    world.make(a)
    world.make(b)
    settings = settings_for(
        domain, world.servers, tmp_path, topic_pattern=f"{domain}[.]e[.].*", max_events_per_batch=40
    )
    with Sequencer(settings, spark=spark) as sequencer:
        for race in range(RACES):
            world.fill(a, 100 + 37 * race)
            world.fill(b, 10)
            world.again(a, 20)
            sequencer.wait(0)
        until_stamped(sequencer, world, Source(a, world.ids[a][-1], 0), Source(b, world.ids[b][0], 0))
    world.judge(settings, a)
    world.judge(settings, b)


def test_topics_made_again_in_a_moment_lose_nothing_that_was_published_to_the_new_ones(
    world: World, spark: SparkSession, domain: str, tmp_path: Path
) -> None:
    """Sooner than anybody looks at topics; and they grow past the ends of those before, or stay behind them."""
    topics = [f"{domain}.e.{number}" for number in range(AT_ONCE)]
    settings = settings_for(domain, world.servers, tmp_path, topic_pattern=f"{domain}[.]e[.].*", topic_poll_s=5.0)
    for topic in topics:
        world.make(topic)
    with Sequencer(settings, spark=spark) as sequencer:
        for topic in topics:
            world.fill(topic, 3)
        until_stamped(sequencer, world, *world.published)
        for number in range(ROUNDS * AT_ONCE):
            world.again(topics[number % AT_ONCE], 1 + 3 * number % 7)
            if number % AT_ONCE == AT_ONCE - 1:
                until_stamped(sequencer, world, *world.published)
    assert world.stamped(settings) == {
        source: {offset: crc32(value) for offset, value in enumerate(values)}
        for source, values in world.published.items()
    }
    for topic in topics:
        world.judge(settings, topic)


@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_deleted_topic_stops_the_job_where_it_was_told_so(
    world: World, spark: SparkSession, domain: str, tmp_path: Path, again: bool
) -> None:
    a, b = f"{domain}.a", f"{domain}.b"
    world.make(a)
    world.make(b)
    settings = settings_for(domain, world.servers, tmp_path, topics=(a, b), on_topic_deleted="stop")
    with Sequencer(settings, spark=spark) as sequencer:
        world.fill(a, 1)
        until_stamped(sequencer, world, Source(a, world.ids[a][0], 0))
        if again:
            world.again(a, 2)
        else:
            world.admin.delete_topics([a])
        with pytest.raises(StateError, match=f"topic {a} was deleted"):
            assert sequencer.wait(BOUND_S)
    words = "was deleted and created again" if again else "does not exist any more"
    with pytest.raises(PreflightFailed, match=f"topic {a} .*{words}"):
        Sequencer(settings, spark=spark).start()
    lenient = settings.model_copy(update={"on_topic_deleted": "retire"})
    with Sequencer(lenient, spark=spark) as sequencer:
        world.fill(b, 3)
        until_stamped(sequencer, world, *([Source(a, world.ids[a][1], 0)] if again else []), *world.published)
    world.judge(settings, b)


def test_a_topic_is_retired_by_hand(world: World, spark: SparkSession, domain: str, tmp_path: Path) -> None:
    a, b = f"{domain}.a", f"{domain}.b"
    world.make(a)
    world.make(b)
    settings = settings_for(domain, world.servers, tmp_path, topics=(a, b))
    with capture_logs() as logs, Sequencer(settings, spark=spark) as sequencer:
        world.fill(a, 2)
        until_stamped(sequencer, world, *world.published)
        done = CliRunner().invoke(build_app(), ["topics", "retire", a, "-d", domain, "-b", world.servers])
        assert (done.exit_code, done.output.split(" (id")[0]) == (0, f"Retired {a}"), done.output
        wait_until(lambda: "retired" in {topic.state for topic in record_of(settings).topics}, "it is noted")
        world.fill(a, 5)
        world.fill(b, 2)
        until_stamped(sequencer, world, Source(b, world.ids[b][0], 0))
    assert [line["topic"] for line in logs if line["event"] == "topic retired"] == [a]
    assert len(world.stamped(settings)[Source(a, world.ids[a][0], 0)]) == 2
    with Sequencer(settings.model_copy(update={"topics": (b,)}), spark=spark) as sequencer:
        world.fill(b, 1)
        until_stamped(sequencer, world, Source(b, world.ids[b][0], 0))
    assert len(world.stamped(settings)[Source(a, world.ids[a][0], 0)]) == 2
