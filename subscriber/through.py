"""A compacted partition, read as far as it goes just now."""

from collections.abc import Callable, Iterator

from totalorder.errors import BrokerUnavailable
from totalorder.subscriber.transport import Partition, Transport


def through(
    transport: Transport, partition: Partition, came: Callable[[], int], *, once: bool = False
) -> Iterator[None]:
    """Gives way while there is something to read, and ends when of each key the newest record has been read that was
    there when the partition's end was asked for last. `came` counts the partition's records; `once`: see Transport.

    Compaction may have taken a record for the sake of a newer one behind an end that was asked for before. So another
    end is asked for, until nothing is missing between the two. What others write meanwhile puts that off no further:
    an end that nothing has come behind would never be seen where they write all the time.
    """
    is_whole = False
    while not is_whole:
        begin, before = transport.position(partition), came()
        end = transport.end_offsets([partition], once=once)[partition]
        while transport.position(partition) < end:
            yield
        is_whole = came() - before == transport.position(partition) - begin


def unread_yet(topic: str, within_s: float, setting: str) -> BrokerUnavailable:
    """What is there of a topic does not come, though brokers answer; `setting` says how long that is waited for."""
    return BrokerUnavailable(
        f"{topic} could not be read to its end within {within_s:g} s",
        remedy=f"Look at the broker, and at what else this machine has to do; {setting} waits longer",
    )
