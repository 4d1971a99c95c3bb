"""A service in asyncio: it follows prices in one task, and answers questions about them in others.

    python asyncio_service.py 8080 localhost:9092
    echo apple | nc localhost 8080

Its state is in memory, so it begins at the earliest event that Kafka has, each time, and answers "not yet" until it has
caught up with what was there when it started. Keys name the goods, values are JSON: {"number": 5}.
"""

import argparse
import asyncio
import json
import signal

import totalorder as to

prices: dict[str, int] = {}


async def follow(subscriber: to.AsyncSubscriber[to.Event]) -> None:
    async for event in subscriber:
        if event.key is not None:
            prices[event.key.decode()] = json.loads(event.value or b"{}")["number"]
        await subscriber.ack(event)


async def main(port: str, servers: str) -> None:
    async with to.AsyncSubscriber(
        ["prices"], id="price-service", domain="shop", bootstrap_servers=servers, start="earliest", save_interval_s=1
    ) as subscriber:
        present = subscriber.granted_g

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            good = (await reader.readline()).decode().strip()
            is_current = subscriber.position.g >= present
            writer.write(f"{prices.get(good)}\n".encode() if is_current else b"not yet\n")
            writer.close()

        for each in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(each, subscriber.stop)
        async with await asyncio.start_server(answer, "127.0.0.1", int(port)):
            await follow(subscriber)


if __name__ == "__main__":
    given = argparse.ArgumentParser()
    for name in ("port", "servers"):
        given.add_argument(name)
    asyncio.run(main(**vars(given.parse_args())))
