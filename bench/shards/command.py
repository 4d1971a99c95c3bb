"""`totalorder bench shards`: the same events through the job with 1, 2 and 4 shards, on executors of their own.

Each number of shards must give the same stamps. How fast the job is, is measured here, where executors, broker and
Spark's driver share the cores, number after number by turns. What a reader and a shard need of a processor is measured
for each alone; from that the model says what more cores would carry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from totalorder.bench.live.cluster import Cluster
from totalorder.bench.live.load import fill
from totalorder.bench.live.progress import WHOLE, BatchTime, BatchTimes, events_per_s, whole_batches
from totalorder.bench.live.stamps import Stamps, read_stamps
from totalorder.bench.outcome import Outcome, Request, Size, Table
from totalorder.bench.shards.alone import TOPIC_BY, chunks, reading_s, stamping_s, subscribed
from totalorder.bench.shards.model import Costs, carried, fitted
from totalorder.bench.shards.stages import Stages, stage_times
from totalorder.bench.workload import SHAPES, Ints, Workload
from totalorder.config import Settings
from totalorder.errors import Error
from totalorder.sequencer.state import State

KAFKA_TOPICS = ("a", "b", "c", "d")
SHARDS = (1, 2, 4)
CORES = 100
_NOTHING_OWN = 256
"""Of so many shards each has next to no topics: what one needs is what taking events in costs."""
_MASTER = "local-cluster[2,1,2048]"
_SUBSCRIBED = 10
_TIMEOUT_S = 300.0
_LOCAL = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is done: `turns` times a backlog of `events`."""

    events: int
    turns: int
    batch: int
    topics: int
    subscribers: int

    @classmethod
    def of(cls, size: Size) -> "Plan":
        return size.pick(
            smoke=cls(events=3_000, turns=1, batch=1_000, topics=20, subscribers=5),
            quick=cls(events=150_000, turns=2, batch=50_000, topics=200, subscribers=100),
            full=cls(events=500_000, turns=3, batch=100_000, topics=1_000, subscribers=500),
        )

    @property
    def workload(self) -> Workload:
        return Workload(topics=self.topics, shape=SHAPES[0])

    @property
    def names(self) -> list[str]:
        """All pub/sub topics."""
        return [topic_name(topic) for topic in range(self.topics)]

    def subscriptions(self) -> list[list[str]]:
        """Topics of each subscriber."""
        names, rows = self.names, self.workload.subscriptions(self.subscribers, _SUBSCRIBED).tolist()
        return [[names[topic] for topic in row] for row in rows]

    def drawn(self) -> list[Ints]:
        """The topics of the events of each turn."""
        return list(np.split(self.workload.events(self.events * self.turns), self.turns))


@dataclass(frozen=True, kw_only=True)
class TaskCosts:
    """Of whole batches: seconds an event of all tasks that read, together (0 with one shard, whose only task does
    both), and of the slowest stateful one; of both also what Java's threads took of processors. `around_s`: seconds a
    batch in which none of its tasks ran.
    """

    reading_s: float
    stateful_s: float
    java_reading_s: float
    java_stateful_s: float
    around_s: float


