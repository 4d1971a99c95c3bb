"""What is owed of an event partition, beside a plain list."""

import random
import tracemalloc

import numpy as np
import pytest

from totalorder.subscriber.delivery.owed import Owed


@pytest.mark.parametrize("seed", range(20))
def test_it_does_what_a_list_does(seed: int) -> None:
    """Long enough for room to be made many times, with anything delivered and acknowledged by then."""
    rng, owed = random.Random(seed), Owed()
    rows: list[tuple[int, int, int]] = []
    acknowledged = delivered = offset = 0
    for _ in range(200):
        match rng.choice(("add", "add", "deliver", "acknowledge")):
            case "add":
                more = []
                for _ in range(rng.randint(1, 12)):
                    offset += rng.randint(1, 3)
                    more.append((offset, rng.randint(0, 3), 10 * offset))
                # Several stamps partitions tell of one event partition, each in its own order.
                parts = [more[::2], more[1::2]] if len(more) > 1 else [more]
                for part in rng.sample(parts, len(parts)):
                    assert owed.add(np.array(part, dtype=np.int64).T) is None
                rows += more
            case "deliver":
                count = rng.randint(0, len(rows) - delivered)
                owed.deliver(count)
                delivered += count
            case "acknowledge":
                count = rng.randint(0, delivered - acknowledged)
                owed.acknowledge(count)
                acknowledged += count
        pending = rows[delivered:]
        assert owed.pending.T.tolist() == [list(row) for row in pending]
        assert owed.next == (pending[0][0] if pending else None)
        assert owed.oldest == (rows[acknowledged][0] if acknowledged < len(rows) else None)
        asked = [rng.randint(0, offset + 3) for _ in range(5)]
        assert owed.has(np.array(asked, dtype=np.int64)).tolist() == [at in {row[0] for row in pending} for at in asked]
        assert all(owed.topic_of(row[0]) == row[1] for row in pending[:3])


def test_offsets_and_g_that_do_not_rise_together_are_told() -> None:
    owed = Owed()
    assert owed.add(np.array([[3, 7], [0, 0], [30, 70]])) is None
    wrong = owed.add(np.array([[5], [1], [80]]))
    assert wrong is not None
    assert [column.tolist() for column in wrong] == [[5, 1, 80], [7, 0, 70]]


def test_what_owes_nothing_keeps_no_room() -> None:
    """A subscriber may have thousands of partitions, each of which was behind once."""
    owed, count = Owed(), 100_000
    tracemalloc.start()
    try:
        owed.add(np.arange(3 * count).reshape(3, count))
        owed.deliver(count)
        owed.acknowledge(count - 1)
        assert tracemalloc.get_traced_memory()[0] > count, "else it is not seen"
        owed.acknowledge(1)
        assert tracemalloc.get_traced_memory()[0] < count
    finally:
        tracemalloc.stop()
