"""Who writes to Kafka in a simulated world, beside the job and the subscribers; and who makes topics there."""

from typing import TYPE_CHECKING

from sim_lives import START_MS

from totalorder.subscriber.transport import Partition

if TYPE_CHECKING:
    from sim_world import World

DECADES_MS = 10**12
_JUNK = [
    b"junk",
    b"",
    b"{}",
    b"[1]",
    b"\xff\xfe",
    b'{"v":2,"kind":"renew","id":"s0","generation":1,"nonce":"x"}',
    b'{"v":1,"kind":"renew","id":"s0","generation":1,"nonce":"x"}',
    b'{"v":1,"kind":"unsubscribe","id":"s1","generation":1,"nonce":"x"}',
    b'{"v":1,"kind":"unknown","id":"s0"}',
    b'{"v":1,"kind":"claim","incarnation":1,"owner":"simulated"}',
    b'{"v":1,"kind":"claim","incarnation":1,"owner":"simulated","more":1}',
]


class Producers:
    """Those who publish to one Kafka topic have one clock, which may be off."""

    def __init__(self, world: "World") -> None:
        self._world, self._rng = world, world.rng
        off_ms = [0, 2_000, -2_000, -DECADES_MS] if world.has("clocks") else [0]
        self._clocks_ms = {name: self._rng.choice(off_ms) for name in world.kafka_topics}
        self._count = self._filled = 0

    def publish(self) -> None:
        """An event, with or without a topic."""
        rng, world = self._rng, self._world
        self._count += 1
        topic = rng.choice(world.topics)
        kafka_topic = topic if world.domain.topic_by == "topic" else rng.choice(world.kafka_topics)
        if kafka_topic not in world.kafka.topics:
            return
        at = Partition(kafka_topic, self._partition_of(world.kafka.topics[kafka_topic]))
        name: bytes | None = topic.encode()
        if rng.random() < 0.1:
            name = rng.choice([None, b"", b"\xff", b"nobody"])
        now_ms = START_MS + round(world.now * 1000) + self._clocks_ms[kafka_topic]
        times = [now_ms, now_ms - rng.randint(0, 3000), 0, now_ms + DECADES_MS] if world.has("clocks") else [now_ms]
        world.kafka.append(
            at,
            key=name if world.domain.topic_by == "key" else None,
            value=None if rng.random() < 0.1 else f"{self._count}".encode(),
            headers=[("t", b"first"), ("t", name), ("u", b"last")] if world.domain.topic_by == "header:t" else [],
            timestamp_ms=rng.choice(times),
        )
        if world.has("gaps") and rng.random() < 0.1:
            world.kafka.skip(at, rng.randint(1, 3))

    def _partition_of(self, partitions: int) -> int:
        """Any; in lopsided worlds one for a while, then another, in which there was nothing yet, or not for long."""
        if not self._world.has("lopsided"):
            return self._rng.randrange(partitions)
        if self._rng.random() < 0.1:
            self._filled += 1
        return self._filled % partitions

    def begin_or_end_transaction(self) -> None:
        """What is written meanwhile is seen at its end, or never."""
        kafka = self._world.kafka
        if kafka.held and self._rng.random() < 0.6:
            kafka.release(self._rng.choice(list(kafka.held)), lambda _: self._rng.random() < 0.3)
        else:
            topic = self._rng.choice(self._world.kafka_topics)
            if topic in kafka.topics:
                kafka.hold(Partition(topic, self._rng.randrange(kafka.topics[topic])))

    def write_junk(self) -> None:
        """To control: what somebody wrote before, or something that is no request."""
        control = Partition(self._world.names.control, 0)
        log = self._world.kafka.logs.get(control, [])
        again = self._rng.choice(log).value if log and self._rng.random() < 0.5 else None
        self._world.kafka.append(control, value=again if again is not None else self._rng.choice(_JUNK))

    def lose_beginnings(self) -> None:
        """Retention was there before the job: some partitions have lost their first records."""
        kafka = self._world.kafka
        for topic in self._world.kafka_topics:
            for number in range(kafka.topics[topic]):
                at = Partition(topic, number)
                if self._rng.random() < 0.5:
                    kafka.skip(at, self._rng.randint(1, 9))
                    kafka.trim(at, kafka.end(at))

    def grow(self) -> None:
        """The job is given another Kafka topic, or one gets another partition."""
        world = self._world
        if world.to_admit:
            self.admit()
        elif self._rng.random() < 0.2:
            grown = self._rng.choice(world.kafka_topics)
            world.kafka.create(grown, world.kafka.topics.get(grown, 0) + 1)

    def admit(self) -> None:
        """The job is given another Kafka topic, if there is one that it has not."""
        if self._world.to_admit:
            self._world.sequencer.event_topics.append(self._world.to_admit.pop())

    def delete_or_create(self) -> None:
        """The job may notice at once, or after it has read what has the name now."""
        kafka, topic = self._world.kafka, self._rng.choice(self._world.kafka_topics)
        if topic in kafka.topics:
            kafka.delete(topic)
        if self._rng.random() < 0.7:
            kafka.create(topic, self._rng.randint(1, 3))
            for _ in range(self._rng.randint(0, 4)):
                self.publish()
