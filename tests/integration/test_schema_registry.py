"""Avro, Protobuf and JSON by confluent's own (de)serializers, with a registry that speaks its protocol, on a broker."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from kafka import KafkaProducer, TopicPartition
from schema_registry import SchemaRegistry
from sim_kafka_sequencer import ThreadSequencer

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import HandlerFailed, PayloadError
from totalorder.subscriber import AsyncSubscriber, Reader, Retry, Subscriber, TypedEvent, payloads
from totalorder.subscriber.clients import Client
from totalorder.subscriber.parked import Parked
from totalorder.subscriber.transport import Record

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]
DOMAIN = "typed"
BOUND_S = 60
EACH = 10


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, *fields]})


FIRST, SECOND = record(), record({"name": "note", "type": "string", "default": "none"})
AS_JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})


def message() -> Any:
    """What protoc makes of `message Order { int64 id = 1; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="id", number=1, type=3, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


OrderMessage = message()


class Shop:
    """Some topics of the domain, and a registry."""

    def __init__(self, servers: str, producer: KafkaProducer, registry: SchemaRegistry, topics: list[str]) -> None:
        self.servers, self.producer, self.registry, self.topics = servers, producer, registry, topics
        self.given = self.client()

    def client(self, timeout_s: float = 20) -> SchemaRegistryClient:
        """One that has asked nothing yet."""
        return SchemaRegistryClient({"url": self.registry.url, "max.retries": 0, "timeout": timeout_s})

    def publish(self, topic: str, value: bytes | None, headers: Any = ()) -> None:
        self.producer.send(topic, value, key=b"k", headers=list(headers)).get(BOUND_S)

    def of(self, serializer: Any, value: Any, topic: str, headers: Any = None) -> bytes:
        made: bytes = serializer(value, SerializationContext(topic, MessageField.VALUE, headers))
        return made

    def avro(self, schema: str, **conf: Any) -> Any:
        return AvroSerializer(self.given, schema, conf={key.replace("_", "."): each for key, each in conf.items()})

    @property
    def settings(self) -> dict[str, Any]:
        return {"domain": DOMAIN, "bootstrap_servers": self.servers}

    def subscriber(self, name: str, deserializer: Any, **settings: Any) -> Subscriber[TypedEvent[Any]]:
        """The one of this name among those of the test."""
        identity = f"{name}-of-{self.topics[0]}"
        return Subscriber(self.topics, id=identity, deserializer=deserializer, **self.settings, **settings)

    def begun(self) -> None:
        """From here on the subscriber s receives all."""
        with self.subscriber("s", None):
            pass


@pytest.fixture(scope="module")
def topics(broker: LocalBroker, kafka_admin: Any) -> Iterator[Iterator[str]]:
    """Topics of a domain of this module's own, each of one partition and for one test."""
    names = [f"{DOMAIN}-{number}" for number in range(24)]
    kafka_admin.create_topics({name: {"num_partitions": 1} for name in names})
    kafka_admin.wait_for_topics(names)
    with ThreadSequencer(broker.bootstrap_servers, DOMAIN, names):
        yield iter(names)


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as made:
        yield made


MakeShop = Callable[[int], Shop]


@pytest.fixture
def shop_of(broker: LocalBroker, producer: KafkaProducer, topics: Iterator[str]) -> Iterator[MakeShop]:
    """`shop_of(2)`: a shop of two topics."""
    with SchemaRegistry() as registry:
        yield lambda count: Shop(broker.bootstrap_servers, producer, registry, [next(topics) for _ in range(count)])


def plain(payload: Any) -> Any:
    return {"id": payload.id} if isinstance(payload, OrderMessage) else payload


def taken(subscriber: Subscriber[TypedEvent[Any]], count: int) -> list[TypedEvent[Any]]:
    """So many events by `run`; their payloads are asked for in the handler."""
    events: list[TypedEvent[Any]] = []

    def handle(event: TypedEvent[Any]) -> None:
        assert event.payload is not None
        events.append(event)
        if len(events) == count:
            subscriber.stop()

    subscriber.run(handle)
    return events


def test_three_formats_of_three_topics_come_typed_and_in_order(shop_of: MakeShop, client: Client) -> None:
    """A Subscriber and a Reader; the registry is asked for each topic and each schema once."""
    shop = shop_of(3)
    avro, protobuf, as_json = shop.topics
    serializers: dict[str, Any] = {
        avro: shop.avro(FIRST),
        protobuf: ProtobufSerializer(OrderMessage, shop.given, {"use.deprecated.format": False}),
        as_json: JSONSerializer(AS_JSON, shop.given),
    }

    def deserializer() -> Any:
        registry = shop.client()
        by_topic: dict[str, Any] = {
            avro: payloads.confluent(AvroDeserializer(registry)),
            protobuf: payloads.confluent(
                ProtobufDeserializer(OrderMessage, {"use.deprecated.format": False}, registry)
            ),
            as_json: payloads.confluent(JSONDeserializer(None, schema_registry_client=registry)),
        }
        return lambda event: by_topic[event.topic](event)

    with shop.subscriber("s", deserializer(), client=client) as subscriber:
        for number in range(EACH):
            for topic in shop.topics:
                value = OrderMessage(id=number) if topic == protobuf else {"id": number}
                shop.publish(topic, shop.of(serializers[topic], value, topic))
        shop.registry.asked.clear()
        events = taken(subscriber, 3 * EACH)
    assert len(shop.registry.asked) == 6
    assert sorted(shop.registry.asked_for) == ["1", "2", "3"]
    assert isinstance(next(each.payload for each in events if each.topic == protobuf), OrderMessage)
    assert [each.g for each in events] == sorted({each.g for each in events})
    for topic in shop.topics:
        assert [plain(each.payload) for each in events if each.topic == topic] == [{"id": n} for n in range(EACH)]

    settings = {**shop.settings, "client": client}
    for take in (list, batches):
        shop.registry.asked.clear()
        with Reader[TypedEvent[Any]](shop.topics, until="now", deserializer=deserializer(), **settings) as reader:
            read: list[TypedEvent[Any]] = take(reader)
        assert [(each.g, plain(each.payload)) for each in read] == [(each.g, plain(each.payload)) for each in events]
        assert len(shop.registry.asked) == 6


def batches(reader: Reader[TypedEvent[Any]]) -> list[TypedEvent[Any]]:
    events: list[TypedEvent[Any]] = []
    while not reader.finished:
        events += reader.poll_batch(7, 1)
    return events


def test_two_schemas_of_one_topic_are_read_as_written_or_as_the_application_wants(shop_of: MakeShop) -> None:
    shop = shop_of(1)
    (topic,) = shop.topics
    first, second = shop.avro(FIRST), shop.avro(SECOND)
    with shop.subscriber("written", payloads.confluent(AvroDeserializer(shop.client()))) as written:
        with shop.subscriber("wanted", payloads.confluent(AvroDeserializer(shop.client(), SECOND))) as wanted:
            for number in range(0, 6, 2):
                shop.publish(topic, shop.of(first, {"id": number}, topic))
                shop.publish(topic, shop.of(second, {"id": number + 1, "note": "new"}, topic))
            shop.registry.asked.clear()
            as_wanted = [each.payload for each in taken(wanted, 6)]
            assert shop.registry.asked_for == ["1", "2"]
        as_written = [each.payload for each in taken(written, 6)]
        assert shop.registry.asked_for == ["1", "2"] * 2
    new = [{"id": n, "note": "new"} if n % 2 else {"id": n} for n in range(6)]
    assert as_written == new
    assert as_wanted == [{"note": "none", **each} for each in new]


def test_an_id_in_a_header_will_do_and_no_value_is_none(shop_of: MakeShop) -> None:
    shop = shop_of(1)
    (topic,) = shop.topics
    serializer, headers = shop.avro(SECOND, schema_id_serializer=header_schema_id_serializer), [("own", b"1")]
    order = {"id": 7, "note": "five bytes at least"}  # confluent's deserializer wants more, also without a prefix
    with shop.subscriber("s", payloads.confluent(AvroDeserializer(shop.client()))) as subscriber:
        shop.publish(topic, shop.of(serializer, order, topic, headers), headers)
        shop.publish(topic, None)
        events = [subscriber.poll(BOUND_S) for _ in range(2)]
        assert [each.payload for each in events if each is not None] == [order, None]
        assert events[0] is not None
        assert [key for key, _ in events[0].headers] == ["own", "__value_schema_id"]


# --- what goes wrong ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trouble:
    """With the second of three events. What the registry is to blame for begins when the first one is done."""

    says: str
    value: bytes | None = None
    """None: a good one, of a schema that is new then."""
    begin: Callable[[SchemaRegistry], None] = lambda _: None
    heal: Callable[[SchemaRegistry], None] | None = None


def broken(registry: SchemaRegistry) -> None:
    registry.failure = 500, {"error_code": 50001, "message": "Error in the backend data store"}


def mended(registry: SchemaRegistry) -> None:
    registry.failure = None


SILENT = Trouble(
    r"ConnectionError: the schema registry at 127\.0\.0\.1:\d+ did not answer: ReadTimeout",
    begin=lambda registry: registry.answers.clear(),
    heal=lambda registry: registry.answers.set(),
)
OF_REGISTRY = {
    "broken": Trouble(r"SchemaRegistryError: Error in the backend data store \(HTTP .* 500", None, broken, mended),
    "down": Trouble(
        r"ConnectionError: the schema registry at 127\.0\.0\.1:\d+ did not answer: ConnectError: .*refused",
        begin=SchemaRegistry.stop,
        heal=SchemaRegistry.start,
    ),
    "silent": SILENT,
}
OF_VALUE = {
    "unknown id": Trouble(r"SchemaRegistryError: Schema 99 not found \(HTTP status code 404", b"\0\0\0\0\x63\x02"),
    "no magic byte": Trouble("SerializationError: Invalid magic byte", b'{"id": 1}'),
    "too short": Trouble("SerializationError: Expecting data framing", b"{}"),
    "cut off": Trouble("IndexError", b"\0\0\0\0\x01\x80"),
}
TROUBLES = OF_REGISTRY | OF_VALUE


class Troubled:
    """A shop of one topic whose subscriber `s` has three events to come, the second with a trouble."""

    def __init__(self, shop: Shop, trouble: Trouble) -> None:
        self.shop, self.trouble = shop, trouble
        (self.topic,) = shop.topics
        shop.begun()
        first, second = ({"id": 0}, {"id": 2})
        bad = shop.of(shop.avro(FIRST), first, self.topic) if trouble.value is None else trouble.value
        if trouble.value is None:
            bad = shop.of(shop.avro(SECOND), {"id": 1, "note": "new"}, self.topic)
        self.values = [shop.of(shop.avro(FIRST), first, self.topic), bad, shop.of(shop.avro(FIRST), second, self.topic)]
        for value in self.values:
            shop.publish(self.topic, value)
        self.seen: list[Any] = []
        self.failed: list[Exception] = []

    def process(self) -> Subscriber[TypedEvent[Any]]:
        client = self.shop.client(1 if self.trouble is SILENT else 20)
        return self.shop.subscriber("s", payloads.confluent(AvroDeserializer(client)))

    def run(self, last: int, heal_after: int | None = None, **choice: Any) -> None:
        """Until an event of this id is done."""
        with self.process() as subscriber:

            def handle(event: TypedEvent[Any]) -> None:
                try:
                    payload = event.payload
                except PayloadError as error:
                    self.failed.append(error)
                    if len(self.failed) == heal_after:
                        self.heal()
                    raise
                self.seen.append(payload["id"])
                if self.seen == [0]:
                    self.trouble.begin(self.shop.registry)
                if payload["id"] == last:
                    subscriber.stop()

            subscriber.run(handle, **choice)

    def heal(self) -> None:
        assert self.trouble.heal is not None
        self.trouble.heal(self.shop.registry)


@pytest.mark.parametrize("trouble", TROUBLES.values(), ids=TROUBLES)
def test_it_ends_there_and_the_event_is_still_to_come(shop_of: MakeShop, trouble: Trouble) -> None:
    """Without a choice. What is told has topic, partition, offset, reason and remedy."""
    troubled = Troubled(shop_of(1), trouble)
    name = re.escape(troubled.topic)
    with pytest.raises(HandlerFailed, match=rf"{name}#2 \({name}\[0\]@1, g \d+\).*{trouble.says}") as told:
        troubled.run(2)
    assert isinstance(told.value.__cause__, PayloadError)
    assert "retry=" in told.value.__cause__.remedy
    assert "park=" in told.value.__cause__.remedy
    if trouble.heal is not None:
        troubled.heal()
        troubled.run(2)
        assert troubled.seen == [0, 1, 2]
        return
    assert troubled.seen == [0]
    with troubled.process() as subscriber:
        rest = [subscriber.poll(BOUND_S) for _ in range(2)]
        assert [None if each is None else each.value for each in rest] == troubled.values[1:]


@pytest.mark.parametrize("trouble", OF_REGISTRY.values(), ids=OF_REGISTRY)
def test_it_is_tried_again_until_the_registry_answers(shop_of: MakeShop, trouble: Trouble) -> None:
    troubled = Troubled(shop_of(1), trouble)
    troubled.run(2, heal_after=2, retry=Retry(first_s=0.01))
    assert troubled.seen == [0, 1, 2]
    assert len(troubled.failed) == 2


def only_one_on(topic: str, servers: str) -> Parked:
    at = TopicPartition(topic, 0)
    with kafka_clients.consumer(servers) as consumer:
        consumer.assign([at])
        consumer.seek_to_beginning(at)
        (found,) = consumer.poll(timeout_ms=1_000 * BOUND_S)[at]
        assert consumer.end_offsets([at]) == {at: 1}
    return Parked.read(Record(topic, 0, 0, found.key, found.value, tuple(found.headers), found.timestamp))


@pytest.mark.parametrize("kind", ["down", "unknown id", "no magic byte"])
def test_it_is_put_aside_with_its_bytes(shop_of: MakeShop, new_topic: NewTopic, kind: str) -> None:
    trouble = TROUBLES[kind]
    troubled = Troubled(shop_of(1), trouble)
    aside = new_topic("parked", cleanup_policy="compact")
    troubled.run(2, retry=Retry(times=1, first_s=0.01), park=aside)
    if trouble.heal is not None:
        troubled.heal()
    assert troubled.seen == [0, 2]
    assert len(troubled.failed) == 2
    parked = only_one_on(aside, troubled.shop.servers)
    assert (parked.value, parked.about.n, parked.about.attempts) == (troubled.values[1], 2, 2)
    assert re.search(trouble.says, parked.about.error)


def test_in_asyncio_a_slow_registry_holds_up_who_asks_and_nobody_else(shop_of: MakeShop) -> None:
    """As the docs say, in a thread. It answers only when another task of the loop has seen that it was asked."""
    shop = shop_of(1)
    (topic,) = shop.topics
    shop.begun()
    shop.publish(topic, shop.of(shop.avro(FIRST), {"id": 7}, topic))
    shop.registry.asked.clear()
    shop.registry.answers.clear()
    seen: list[Any] = []

    async def main() -> None:
        deserializer = payloads.confluent(AvroDeserializer(shop.client()))
        async with AsyncSubscriber[TypedEvent[Any]](
            shop.topics, id=f"s-of-{topic}", deserializer=deserializer, **shop.settings
        ) as subscriber:

            async def answer() -> None:
                while not shop.registry.asked:
                    await asyncio.sleep(0.01)
                shop.registry.answers.set()

            async def handle(event: TypedEvent[Any]) -> None:
                seen.append(await asyncio.to_thread(lambda: event.payload))
                subscriber.stop()

            await asyncio.gather(answer(), subscriber.run(handle))

    asyncio.run(asyncio.wait_for(main(), BOUND_S))
    assert seen == [{"id": 7}]