@dataclass(frozen=True, kw_only=True)
class ShardRun:
    """The job with one number of shards; `stamping_s` is processor time an event of the engine alone, slowest shard."""

    events_per_s: float
    tasks: TaskCosts
    stamping_s: float
    stamps: Stamps


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Seconds of a processor an event: reading in Python, and a shard that owns next to nothing of what it takes in."""

    reading_s: float
    intake_s: float


def topic_name(topic: int) -> str:
    """Name of a pub/sub topic: the key of its events."""
    return f"t{topic:04}"


def run(request: Request) -> Outcome:
    """All numbers of shards over one backlog after another, which come when every domain has its subscriptions."""
    plan = Plan.of(request.size)
    drawn = plan.drawn()
    request.say(f"Starting a broker and Spark with two executors ({_MASTER})")
    with Cluster(KAFKA_TOPICS, **_cluster_settings(plan)) as cluster:
        domains = {shards: cluster.settings(f"shards-{shards}", shards=shards) for shards in SHARDS}
        for shards, settings in domains.items():
            request.say(f"Subscribing, {shards} shards")
            cluster.subscribe(settings, plan.subscriptions())
            with cluster.sequencing(settings) as query:
                BatchTimes(query).until_read(plan.subscribers, _TIMEOUT_S)
        turns: dict[int, list[Turn]] = {shards: [] for shards in SHARDS}
        for turn, topics in enumerate(drawn, 1):
            request.say(f"Publishing a backlog of {plan.events} events ({turn} of {plan.turns})")
            fill(cluster.servers, KAFKA_TOPICS, [plan.names[topic] for topic in topics.tolist()])
            for shards, settings in domains.items():
                turns[shards].append(_turn(cluster, settings, plan))
                request.say(f"{shards} shards: {events_per_s(turns[shards][-1].whole):,.0f} events/s")
        request.say("Measuring what reads and what stamps alone")
        alone = _alone(cluster.servers, plan, drawn[0])
        runs = {shards: _run(turns[shards], settings, plan, drawn[0]) for shards, settings in domains.items()}
    data = summary(runs, alone)
    return Outcome(data=data, tables=tables(data))


def _cluster_settings(plan: Plan) -> dict[str, Any]:
    return {
        "master": _MASTER,
        "topic_by": TOPIC_BY,
        "max_events_per_batch": plan.batch,
        "spark": {"spark.driver.host": _LOCAL, "spark.driver.bindAddress": _LOCAL},
    }


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The batches of one backlog, with the tasks of each."""

    batches: Sequence[BatchTime]
    stages: Sequence[Stages]

    @property
    def whole(self) -> list[BatchTime]:
        """See `whole_batches`."""
        return whole_batches(self.batches)

    @property
    def whole_with_stages(self) -> list[tuple[BatchTime, Stages]]:
        """The same with their tasks."""
        whole = {id(batch) for batch in self.whole}
        return [each for each in zip(self.batches, self.stages, strict=True) if id(each[0]) in whole]


def _turn(cluster: Cluster, settings: Settings, plan: Plan) -> Turn:
    with cluster.sequencing(settings) as query:
        batches = BatchTimes(query).until_read(plan.events, _TIMEOUT_S)
        return Turn(batches=batches, stages=stage_times(cluster.spark, query))


def _run(turns: Sequence[Turn], settings: Settings, plan: Plan, drawn: Ints) -> ShardRun:
    packed = list(chunks(plan.names, drawn, plan.batch, KAFKA_TOPICS))
    stamping = [
        stamping_s(_state(plan, settings.shards, shard, settings.stamps_partitions), packed)
        for shard in range(settings.shards)
    ]
    return ShardRun(
        events_per_s=events_per_s([batch for turn in turns for batch in turn.whole]),
        tasks=task_costs(turns),
        stamping_s=max(stamping),
        stamps=read_stamps(settings),
    )


def _alone(servers: str, plan: Plan, drawn: Ints) -> Alone:
    state = _state(plan, _NOTHING_OWN, 0, _NOTHING_OWN)
    return Alone(
        reading_s=reading_s(servers, KAFKA_TOPICS, events=plan.events, size=plan.batch),
        intake_s=stamping_s(state, list(chunks(plan.names, drawn, plan.batch, KAFKA_TOPICS))),
    )


def _state(plan: Plan, shards: int, shard: int, stamps_partitions: int) -> State:
    return subscribed(plan.subscriptions(), shards=shards, shard=shard, stamps_partitions=stamps_partitions)


def task_costs(turns: Sequence[Turn]) -> TaskCosts:
    """See `TaskCosts`. A batch of one stage reads in its stateful task."""
    found = [each for turn in turns for each in turn.whole_with_stages]
    rows = sum(batch.rows for batch, _ in found)
    reading = [task for _, stages in found if len(stages) > 1 for task in stages[0]]
    return TaskCosts(
        reading_s=sum(task.ms for task in reading) / rows / 1_000,
        stateful_s=sum(max(task.ms for task in stages[-1]) for _, stages in found) / rows / 1_000,
        java_reading_s=sum(task.java_ms for task in reading) / rows / 1_000,
        java_stateful_s=sum(max(task.java_ms for task in stages[-1]) for _, stages in found) / rows / 1_000,
        around_s=median(
            batch.ms[WHOLE] - sum(max(task.ms for task in stage) for stage in stages) for batch, stages in found
        )
        / 1_000,
    )


