"""The lineage tables: names, columns, types, comments and layout. Pure data; `tables.py` makes the tables of it.

`python -m totalorder.sinks.schema` prints docs/lineage-schema.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: `type` is Spark SQL."""

    name: str
    type: str
    comment: str
    nullable: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: its rows lie clustered by `layout`; one row, and no more, has each value of `key`.

    `arrival` are the columns in which two copies of one row may differ: where and when Kafka had its record, and what
    could still be read then. All others must agree. Files are skipped by layout, key and `marks`.
    """

    columns: tuple[Column, ...]
    comment: str
    key: tuple[str, ...]
    layout: tuple[str, ...]
    arrival: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @property
    def compared(self) -> tuple[str, ...]:
        """Names of the columns in which two copies of one row agree."""
        return tuple(name for name in self.names if name not in self.arrival)


def _columns(*rows: tuple[str, str, str]) -> tuple[Column, ...]:
    """`domain` and then what is given; a "?" behind a type: may be null."""
    named = (("domain", "STRING", "The universe of order that the row belongs to; one for all rows of a root."), *rows)
    return tuple(
        Column(name=name, type=kind.rstrip("?"), comment=comment, nullable=kind.endswith("?"))
        for name, kind, comment in named
    )


TAKEN = (
    "ARRAY<STRUCT<slice:INT,kafka_topic:STRING,topic_id:STRING,partition:INT,begin_offset:BIGINT,end_offset:BIGINT>>"
)
"""Type of the parts of a cut."""
NEXT_OFFSETS = "ARRAY<STRUCT<kafka_topic:STRING,topic_id:STRING,partition:INT,next_offset:BIGINT>>"
"""Type of the ends of a batch."""
LOST = "ARRAY<STRUCT<partition:INT,begin_offset:BIGINT,end_offset:BIGINT>>"
"""Type of what is lost of a Kafka topic."""
_INCARNATION = "Which sequencer wrote it: rises when one takes over without the checkpoint of the one before."
_BATCH = "Number of the sequencer's batch: 1, 2, 3 … since the domain began."
_TOPIC_ID = "Kafka's id of that topic: one that is deleted and created again under its name has another."
_BATCH_TIME = "The batch's own time, by the clock of the sequencer."

TABLES: Mapping[str, Table] = MappingProxyType(
    {
        "events": Table(
            comment="Every event that was stamped, once: its place in the log and its timestamp.",
            key=("g",),
            layout=("topic", "g"),
            arrival=("event_time", "stamped_time", "read_crc32", "payload", "stamps_offset"),
            marks=("batch", "kafka_topic", "topic_id", "partition", "offset"),
            columns=_columns(
                ("topic", "STRING", "The pub/sub topic, within which n counts."),
                ("kafka_topic", "STRING", "The Kafka topic that holds the event."),
                ("topic_id", "STRING", _TOPIC_ID),
                ("partition", "INT", "Its partition there."),
                ("offset", "BIGINT", "Its offset there."),
                ("n", "BIGINT", "Its number within its topic: 1, 2, 3 …"),
                ("g", "BIGINT", "Its position in the one order of the domain; control records take positions too."),
                ("batch", "BIGINT", _BATCH),
                ("incarnation", "INT", _INCARNATION),
                ("event_time", "TIMESTAMP?", "Time of the Kafka record; null when it could no longer be read."),
                ("batch_time", "TIMESTAMP", _BATCH_TIME),
                ("stamped_time", "TIMESTAMP", "The broker's time for the stamps record, its last part."),
                ("crc32", "BIGINT", "CRC-32 of the value as the sequencer saw it; 0 for no value."),
                (
                    "read_crc32",
                    "BIGINT?",
                    "CRC-32 of the value as the lineage job read it itself; null when it was gone.",
                ),
                ("keyframe", "BOOLEAN", "Whether entries hold the whole sequencing group and not only what advanced."),
                (
                    "entries",
                    "MAP<STRING,BIGINT>",
                    "Entries: topic to its count of events before g; what has not advanced since n - 1 is left out.",
                ),
                ("payload", "BINARY?", "The event's value, where the job was asked for it (payload)."),
                ("stamps_partition", "INT", "Partition of the stamps topic that the timestamp came from."),
                ("stamps_offset", "BIGINT", "Offset of the stamps record there, its first part."),
            ),
        ),
        "batches": Table(
            comment="Every batch of every stamps partition: what is complete, and the chain of digests. A batch stands "
            "here only when all of its events stand in `events`.",
            key=("stamps_partition", "batch"),
            layout=("stamps_partition", "batch"),
            arrival=("stamped_time", "stamps_offset", "next_stamps_offset"),
            columns=_columns(
                ("stamps_partition", "INT", "The partition of the stamps topic."),
                ("partitions", "INT", "How many stamps partitions there are."),
                ("incarnation", "INT", _INCARNATION),
                ("batch", "BIGINT", _BATCH),
                ("batch_time", "TIMESTAMP", _BATCH_TIME),
                ("cut", "BIGINT", "Number of the cut that the batch comes from, see `cuts`."),
                ("stamped_time", "TIMESTAMP", "The broker's time for the record, its last part."),
                ("min_subscriptions", "INT", "Subscriptions that make two topics one sequencing group: 1 or 2."),
                ("g", "BIGINT", "Last position of the order in this batch."),
                ("control_g", "BIGINT", "Position of the last answer on grants up to g; 0 when there was none."),
                ("events", "BIGINT", "Events of this batch in this partition."),
                (
                    "next_offsets",
                    NEXT_OFFSETS,
                    "Where the batch ends in each event partition that it advances: last offset seen + 1.",
                ),
                ("previous_digest", "STRING", "Digest of the batch before in this partition."),
                ("digest", "STRING", "BLAKE2b (16 bytes, hex) over previous_digest and the batch's whole content."),
                ("stamps_offset", "BIGINT", "Offset of the record, its first part."),
                ("next_stamps_offset", "BIGINT", "Offset behind its last part: the job reads on from the greatest."),
            ),
        ),
        "cuts": Table(
            comment="Where each batch was cut out of the event partitions, in slices: in the order, what a slice has "
            "comes before what a later one has. A cut that was planned and never ran is followed by another of its "
            "number: the one with the greatest cuts_offset counts.",
            key=("cut", "cuts_offset"),
            layout=("cut",),
            arrival=("cut_time",),
            columns=_columns(
                ("cut", "BIGINT", "Its number: 1, 2, 3 … since the domain began."),
                ("incarnation", "INT", _INCARNATION),
                ("slices", "INT", "How many slices it has: looks at the ends of all partitions, and what came behind."),
                (
                    "taken",
                    TAKEN,
                    "The offsets that each slice has of each partition that has new ones; topic_id is Kafka's.",
                ),
                (
                    "topic_order",
                    "ARRAY<STRING>",
                    "Kafka topics of which, in a slice, at equal times the earlier comes first.",
                ),
                ("is_key", "BOOLEAN", "Whether reading can start at its record."),
                ("cut_time", "TIMESTAMP", "The broker's time for the record."),
                ("cuts_offset", "BIGINT", "Offset of the record on cuts that made it count."),
            ),
        ),
        "subscriptions": Table(
            comment="Every answer of the sequencer to a control record, and every expiry: who held what from when on, "
            "which Kafka topics were retired, and what was lost. grants is compacted by Kafka, so a lineage that "
            "begins late lacks earlier answers.",
            key=("g",),
            layout=("subscriber", "g"),
            arrival=("answered_time", "grants_offset"),
            columns=_columns(
                ("subscriber", "STRING", "The id of who asked; empty for a rejected record that told none."),
                ("generation", "BIGINT?", "Rises with each change of the subscription; null: of a Kafka topic."),
                ("nonce", "STRING", "The process that asked; empty for a rejected record that told none."),
                ("kind", "STRING", '"granted", "ended", "rejected", "renewed", "repeated", "retired" or "skipped".'),
                ("reason", "STRING?", 'Of an end "unsubscribed" or "expired", of a rejection its words, else null.'),
                ("g", "BIGINT", "Its position in the order; the change holds for all events after it."),
                ("control_offset", "BIGINT", "Offset of the control record that it answers; -1: an expiry."),
                ("topics", "ARRAY<STRING>?", "Of a grant: the topics held from g on."),
                ("former", "ARRAY<STRING>?", "Of a grant: the topics held until g by the generation before."),
                ("continuous", "BOOLEAN?", "Of a grant: whether the generation before was live until g."),
                ("clock", "MAP<STRING,BIGINT>?", "Of a grant or end: events of each topic up to g."),
                ("lease_s", "BIGINT?", "Of a grant: after how many seconds without renewal it expires; 0: never."),
                ("min_subscriptions", "INT?", "Of a grant: subscriptions that make two topics one group."),
                (
                    "kafka_topic",
                    "STRING?",
                    "The Kafka topic that was retired (nothing of it is stamped after g), or has lost what is skipped.",
                ),
                ("topic_id", "STRING?", "Kafka's id of that topic."),
                (
                    "lost",
                    f"{LOST}?",
                    "Its offsets that were never stamped; if skipped, Kafka removed them before they could be.",
                ),
                ("batch", "BIGINT", _BATCH),
                ("incarnation", "INT", _INCARNATION),
                ("answered_time", "TIMESTAMP", "The broker's time for the record on grants."),
                ("grants_offset", "BIGINT", "Offset of the record on grants."),
            ),
        ),
        "sequencing_groups": Table(
            comment="Members of each topic's sequencing group over the order, derived from `subscriptions`.",
            key=("topic", "member", "valid_from_g"),
            layout=("topic", "member"),
            columns=_columns(
                ("topic", "STRING", "The topic whose group it is."),
                ("member", "STRING", "Another topic that enough live subscriptions hold together with it."),
                ("valid_from_g", "BIGINT", "Position of the change that brought it in: a member for g > valid_from_g."),
                ("valid_to_g", "BIGINT?", "Position of the change that ended it, a member until then; null: still."),
            ),
        ),
        "deliveries": Table(
            comment="What each subscriber reported to have handed to its application, in its own order.",
            key=("subscriber", "nonce", "delivery_index"),
            layout=("subscriber", "g"),
            arrival=("receipt_time", "receipts_partition", "receipts_offset"),
            columns=_columns(
                ("subscriber", "STRING", "The subscriber's id."),
                ("generation", "BIGINT", "Its generation at the delivery; a subscriber's order is (this, the index)."),
                ("nonce", "STRING", "The process that delivered."),
                ("delivery_index", "BIGINT", "Number of the delivery within the process: 1, 2, 3 …"),
                ("topic", "STRING", "The event's pub/sub topic; of what was never stamped the Kafka topic."),
                ("kafka_topic", "STRING", "The Kafka topic that holds the event."),
                ("topic_id", "STRING", _TOPIC_ID),
                ("partition", "INT", "Its partition there."),
                ("offset", "BIGINT", "Its offset there; of what was never stamped the first one that is lost."),
                (
                    "n",
                    "BIGINT",
                    (
                        "Its number within its topic, as the subscriber had it; 0: what was lost before it was stamped "
                        '(in `subscriptions`, at the same g: "skipped").'
                    ),
                ),
                ("g", "BIGINT", "Its position in the order, as the subscriber had it."),
                (
                    "tag",
                    "STRING?",
                    (
                        '"redelivered" when it may have been delivered before a crash, else null. "lost" when the '
                        "application was told in its place that Kafka has it no longer, "
                        '"lost again" when that may have been told before.'
                    ),
                ),
                ("delivered_time", "TIMESTAMP", "By the subscriber's clock."),
                ("receipt_time", "TIMESTAMP", "The broker's time for the receipt."),
                ("receipts_partition", "INT", "Partition of the receipts topic that it came from."),
                ("receipts_offset", "BIGINT", "Offset of the receipt there."),
            ),
        ),
    }
)


def markdown() -> str:
    """The page docs/lineage-schema.md."""
    return "\n".join([_HEAD, *(_section(name, table) for name, table in TABLES.items())])


_HEAD = """# The lineage tables

Written by `python -m totalorder.sinks.schema > docs/lineage-schema.md` from sinks/schema.py. docs/lineage.md says how
the tables are filled and kept. Each table is a folder below one root; times are UTC with millisecond precision; a
column may be null only where it says so.
"""


def _section(name: str, table: Table) -> str:
    key, layout = (", ".join(f"`{column}`" for column in columns) for columns in (table.key, table.layout))
    rows = [
        f"| `{column.name}` | {column.type}{' (null)' if column.nullable else ''} | {column.comment} |"
        for column in table.columns
    ]
    head = [f"## {name}", "", table.comment, f"Key: {key}. Clustered by {layout}.", ""]
    return "\n".join([*head, "| column | type | meaning |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    print(markdown(), end="")
