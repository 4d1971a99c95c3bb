"""Golden scripts: blocks of input, `----`, and the readable trace that the engine gives for them.

A script begins with a block of settings (`partitions=1 m=1 keyframe_every=4`, every one optional), then one block for
each batch: a line `batch at=TIME [order=TOPIC,TOPIC…]`, and a line for each record, in the order in which Spark might
hand them over:

    TOPIC KAFKA[PARTITION]@OFFSET ts=MS            an event ("-" as TOPIC: its pub/sub topic cannot be told)
    TOPIC KAFKA#ID[PARTITION]@OFFSET ts=MS         one of the Kafka topic with this id
    subscribe ID GENERATION NONCE TOPIC... [ts=MS] [lease=S]
    unsubscribe ID GENERATION NONCE [ts=MS]
    renew ID GENERATION NONCE [ts=MS]
    retire ID NONCE KAFKA#ID [PARTITION:END...] [ts=MS]
    raw TEXT                                       a control record with that value

Control records get offsets 0, 1, 2 … of the control topic. A line may end with `slice=N`; without, it is slice 0.
"""

import re
from dataclasses import replace

from engine_world import DOMAIN, configs

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, initial_state, step
from totalorder.sequencer.state import EngineConfig
from totalorder.sequencer.wire.control import (
    Answer,
    Ended,
    Grant,
    Rejection,
    Renew,
    Renewed,
    Repeated,
    Retire,
    Retired,
    Skipped,
    Subscribe,
    Unsubscribe,
    encode_request,
)
from totalorder.sequencer.wire.stamps import Source

_EVENT = re.compile(r"(\S+) (\w+)(?:#(\w+))?\[(\d+)\]@(\d+)")


def run_script(script: str) -> str:
    """The script again, with every block's trace as the engine gives it now."""
    blocks = [block for block in script.strip().split("\n\n") if block]
    comments_and_settings, batches = blocks[0], blocks[1:]
    state = initial_state(_config(comments_and_settings))
    out = [comments_and_settings]
    controls = 0
    for block in batches:
        lines = block.split("\n----")[0].splitlines()
        time_ms, order = re.fullmatch(r"batch at=(\d+)(?: order=(\S+))?", lines[0]).groups()  # type: ignore[union-attr]
        rows = []
        for line in lines[1:]:
            row = _row(line.strip(), controls)
            controls += row.control is not None
            rows.append(row)
        topic_order = tuple(order.split(",")) if order else ()
        state, effects = step(state, Batch.of(int(time_ms), rows, topic_order=topic_order), {})
        out.append("\n".join([*lines, "----", *_trace(effects)]))
    return "\n\n".join(out) + "\n"


def _config(block: str) -> EngineConfig:
    settings = " ".join(line for line in block.splitlines() if not line.startswith("#"))
    options = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", settings)}
    return replace(configs(**{"partitions": 1, **options})[0], domain=DOMAIN)


def _row(line: str, offset: int) -> Row:
    options = {name: int(value) for name, value in re.findall(r"\b(ts|lease|slice)=(\d+)", line)}
    ts, slice_ = options.get("ts", 0), options.get("slice", 0)
    if found := _EVENT.match(line):
        topic, kafka, topic_id, partition, event_offset = found.groups()
        name = "" if topic == "-" else topic
        at = (kafka, int(partition), int(event_offset))
        return Row(*at, ts, name, 1, slice=slice_, topic_id=topic_id or "")
    return Row(f"{DOMAIN}.control", 0, offset, ts, control=_request(line, options), slice=slice_)


def _request(line: str, options: dict[str, int]) -> bytes:
    if line.startswith("raw "):
        return line[4:].encode()
    if line.startswith("retire "):
        return _retire(line)
    kind, id_, generation, nonce, *topics = [word for word in line.split() if "=" not in word]
    who = {"id": id_, "generation": int(generation), "nonce": nonce}
    if kind == "subscribe":
        lease_s = options.get("lease", 0)
        return encode_request(Subscribe(**who, topics=tuple(topics), lease_s=lease_s, stamps_ends={}))  # type: ignore[arg-type]
    return encode_request({"unsubscribe": Unsubscribe, "renew": Renew}[kind](**who))  # type: ignore[arg-type]


def _retire(line: str) -> bytes:
    _, id_, nonce, kafka, *ends = [word for word in line.split() if "=" not in word]
    topic, topic_id = kafka.split("#")
    seen = {int(partition): int(end) for partition, end in (each.split(":") for each in ends)}
    return encode_request(Retire(id=id_, nonce=nonce, topic=topic, topic_id=topic_id, seen=seen))


def _place(source: Source) -> str:
    return f"{source.topic}{'#' * bool(source.topic_id)}{source.topic_id}[{source.partition}]"


def _trace(effects: Effects) -> list[str]:
    lines = {answer.g: f"g{answer.g} {_answer(answer)}" for answer in effects.answers}
    for stamped in effects.stamps:
        rows = stamped.rows
        for row in range(len(rows)):
            place = _place(stamped.sources[rows.source[row]])
            entries = " ".join(f"{stamped.names[x]}:{n}" for x, n in rows.entries(row).items())
            name, key = stamped.names[int(rows.topic[row])], " keyframe" if rows.keyframe[row] else ""
            lines[int(rows.g[row])] = (
                f"g{rows.g[row]} {name}{rows.n[row]} {place}@{rows.offset[row]} {{{entries}}}{key}"
            )
    if not effects.stamps:
        return [f"no batch, late: {effects.late}"]
    first = effects.stamps[0]
    unroutable = [f"no topic: {kafka}[{partition}]@{offset}" for kafka, partition, offset in effects.unroutable]
    retired = [f"retired: {one.topic}#{one.topic_id}" for one in effects.answers if isinstance(one, Retired)]
    late = [f"late: {effects.late}"] if effects.late else []
    ends = " ".join(f"{_place(source)}@{end}" for source, end in first.next_offsets.items())
    frontier = f"batch {first.batch} complete through g{first.g}, answers through g{first.control_g}"
    told = [*unroutable, *retired, *late, *([f"ends: {ends}"] if retired or "#" in ends else [])]
    return [*(lines[g] for g in sorted(lines)), *told, frontier]


def _answer(answer: Answer) -> str:
    if isinstance(answer, Retired | Skipped):
        lost = " ".join(f"[{part}]@{first}..{end}" for part, (first, end) in answer.lost.items())
        return f"{type(answer).__name__.lower()} {answer.topic}#{answer.topic_id} lost {lost or 'nothing'}"
    who = f"{answer.id or '?'}#{answer.generation}"
    if isinstance(answer, Grant | Ended):
        clock = " ".join(f"{topic}:{n}" for topic, n in sorted(answer.clock.items()))
        if isinstance(answer, Ended):
            return f"ended {who} {answer.reason} {{{clock}}}"
        bounds = " ".join(f"{_place(source)}@{offset}" for source, offset in sorted(answer.next_offsets.items()))
        return f"grant {who} {{{clock}}} from {bounds or 'the start'}{'' if answer.continuous else ' anew'}"
    if isinstance(answer, Renewed):
        return f"renewed {who} until {answer.expires_ms}"
    if isinstance(answer, Repeated):
        return f"repeated {who} answered at g{answer.answered_g}"
    assert isinstance(answer, Rejection)
    return f"rejection {who}: {answer.reason}"
