"""What `totalorder bench subscriber` makes of what it saw."""

from collections.abc import Sequence

import pytest

from totalorder.bench.subscriber.command import _skewed, summary, tables
from totalorder.bench.subscriber.readers import READERS, Reader, Reading

ALONE = Reader(client="kafka-python", face="poll", is_ordered=False)
BATCHES = Reader(client="kafka-python", face="poll_batch", is_ordered=True)


def reading(*, cpu_s: float, wall_s: float = 2.0) -> Reading:
    return Reading(events=1_000, cpu_s=cpu_s, wall_s=wall_s, first_s=0.5, most_mb=100.0, idle=0.004)


def found() -> dict[str, dict[Reader, Sequence[Reading]]]:
    of_all: dict[Reader, Sequence[Reading]] = {reader: [reading(cpu_s=1.0)] for reader in READERS}
    return {"even": of_all | {ALONE: [reading(cpu_s=0.1), reading(cpu_s=0.3), reading(cpu_s=0.2)]}}


def test_a_subscriber_is_compared_with_the_client_that_it_reads_by() -> None:
    figures = summary(found())["even"]
    assert figures["alone_kafka-python_poll"]["per_cpu_s"] == pytest.approx(5_000), "the median of three turns"
    assert "of_client" not in figures["alone_kafka-python_poll"]
    assert figures["ordered_kafka-python_poll_batch"]["of_client"] == pytest.approx(0.2)
    assert figures["ordered_kafka-python_poll_batch"]["aim"] == 0.8
    assert figures["ordered_confluent_poll_batch"]["of_client"] == pytest.approx(1.0)


def test_every_reader_has_its_row_in_each_table() -> None:
    rates, rest = tables(found())
    assert [row[0] for row in rates.rows] == [reader.label for reader in READERS] == [row[0] for row in rest.rows]
    row = dict(zip(rates.columns, rates.rows[READERS.index(BATCHES)], strict=True))
    assert row == {
        "reader": "Subscriber, kafka-python poll_batch",
        "per CPU second": "1,000",
        "of alone (aim)": "0.20 (0.8)",
        "per second": "500",
    }
    assert rest.rows[0][1:] == ("0.50", "100", "0.4%")


def test_of_skewed_topics_the_first_has_nearly_all() -> None:
    turn = _skewed(("e", "f", "g", "h"))
    assert (len(turn), turn.count("e"), set(turn)) == (32, 29, {"e", "f", "g", "h"})
