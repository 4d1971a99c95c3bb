"""What `totalorder bench figures` computes: sequencing groups, deltas, the path of the paper's timestamps, delays."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from paper_model import PaperModel

from totalorder.bench.domain import Domain
from totalorder.bench.figures.command import Found, Plan, summary as data_of, tables
from totalorder.bench.figures.live import KAFKA_TOPICS, Published, Seen, stamp_times, summary, times_of
from totalorder.bench.figures.load import Arrival
from totalorder.bench.figures.page import page
from totalorder.bench.figures.panels import draw_all
from totalorder.bench.figures.paper import SERVERS, Forwarded, forwarded, forwarded_by_site
from totalorder.bench.figures.size import (
    TimestampSize,
    co_subscriptions,
    delta_entries,
    sequencing_groups,
    timestamp_sizes,
)
from totalorder.bench.outcome import Size
from totalorder.bench.workload import SHAPES, Ints, Workload
from totalorder.errors import Error
from totalorder.sequencer.wire.codec import encode_stamps

WORKLOAD = Workload(topics=60, shape=0.349)


def groups_of(subscriptions: Ints, topics: int, m: int) -> np.ndarray:
    return sequencing_groups(co_subscriptions(subscriptions, topics), m)


@pytest.mark.parametrize("m", [1, 2])
def test_groups_and_deltas_are_the_engines(m: int) -> None:
    subscriptions = WORKLOAD.subscriptions(40, 4)
    domain = Domain(WORKLOAD, min_subscriptions=m, events=2_000)
    domain.subscribe(subscriptions)
    groups = groups_of(subscriptions, WORKLOAD.topics, m)
    assert groups.sum(axis=1).tolist() == np.maximum(domain.group_sizes(), 1).tolist()

    rank = {name: at for at, name in enumerate(domain.topics)}
    events = {}
    for stamped in domain.run(domain.next_batch(2_000)).stamps:
        rows = stamped.rows
        for row, g in enumerate(rows.g.tolist()):
            events[g] = rank[stamped.names[int(rows.topic[row])]], bool(rows.keyframe[row]), len(rows.entries(row))
    in_order = [events[g] for g in sorted(events)]
    counted = delta_entries(groups, np.array([topic for topic, _, _ in in_order])).tolist()
    deltas = [(mine, theirs) for mine, (_, keyframe, theirs) in zip(counted, in_order, strict=True) if not keyframe]
    assert len(deltas) > 1_500
    assert all(mine == theirs for mine, theirs in deltas)
    assert sum(mine for mine, _ in deltas) > len(deltas)


@pytest.mark.parametrize(("shape", "mean", "delta"), [(0.349, 45.2, 17.9), (0.901, 17.8, 4.1)])
def test_sizes_at_the_papers_leftmost_point(shape: float, mean: float, delta: float) -> None:
    two, one = timestamp_sizes(Workload(topics=1_000, shape=shape), 10_000, 10, 40_000).values()
    assert two.mean == pytest.approx(mean, rel=0.02)
    assert two.delta_entries == pytest.approx(delta, rel=0.03)
    assert two.std > two.mean
    assert one.mean > 1.5 * two.mean


def test_a_topic_alone_is_its_own_group() -> None:
    groups = groups_of(np.array([[0, 1], [0, 1], [0, 2]]), 4, 2)
    assert groups.astype(int).tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_servers_forward_what_the_papers_own_protocol_makes_them_forward() -> None:
    topics, share = 20, 20 // SERVERS
    subscriptions = Workload(topics=topics, shape=0.349).subscriptions(16, 6)
    names = [f"t{topic:02}" for topic in range(topics)]
    model = PaperModel(names)
    model.preload(**{f"s{at}": [names[topic] for topic in row] for at, row in enumerate(subscriptions.tolist())})
    out, once, per_manager = np.zeros(SERVERS), np.zeros(SERVERS), np.zeros(SERVERS)
    for topic in names:
        model.publish("e" + topic, topic)
        path = []
        while links := model.in_flight():
            model.deliver(*links[0])
            path.append(links[0][1])
        servers = [int(name.removeprefix("TM_t")) // share for name in path[:-1]]
        entries = len(model.timestamps["e" + topic])
        for server in servers:
            per_manager[server] += entries
        for server in set(servers):
            once[server] += entries
        for source, target in itertools.pairwise(servers):
            out[source] += entries if source != target else 0
    found = forwarded(groups_of(subscriptions, topics, 2), np.full(topics, 1 / topics))
    assert found.once == pytest.approx(out / once)
    assert found.per_manager == pytest.approx(out / per_manager)
    assert found.once[0] == 0 < found.per_manager[1:].min()
    assert found.per_manager.sum() < found.once.sum()


def test_the_steeper_shape_keeps_timestamps_at_their_sites() -> None:
    steep, flat = (
        forwarded_by_site(Workload(topics=1_000, shape=shape), 1_000, 10, 3).once for shape in (0.901, 0.349)
    )
    assert steep[0] == flat[0] == 0
    assert steep[1] < 0.2
    assert flat[1:].min() > 0.8
    assert (steep <= flat).all()


def test_an_event_is_found_at_the_offset_that_its_place_among_those_sent_gives_it() -> None:
    published = Published()
    published.add(["a", "b", "a"], np.array([1.0, 2.0, 3.0]))
    second = published.add(["b", "b", "a"], np.array([4.0, 5.0, 6.0]))
    assert [second[topic] for topic in KAFKA_TOPICS] == [range(2, 3), range(1, 3), range(0), range(0)]
    assert published.times_of(second).tolist() == [6.0, 4.0, 5.0]
    stamps = {("b", 1): 10.0, ("b", 2): 11.0, ("a", 2): 12.0}
    assert times_of(second, stamps).tolist() == [12.0, 10.0, 11.0]
    del stamps["b", 2]
    with pytest.raises(Error, match=r"no stamp came for the event at .*'b', 2"):
        times_of(second, stamps)


def test_a_stamp_is_readable_when_the_last_part_of_its_batch_is_there() -> None:
    domain = Domain(WORKLOAD, min_subscriptions=1, events=300)
    domain.subscribe(WORKLOAD.subscriptions(40, 4))
    arrivals, expected = [], {}
    for stamped in domain.run(domain.next_batch(300)).stamps:
        records = encode_stamps(stamped, max_part_bytes=300)
        for part, record in enumerate(records):
            arrivals.append(Arrival(10.0 * stamped.partition + part, stamped.partition, record.value, record.headers))
        for source, offset in zip(stamped.rows.source.tolist(), stamped.rows.offset.tolist(), strict=True):
            expected[stamped.sources[source][0], offset] = arrivals[-1].at
    assert max(arrival.at % 10 for arrival in arrivals) > 0
    assert stamp_times(arrivals, domain.config.domain) == expected


def test_speed_counts_up_to_the_last_stamp_and_bytes_are_an_event() -> None:
    seen = summary(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.5, 2.5, 5.0]), 1_000, 250)
    assert (seen.mean_ms, seen.p50_ms, seen.stamps_per_s) == pytest.approx((875, 500, 0.8))
    assert 500 < seen.p99_ms < 2_000
    assert (seen.event_bytes, seen.stamp_bytes, seen.stamps_share) == (250, 62.5, 0.2)


def found_for(plan: Plan) -> Found:
    size = TimestampSize(mean=46.0, std=100.0, delta_entries=18.0)
    seen = Seen(
        events=1, mean_ms=1.0, p50_ms=1.0, p99_ms=2.0, stamps_per_s=4_000.0, event_bytes=200.0, stamp_bytes=50.0
    )
    share = Forwarded(once=np.linspace(0, 1, SERVERS), per_manager=np.linspace(0, 0.5, SERVERS))
    return Found(
        sizes={(shape, plan.clients * of): {2: size, 1: size} for shape in SHAPES for of in plan.sizes},
        forwarded={(shape, count): share for shape in SHAPES for count in plan.subscriptions},
        live=dict.fromkeys(plan.loads(), seen),
    )


@pytest.mark.parametrize("size", Size)
def test_what_is_found_is_in_the_data_and_the_tables(size: Size) -> None:
    plan = Plan.of(size)
    data = json.loads(json.dumps(data_of(plan, found_for(plan))))
    assert data["size"]["0.349"][0] == {
        "subscriptions": plan.clients * plan.sizes[0],
        "mean": 46.0,
        "std": 100.0,
        "delta_entries": 18.0,
        "m1": {"mean": 46.0, "std": 100.0, "delta_entries": 18.0},
    }
    assert [point["rate"] for point in data["throughput_by_rate"]["0.901"]] == list(plan.rates)
    assert [point["subscriptions"] for point in data["latency_by_subscriptions"]["0.901"]] == list(plan.subscriptions)
    assert data["bandwidth"]["by_rate"]["0.901"][0]["stamps_share"] == 0.2
    shown = tables(data)
    assert all(len(row) == len(table.columns) for table in shown for row in table.rows)


def test_every_picture_is_on_the_page(tmp_path: Path) -> None:
    plan = Plan.of(Size.FULL)
    data = data_of(plan, found_for(plan))
    text = page(tables(data))
    for path in draw_all(tmp_path / "new", data):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert f"]({path.name})" in text
