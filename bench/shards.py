"""`totalorder bench shards`: the same events through the job with 1, 2 and 4 shards, on executors of their own.

Each number of shards must give the same stamps. How fast the stamping is, is measured twice: as Spark's stateful tasks,
which share this machine's cores with each other, the broker and Spark, and as the engine alone, one shard at a time,
which is what each shard would need on a core of its own.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from totalorder.bench.cluster import Cluster
from totalorder.bench.cluster_model import Costs, carried, fitted
from totalorder.bench.cluster_stages import stage_times
from totalorder.bench.cluster_stamps import Stamps, read_stamps
from totalorder.bench.job_load import BACKLOG_RATE, fill
from totalorder.bench.job_progress import BatchTime, BatchTimes, events_per_s, whole_batches
from totalorder.bench.outcome import Outcome, Request, Size, Table
from totalorder.bench.workload import SHAPES, Ints, Workload
from totalorder.config import Settings
from totalorder.errors import Error
from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.codec import encode_stamps
from totalorder.sequencer.control import Subscribe, encode_request
from totalorder.sequencer.engine import EngineConfig, initial_state, step
from totalorder.sequencer.names import DomainTopics
from totalorder.sequencer.stamps import KafkaTopic

KAFKA_TOPICS = ("a", "b", "c", "d")
SHARDS = (1, 2, 4)
CORES = 100
_MASTER = "local-cluster[2,1,2048]"
_SUBSCRIBED = 10
_TIMEOUT_S = 300.0
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done."""

    events: int
    batch: int
    topics: int
    subscribers: int

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(events=3_000, batch=1_000, topics=20, subscribers=5),
            quick=cls(events=150_000, batch=50_000, topics=200, subscribers=100),
            full=cls(events=500_000, batch=100_000, topics=1_000, subscribers=500),
        )

    @property
    def workload(self) -> Workload:
        return Workload(topics=self.topics, shape=SHAPES[0])

    def subscriptions(self) -> list[list[str]]:
        """Topics of each subscriber."""
        rows = self.workload.subscriptions(self.subscribers, _SUBSCRIBED).tolist()
        return [[topic_name(topic) for topic in row] for row in rows]


@dataclass(frozen=True, kw_only=True)
class ShardRun:
    """The job with one number of shards.

    Seconds an event: `reading_s` of all tasks that read, together (0 with one shard, whose only task does both),
    `stateful_s` of the slowest stateful task, `stamping_s` of the engine alone (processor time) for the slowest shard.
    """

    events_per_s: float
    reading_s: float
    stateful_s: float
    stamping_s: float
    stamps: Stamps


def topic_name(topic: int) -> str:
    """Name of a pub/sub topic: the key of its events."""
    return f"t{topic:04}"


def run(request: Request) -> Outcome:
    """All numbers of shards over one backlog, which is published when every domain has its subscriptions."""
    plan = Plan.of(request.size)
    drawn = plan.workload.events(plan.events)
    request.say(f"Starting a broker and Spark with two executors ({_MASTER})")
    with Cluster(KAFKA_TOPICS, **_cluster_settings(plan)) as cluster:
        domains = {shards: cluster.settings(f"shards-{shards}", shards=shards) for shards in SHARDS}
        for shards, settings in domains.items():
            request.say(f"Subscribing, {shards} shards")
            cluster.subscribe(settings, plan.subscriptions())
            with cluster.sequencing(settings) as query:
                BatchTimes(query).until_read(plan.subscribers, _TIMEOUT_S)
        request.say(f"Publishing a backlog of {plan.events} events")
        fill(cluster.servers, KAFKA_TOPICS, [topic_name(topic) for topic in drawn.tolist()])
        runs = {}
        for shards, settings in domains.items():
            runs[shards] = _run(cluster, settings, plan, drawn)
            request.say(f"{shards} shards: {runs[shards].events_per_s:,.0f} events/s")
    data = summary(runs)
    return Outcome(data=data, tables=tables(data))


def _cluster_settings(plan: Plan) -> dict[str, Any]:
    return {
        "master": _MASTER,
        "topic_by": "key",
        "max_events_per_batch": plan.batch,
        "spark": {"spark.driver.host": _LOCAL, "spark.driver.bindAddress": _LOCAL},
    }


# --- measuring --------------------------------------------------------------------------------------------------------


def _run(cluster: Cluster, settings: Settings, plan: Plan, drawn: Ints) -> ShardRun:
    with cluster.sequencing(settings) as query:
        batches = BatchTimes(query).until_read(plan.events, _TIMEOUT_S)
        stages = stage_times(cluster.spark, query)
    reading_s, stateful_s = task_s(stages, batches)
    return ShardRun(
        events_per_s=events_per_s(whole_batches(batches)),
        reading_s=reading_s,
        stateful_s=stateful_s,
        stamping_s=max(engine_s(plan, drawn, shard, settings.shards) for shard in range(settings.shards)),
        stamps=read_stamps(settings),
    )


def task_s(stages: Sequence[Sequence[Sequence[int]]], batches: Sequence[BatchTime]) -> tuple[float, float]:
    """Seconds an event in whole batches: of the tasks that read, together, and of the slowest stateful one.

    `stages` are task times in milliseconds by batch and stage; a batch of one stage reads in its stateful task.
    """
    whole = {id(batch) for batch in whole_batches(batches)}
    found = [(times, batch.rows) for times, batch in zip(stages, batches, strict=True) if id(batch) in whole]
    rows = 1_000 * sum(count for _, count in found)
    reading = sum(sum(times[0]) for times, _ in found if len(times) > 1)
    return reading / rows, sum(max(times[-1]) for times, _ in found) / rows