# --- results ----------------------------------------------------------------------------------------------------------


def summary(runs: Mapping[int, ShardRun], alone: Alone) -> dict[str, Any]:
    """The JSON of the benchmark; Error when two numbers of shards gave an event two timestamps."""
    least, *others = runs
    for shards in others:
        if not runs[shards].stamps.equals(runs[least].stamps):
            raise Error(
                f"{shards} shards gave other timestamps than {least}",
                remedy="That is a fault of totalorder: please report it with this machine's versions",
            )
    stamps = runs[least].stamps
    return {
        "identical": True,
        "events": len(stamps.g),
        "entries": len(stamps.entry_g),
        "shards": {str(shards): _figures(run, runs[least]) for shards, run in runs.items()},
        "model": _model(runs, alone),
    }


def _model(runs: Mapping[int, ShardRun], alone: Alone) -> dict[str, Any]:
    """What more cores would carry, by processor time alone. Java's part of one shard's task is reading too."""
    several = {shards: run.tasks for shards, run in runs.items() if run.tasks.reading_s}
    shipping = fitted({shards: tasks.java_reading_s for shards, tasks in several.items()})
    reading = Costs(each=alone.reading_s + shipping.each, share=shipping.share)
    java_s = min(tasks.java_stateful_s for tasks in several.values())
    share_s = runs[1].stamping_s - alone.intake_s
    best, speed = carried(CORES, reading, Costs(each=java_s + alone.intake_s, share=share_s))
    return {
        "reading_us": _us(reading),
        "java_us": 1e6 * java_s,
        "intake_us": 1e6 * (java_s + alone.intake_s),
        "engine_us": {"intake": 1e6 * alone.intake_s, "share": 1e6 * share_s},
        "cores": CORES,
        "shards": best,
        "events_per_s": speed,
        "engine_events_per_s": 1 / (alone.intake_s + share_s / CORES),
    }


def _figures(run: ShardRun, one: ShardRun) -> dict[str, float]:
    return {
        "events_per_s": run.events_per_s,
        "speedup": run.events_per_s / one.events_per_s,
        "stamping_us": 1e6 * run.stamping_s,
        "stamping_speedup": one.stamping_s / run.stamping_s,
        "stateful_us": 1e6 * run.tasks.stateful_s,
        "java_stateful_us": 1e6 * run.tasks.java_stateful_s,
        "reading_us": 1e6 * run.tasks.reading_s,
        "java_reading_us": 1e6 * run.tasks.java_reading_s,
        "around_ms": 1e3 * run.tasks.around_s,
    }


def _us(costs: Costs) -> dict[str, float]:
    return {name: 1e6 * value for name, value in vars(costs).items()}


_COLUMNS = {
    "events_per_s": "events/s",
    "speedup": "ratio",
    "stamping_us": "engine",
    "stamping_speedup": "ratio",
    "stateful_us": "state task",
    "java_stateful_us": "Java's",
    "reading_us": "reading",
    "java_reading_us": "Java's",
    "around_ms": "around, ms a batch",
}


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The same for a person."""
    model = data["model"]
    return [
        Table(
            title=f"The same timestamps ({data['events']:,}); microseconds an event",
            columns=("shards", *_COLUMNS.values()),
            rows=[
                [shards, *(f"{run[name]:,.{0 if name == 'events_per_s' else 2}f}" for name in _COLUMNS)]
                for shards, run in data["shards"].items()
            ],
        ),
        Table(
            title=f"By these figures {CORES} cores would carry; an event taken in costs {model['intake_us']:.2f} µs",
            columns=("", "shards", "cores that read", "events/s"),
            rows=[
                ["the job", str(model["shards"]), str(CORES - model["shards"]), f"{model['events_per_s']:,.0f}"],
                ["the engine alone", str(CORES), "", f"{model['engine_events_per_s']:,.0f}"],
            ],
        ),
    ]
