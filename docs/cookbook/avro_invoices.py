"""Invoices in Avro with a schema registry: each as the newest schema has it, whichever it was written by.

    pip install 'totalorder[registry]'
    python avro_invoices.py http://localhost:8081 localhost:9092

They are written by confluent's AvroSerializer, first as {"id": 5}, later with a currency too. ProtobufDeserializer and
JSONDeserializer go the same way; of topics with formats of their own, `deserializer=` takes a function that chooses by
event.topic. The registry is asked for each schema once. Is it away, or is a value none of Avro's, then the invoice at
hand is tried eight times more, for a minute or so, and nothing comes before it; then the process ends with an error
that names it, and the next one begins with it. `park=` would put it aside and go on.

In asyncio ask for it in a thread, since the registry is waited for: await asyncio.to_thread(lambda: event.payload).
"""

import argparse
import json
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer

import totalorder as to

INVOICE = """{"type": "record", "name": "Invoice", "fields": [
    {"name": "id", "type": "long"},
    {"name": "currency", "type": "string", "default": "EUR"}
]}"""


def handle(event: to.TypedEvent[Any]) -> None:
    print(json.dumps(event.payload), flush=True)


def main(registry: str, servers: str) -> None:
    client = SchemaRegistryClient({"url": registry, "timeout": 10})  # without a timeout it waits for ever
    deserializer = to.payloads.confluent(AvroDeserializer(client, INVOICE))
    with to.Subscriber(
        ["invoices"],
        id="invoices",
        domain="shop",
        bootstrap_servers=servers,
        start="earliest",
        deserializer=deserializer,
    ) as subscriber:
        subscriber.run(handle, retry=to.Retry(times=8))


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("registry", "servers"):
        given.add_argument(name)
    main(**vars(given.parse_args()))
