"""The benchmark of bytes: the paper's workload, the byte counter against the broker's own files, scalar stamps."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from totalorder.bench.bytes.command import Plan, encoded, measure
from totalorder.bench.bytes.cuts_log import LOOK_MS, CutsLog
from totalorder.bench.bytes.delivery import delivery_cost
from totalorder.bench.bytes.scalar import without_entries
from totalorder.bench.bytes.stamps_log import StampsLog
from totalorder.bench.domain import EVENT_PARTITIONS, Domain
from totalorder.bench.workload import Workload
from totalorder.broker import LocalBroker
from totalorder.sequencer.wire.codec import StampsAssembler
from totalorder.sequencer.wire.cuts import Cut, CutEncoder, CutsAssembler


def small(*, m: int = 2, events: int = 3_000) -> Domain:
    workload = Workload(topics=100, shape=0.349)
    domain = Domain(workload, min_subscriptions=m, events=events)
    domain.subscribe(workload.subscriptions(200, 10))
    return domain


@pytest.mark.parametrize(("shape", "group", "advanced"), [(0.349, 45.4, 17.8), (0.901, 17.7, 4.1)])
def test_the_workload_is_the_papers(shape: float, group: float, advanced: float) -> None:
    workload = Workload(topics=1_000, shape=shape)
    domain = Domain(workload, min_subscriptions=2, events=40_000)
    domain.subscribe(workload.subscriptions(10_000, 10))
    assert domain.group_sizes().mean() == pytest.approx(group, rel=0.02)

    domain.run(domain.next_batch(30_000))
    stamps = [stamped.rows for stamped in domain.run(domain.next_batch(10_000)).stamps]
    entries = np.concatenate([np.diff(rows.entry_start)[~rows.keyframe] for rows in stamps])
    assert entries.mean() == pytest.approx(advanced, rel=0.05)


def test_events_fill_every_partition_in_offsets_and_time_without_a_gap() -> None:
    domain = small()
    batches = [domain.next_batch(1_000) for _ in range(2)]
    for partition in range(EVENT_PARTITIONS):
        of = [batch.partition == partition for batch in batches]
        offsets = np.concatenate([batch.offset[rows] for batch, rows in zip(batches, of, strict=True)])
        times = np.concatenate([batch.timestamp_ms[rows] for batch, rows in zip(batches, of, strict=True)])
        assert len(offsets) > 100
        assert np.array_equal(offsets, np.arange(len(offsets)))
        assert (np.diff(times) >= 0).all()
    assert batches[0].timestamp_ms.max() <= batches[0].time_ms - 1 <= batches[1].timestamp_ms.min()


def test_a_scalar_batch_is_the_same_without_entries_and_holds_its_place_in_the_chain() -> None:
    domain = small()
    for stamped in domain.run(domain.next_batch(500)).stamps:
        bare = without_entries(stamped, "before")
        assert len(stamped.rows.entry_topic) > 0
        assert len(bare.rows.entry_topic) == 0
        assert set(bare.names) == set(bare.rows.topic.tolist()) < set(stamped.names)
        for column in ("topic", "n", "g", "source", "offset", "crc"):
            assert np.array_equal(getattr(bare.rows, column), getattr(stamped.rows, column)), column
        [(partition, record)] = encoded([bare])
        read = StampsAssembler(domain="bench", partition=partition).add(record.value, dict(record.headers))
        assert read is not None
        assert (read.previous_digest, read.digest) == ("before", bare.digest)


def test_both_kinds_deliver_the_same_and_only_entries_let_a_subscriber_go_on_before_the_last_stamps() -> None:
    cost = delivery_cost(Workload(topics=100, shape=0.349), subscribers=200, size=300, batches=2, readers=5)
    assert cost.vector.delivered == cost.scalar.delivered > 0.2
    assert cost.vector.early > 0.05
    assert cost.scalar.early == 0
    assert min(cost.vector.decode_us, cost.vector.gate_us, cost.scalar.decode_us, cost.scalar.gate_us) > 0


@pytest.mark.broker
def test_the_size_of_the_log_is_what_lies_in_the_brokers_files(broker: LocalBroker) -> None:
    domain = small()
    with StampsLog(broker.bootstrap_servers, "bytes-counted") as log:
        assert log.size() == 0
        values = 0
        for size in (50, 500):
            records = encoded(domain.run(domain.next_batch(size)).stamps)
            log.write(records)
            values += sum(len(record.value) for _, record in records)
        files = Path(broker.data_dir, "kafka").glob("bytes-counted.stamps-*/*.log")
        assert log.size() == sum(file.stat().st_size for file in files) > values


@pytest.mark.broker
def test_what_is_measured_is_told_apart(broker: LocalBroker) -> None:
    plan = Plan(subscribers=200, settle=500, batches={100: 2, 2_500: 1})
    measured = measure(Workload(topics=100, shape=0.349), 2, plan, broker.bootstrap_servers)
    few, many = measured.by_batch[100], measured.by_batch[2_500]
    assert few.full_vector > few.vector > few.scalar > few.envelope > 0
    assert few.vector > many.vector > many.scalar > many.envelope > 0
    assert few.envelope == pytest.approx(25 * many.envelope, rel=0.1)  # four records a batch in both
    assert measured.mean_group > 1
    assert few.scalar > few.cuts > many.cuts > 0


@pytest.mark.broker
def test_cuts_are_of_the_batches_and_can_be_read(broker: LocalBroker) -> None:
    domain = small()
    with CutsLog(broker.bootstrap_servers, "bytes-cuts") as log:
        assembler, encoder, found = CutsAssembler(domain="bytes-cuts"), CutEncoder(), list[Cut]()
        for size, is_backlog in ((50, False), (400, False), (500, True)):
            batch = domain.next_batch(size)
            cut = log.cut_of(batch, is_backlog=is_backlog)
            record = encoder.encode(cut)
            found += assembler.add(record.value, dict(record.headers))
            for partition in range(EVENT_PARTITIONS):
                offsets = batch.offset[batch.partition == partition]
                begin, end = int(cut.begins[1 + partition]), int(cut.ends[1 + partition])
                assert list(range(begin, end)) == sorted(offsets.tolist())
            slices = 1 if is_backlog else len(set((batch.timestamp_ms // LOOK_MS).tolist()))
            assert len(cut.slice_start) - 1 == slices
        log.write(domain.next_batch(100), is_backlog=False)
        assert log.size() > 0
    assert [cut.cut for cut in found] == [1, 2, 3]


@pytest.mark.broker
def test_the_command_answers_with_one_json_object(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "totalorder.cli", "bench", "bytes", "--smoke", "--json", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    data = json.loads(done.stdout)
    assert data.keys() == {"0.349", "0.901"}
    for of in data.values():
        assert of["full_vector"] > of["vector"] > of["scalar"] > 0
        assert of["vector"] == of["by_batch"]["2500"]["vector"]
        assert of["m1"]["vector"] > 0
    assert (tmp_path / "bytes.png").read_bytes().startswith(b"\x89PNG")
