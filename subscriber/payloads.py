"""Deserializers: what `deserializer=` takes, any function that makes a payload of an event.

They are called where `payload` is asked for, in the thread or the loop of who asks.
"""

import json as _json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import urlsplit

from totalorder.errors import EnvironmentProblem
from totalorder.subscriber.event import Event, told

if TYPE_CHECKING:
    from confluent_kafka.serialization import SerializationContext

P = TypeVar("P")


def json(event: Event) -> Any:
    """The value as JSON, by Python's own reader; a null value is JSON's null, None."""
    return _json.loads(_text(event))


@overload
def msgspec(types: type[P]) -> Callable[[Event], P]: ...
@overload
def msgspec(types: Mapping[str, Any]) -> Callable[[Event], Any]: ...
def msgspec(types: Any) -> Callable[[Event], Any]:
    """The value as JSON of a type, which is checked: a msgspec.Struct, a dataclass, or what else msgspec knows.

    `types`: one for all topics, or a table by pub/sub topic. A null value is JSON's null: it can be read by a type that
    has None. Raises EnvironmentProblem without the package msgspec (the extra `msgspec`).
    """
    try:
        from msgspec.json import Decoder
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            "payloads.msgspec needs the package msgspec, which is not installed",
            remedy="pip install 'totalorder[msgspec]'",
        ) from error
    if not isinstance(types, Mapping):
        decode = Decoder(types).decode
        return lambda event: decode(_text(event))
    decoders = {topic: Decoder(type_) for topic, type_ in types.items()}

    def read(event: Event) -> Any:
        decoder = decoders.get(event.topic)
        if decoder is None:
            raise LookupError(f"payloads.msgspec was given no type for the topic {event.topic!r}")
        return decoder.decode(_text(event))

    return read


def confluent(deserializer: "Callable[[bytes | None, SerializationContext], P]") -> Callable[[Event], P]:
    """What a deserializer of confluent-kafka makes of the value: Avro's, Protobuf's or JSON's with a schema registry.

    It asks the registry for each topic and each schema once, and blocks so long: with AsyncSubscriber, ask for
    `payload` in a thread (asyncio.to_thread). Give confluent's SchemaRegistryClient a `timeout`: without one it waits
    for ever. A null value is None. The extra `registry` has all that confluent's deserializers need.
    """
    from confluent_kafka.serialization import MessageField, SerializationContext

    def read(event: Event) -> P:
        context = SerializationContext(event.kafka_topic, MessageField.VALUE, list(event.headers))
        try:
            return deserializer(event.value, context)
        except Exception as error:
            if (registry := _asked_by(error)) is None:
                raise
            raise ConnectionError(f"the schema registry at {registry} did not answer: {told(error)}") from error

    return read


def _asked_by(error: Exception) -> str | None:
    """Host and port of a question by HTTP that had no answer: its own words leave them out."""
    url = getattr(getattr(error, "request", None), "url", None)
    return None if url is None else urlsplit(str(url)).netloc.rpartition("@")[2]


def _text(event: Event) -> bytes:
    return b"null" if event.value is None else event.value
