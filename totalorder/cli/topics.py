"""`totalorder topics`: what is there, and making more of it."""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from totalorder.cli import retire
from totalorder.cli.options import DEFAULT_BOOTSTRAP_SERVERS, BootstrapServers, Json, Kafka, kafka_settings
from totalorder.errors import Error, SettingsError

if TYPE_CHECKING:
    from kafka import KafkaAdminClient

_EARLIEST, _LATEST = -2, -1  # Kafka's timestamps for the two ends of a log


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A Kafka topic: offsets by partition; `end_offsets` are where its readable records end: an open transaction's, and
    all behind it, are not readable yet."""

    name: str
    partitions: int
    start_offsets: list[int]
    end_offsets: list[int]
    cleanup_policy: str


def register(app: typer.Typer) -> None:
    """Add the command, and those below it."""
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(run)
    retire.register(group)
    app.add_typer(group, name="topics", help="List the broker's topics, create some, or take one out of a domain.")


def run(
    context: typer.Context,
    create: Annotated[
        list[str] | None,
        typer.Option("--create", metavar="NAME[:PARTITIONS]", help="Create this topic. Repeatable."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="List Kafka's internal topics too.")] = False,
    bootstrap_servers: BootstrapServers = DEFAULT_BOOTSTRAP_SERVERS,
    kafka: Kafka = None,
    as_json: Json = False,
) -> None:
    """Create what is asked for, then list."""
    if context.invoked_subcommand is not None:
        return
    wanted = dict(_name_and_partitions(text) for text in create or ())
    settings = kafka_settings(kafka)

    from totalorder import kafka_clients

    with kafka_clients.kafka_errors(bootstrap_servers), kafka_clients.admin(bootstrap_servers, settings) as admin:
        if wanted:
            _create(admin, wanted)
        topics = _describe(admin, internal=everything)
    if as_json:
        for topic in topics:
            print(json.dumps(asdict(topic) | {"created": topic.name in wanted}))
    else:
        for name, partitions in wanted.items():
            print(f"Created {name} with {partitions} partition{'' if partitions == 1 else 's'}.")
        _show(topics, bootstrap_servers)


def _name_and_partitions(text: str) -> tuple[str, int]:
    name, sign, number = text.partition(":")
    if not name or (sign and not (number.isdecimal() and int(number) > 0)):
        raise SettingsError(f"--create {text!r} is not NAME or NAME:PARTITIONS", remedy="Write it like orders:4.")
    return name, int(number) if sign else 1


def _create(admin: "KafkaAdminClient", wanted: dict[str, int]) -> None:
    present = sorted(wanted.keys() & set(admin.list_topics()))
    if present:
        raise Error(f"The topic {', '.join(present)} is there already", remedy="Leave it out of --create.")
    admin.create_topics({name: {"num_partitions": partitions} for name, partitions in wanted.items()})
    admin.wait_for_topics(list(wanted))


def _describe(admin: "KafkaAdminClient", *, internal: bool) -> list[Topic]:
    from kafka import TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType

    partitions = {
        topic["name"]: sorted(partition["partition_index"] for partition in topic["partitions"])
        for topic in admin.describe_topics()
        if internal or not topic["is_internal"]
    }
    if not partitions:
        return []
    places = [TopicPartition(name, number) for name, numbers in partitions.items() for number in numbers]
    starts = admin.list_partition_offsets(dict.fromkeys(places, _EARLIEST))
    ends = admin.list_partition_offsets(dict.fromkeys(places, _LATEST), "read_committed")
    resources = [ConfigResource(ConfigResourceType.TOPIC, name, ["cleanup.policy"]) for name in partitions]
    configs = admin.describe_configs(resources, config_filter="all")["topic"]
    return [
        Topic(
            name=name,
            partitions=len(numbers),
            start_offsets=[starts[TopicPartition(name, number)].offset for number in numbers],
            end_offsets=[ends[TopicPartition(name, number)].offset for number in numbers],
            cleanup_policy=configs[name]["cleanup.policy"]["value"],
        )
        for name, numbers in sorted(partitions.items())
    ]


def _show(topics: list[Topic], bootstrap_servers: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Topics of {bootstrap_servers}", title_justify="left")
    table.add_column("topic")
    for heading in ("partitions", "offsets kept", "end offsets"):
        table.add_column(heading, justify="right")
    table.add_column("cleanup")
    for topic in topics:
        kept = sum(topic.end_offsets) - sum(topic.start_offsets)
        ends = " ".join(map(str, topic.end_offsets))
        table.add_row(topic.name, str(topic.partitions), f"{kept:,}", ends, topic.cleanup_policy)
    Console().print(table if topics else f"No topics on {bootstrap_servers} yet.")