def engine_s(plan: Plan, drawn: Ints, shard: int, shards: int) -> float:
    """Processor seconds an event that the engine and the encoding take for one shard."""
    state = initial_state(EngineConfig(domain="engine", identity="bench", topic_by="key", shards=shards, shard=shard))
    state, _ = step(state, _requests(plan), {})
    taken = []
    for first in range(0, plan.events, plan.batch):
        batch = _batch(drawn, first, plan.batch)
        began = time.process_time()
        state, effects = step(state, batch, {})
        for stamped in effects.stamps:
            encode_stamps(stamped)
        taken.append(time.process_time() - began)
    return median(taken[1:]) / plan.batch


def _requests(plan: Plan) -> Batch:
    control = DomainTopics(domain="engine").control
    requests = [
        Subscribe(id=f"s{number}", generation=1, nonce="n", topics=tuple(topics), lease_s=0, stamps_ends={})
        for number, topics in enumerate(plan.subscriptions())
    ]
    rows = [Row(control, 0, offset, control=encode_request(request)) for offset, request in enumerate(requests)]
    return Batch.of(1, rows)


def _batch(drawn: Ints, first: int, size: int) -> Batch:
    """Events as `fill` publishes them."""
    number = np.arange(first, min(first + size, len(drawn)), dtype=np.int64)
    topics, topic = np.unique(drawn[number], return_inverse=True)
    return Batch(
        time_ms=1 + len(drawn),
        cut=1 + first // size,
        topic_order=(),
        kafka_topics=tuple(KafkaTopic(name, "") for name in KAFKA_TOPICS),
        topics=tuple(topic_name(index) for index in topics.tolist()),
        kafka_topic=number % len(KAFKA_TOPICS),
        partition=np.zeros_like(number),
        offset=number // len(KAFKA_TOPICS),
        timestamp_ms=number * 1_000 // BACKLOG_RATE,
        topic=topic.astype(np.int64),
        crc=number,
        slice=np.zeros_like(number),
        control={},
    )


# --- results ----------------------------------------------------------------------------------------------------------


def summary(runs: Mapping[int, ShardRun]) -> dict[str, Any]:
    """The JSON of the benchmark; Error when two numbers of shards gave an event two timestamps."""
    least, *others = runs
    for shards in others:
        if not runs[shards].stamps.equals(runs[least].stamps):
            raise Error(
                f"{shards} shards gave other timestamps than {least}",
                remedy="That is a fault of totalorder: please report it with this machine's versions",
            )
    stamps = runs[least].stamps
    reading = fitted({shards: run.reading_s for shards, run in runs.items() if run.reading_s})
    stamping = fitted({1 / shards: run.stamping_s for shards, run in runs.items()})
    # The slowest stateful task takes in every event, and stamps its own; the smallest was disturbed least.
    intake_s = min(run.stateful_s - stamping.share / shards for shards, run in runs.items() if run.reading_s)
    best, speed = carried(CORES, reading, Costs(each=intake_s, share=stamping.share))
    return {
        "identical": True,
        "events": len(stamps.g),
        "entries": len(stamps.entry_g),
        "shards": {str(shards): _figures(run, runs[least]) for shards, run in runs.items()},
        "model": {
            "reading_us": _us(reading),
            "stamping_us": _us(stamping),
            "intake_us": 1e6 * intake_s,
            "cores": CORES,
            "shards": best,
            "events_per_s": speed,
            "engine_events_per_s": 1 / (stamping.each + stamping.share / CORES),
        },
    }


def _figures(run: ShardRun, one: ShardRun) -> dict[str, float]:
    return {
        "events_per_s": run.events_per_s,
        "speedup": run.events_per_s / one.events_per_s,
        "stamping_us": 1e6 * run.stamping_s,
        "stamping_speedup": one.stamping_s / run.stamping_s,
        "stateful_us": 1e6 * run.stateful_s,
        "reading_us": 1e6 * run.reading_s,
    }


def _us(costs: Costs) -> dict[str, float]:
    return {name: 1e6 * value for name, value in vars(costs).items()}


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The same for a person."""
    columns = ("events_per_s", "speedup", "stamping_us", "stamping_speedup", "stateful_us", "reading_us")
    model = data["model"]
    return [
        Table(
            title=f"The same timestamps ({data['events']:,}); microseconds an event",
            columns=("shards", "events/s", "ratio", "engine", "ratio", "state task", "reading"),
            rows=[
                [shards, *(f"{run[name]:,.{0 if name == 'events_per_s' else 2}f}" for name in columns)]
                for shards, run in data["shards"].items()
            ],
        ),
        Table(
            title=f"By these figures {CORES} cores would carry",
            columns=("", "shards", "cores that read", "events/s"),
            rows=[
                ["the job", str(model["shards"]), str(CORES - model["shards"]), f"{model['events_per_s']:,.0f}"],
                ["the engine alone", str(CORES), "", f"{model['engine_events_per_s']:,.0f}"],
            ],
        ),
    ]
