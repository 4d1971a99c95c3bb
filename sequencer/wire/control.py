"""Control records (requests and claims) and the answers to requests, with their JSON forms.

Requests come from outside and are validated as hostile: `parse_request` never raises anything but `BadRequest`, whose
reason goes back to the sender in a rejection. Answers are the sequencer's own; a malformed one is a WireError.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from totalorder.errors import WireError
from totalorder.sequencer.wire.budget import parse_json
from totalorder.sequencer.wire.limits import (
    MAX_ANSWER_BYTES,
    MAX_CONTROL_BYTES,
    MAX_COUNT,
    MAX_KAFKA_TOPIC_CHARS,
    MAX_LEASE_S,
    MAX_PARTITION_NUMBER,
    MAX_STAMPS_PARTITIONS,
    MAX_TOPIC_ID_CHARS,
    MAX_TOPICS_PER_SUBSCRIPTION,
)
from totalorder.sequencer.wire.names import valid_id, valid_nonce, valid_topic
from totalorder.sequencer.wire.signing import RETIRE, Signatures, Signer
from totalorder.sequencer.wire.stamps import Source

VERSION = 1
"""Of requests and claims."""
ANSWER_VERSION = 2
_MAX_LONG = 2**63 - 1


_SIGNATURE = "signature"


class BadRequest(ValueError):
    """A control record cannot be accepted; the text is the reason that its sender gets."""

    def __init__(self, reason: str, *, id: str | None = None, nonce: str | None = None) -> None:  # noqa: A002
        super().__init__(reason)
        self.reason = reason
        self.id = id
        self.nonce = nonce


class Unsigned(BadRequest):
    """A request that the domain takes signed only, and that is not, or not by one who may ask for it."""


@dataclass(frozen=True, kw_only=True)
class Subscribe:
    """Asks that `id` hold exactly `topics` from the record's position in π on.

    `generation` is the one before it plus 1; `nonce` is the process's own. `stamps_ends` are the ends of the stamps
    partitions as the process saw them before it asked: everything that it will need lies behind them.
    """

    id: str
    generation: int
    nonce: str
    topics: tuple[str, ...]
    lease_s: int
    stamps_ends: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Unsubscribe:
    """Ends the subscription of `id`; a change like another, so with a generation of its own."""

    id: str
    generation: int
    nonce: str


@dataclass(frozen=True, kw_only=True)
class Renew:
    """Extends the lease of the present generation of `id`."""

    id: str
    generation: int
    nonce: str


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Asks that nothing more of the Kafka topic with this name and id be stamped from the record's position in π on.

    Written by `totalorder topics retire`, and by the job for a topic that Kafka has no longer. `seen` says by partition
    how far the job has seen the topic go, at most: what is not stamped below that is lost. (Looks ask by name: in the
    moment of a deletion they may see how far a topic goes that is there in its place.) `id` and `nonce` are the
    sender's.
    """

    id: str
    nonce: str
    topic: str
    topic_id: str
    seen: Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class Skip:
    """Says that Kafka has the offsets from `begin` to before `end` of an event partition no longer, and that they are
    passed over: none was stamped, and none will be.

    Written by the job alone, in the batch that passes over them (`on_data_loss = "record"`). `id` and `nonce` are the
    sender's.
    """

    id: str
    nonce: str
    topic: str
    topic_id: str
    partition: int
    begin: int
    end: int


Request = Subscribe | Unsubscribe | Renew | Retire | Skip


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Says that the checkpoint with the identity `owner` sequences the domain in this incarnation, from 1.

    The first claim of an incarnation in the log holds, and no other one changes anything. It is written and read by
    sequencers when they start; in π it has no place. The holder writes its own once more to ask its workers for a
    snapshot of the state (snapshot.py).
    """

    incarnation: int
    owner: str


@dataclass(frozen=True, kw_only=True)
class Grant:
    """A subscription took effect at position `g` of π.

    `clock` is LC of each topic of `topics` and `former` at `g`: a consistent cut. `next_offsets` are lower bounds of
    the offsets of events after `g`, for each event partition that can hold them. `continuous` says that the former
    subscription was live until `g`; without it the stamps before `g` may lack the entries that order `former`.
    """

    id: str
    generation: int
    nonce: str
    g: int
    offset: int
    topics: tuple[str, ...]
    former: tuple[str, ...]
    continuous: bool
    clock: Mapping[str, int]
    ids: Mapping[str, int]
    next_offsets: Mapping[Source, int]
    stamps_ends: Mapping[int, int]
    stamps_partitions: int
    min_subscriptions: int
    topic_by: str
    lease_s: int
    batch: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A subscription ended at `g`: `reason` is "unsubscribed" or "expired"; `clock` is LC of its topics there."""

    id: str
    generation: int
    nonce: str
    g: int
    offset: int
    """Offset of the control record; -1 for an expiry, which has none."""
    reason: str
    clock: Mapping[str, int]
    batch: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Renewed:
    """A lease was extended until batch time `expires_ms`."""

    id: str
    generation: int
    nonce: str
    g: int
    offset: int
    expires_ms: int
    batch: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The same request once more; what answered it the first time, at `answered_g`, still holds."""

    id: str
    generation: int
    nonce: str
    g: int
    offset: int
    answered_g: int
    batch: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class _OfKafkaTopic:
    """What the job itself says of a Kafka topic. `lost` has, by partition, the first offset that was not stamped, and
    the one behind the last; partitions of which nothing is lost are not there.
    """

    id: str
    nonce: str
    g: int
    offset: int
    topic: str
    topic_id: str
    lost: Mapping[int, tuple[int, int]]
    batch: int
    incarnation: int


@dataclass(frozen=True, kw_only=True)
class Retired(_OfKafkaTopic):
    """Nothing of a Kafka topic is stamped behind `g`. What is lost goes to where the job has seen the topic go."""


@dataclass(frozen=True, kw_only=True)
class Skipped(_OfKafkaTopic):
    """What was lost of an event partition before it was stamped stands at `g`; nothing is lost where that was told
    before.
    """


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A control record was refused; id and nonce are empty when they could not be read.

    `generation` is the present generation of the id, 0 where there is none: the next request asks for one more.
    """

    id: str
    nonce: str
    generation: int
    g: int
    offset: int
    reason: str
    batch: int
    incarnation: int


Answer = Grant | Ended | Renewed | Repeated | Retired | Skipped | Rejection
Link = Grant | Ended
"""What changes a subscription: the answers of one id form a chain by generation."""
_ANSWER_KINDS: dict[str, type[Any]] = {
    "grant": Grant,
    "ended": Ended,
    "renewed": Renewed,
    "repeated": Repeated,
    "retired": Retired,
    "skipped": Skipped,
    "rejection": Rejection,
}
_CLAIM = "claim"
_CLAIM_KEYS = {"v", "kind", "incarnation", "owner"}
_MAX_CLAIM_BYTES = 512
_REQUEST_KEYS = {
    "subscribe": {"v", "kind", "id", "generation", "nonce", "topics", "lease_s", "stamps_ends"},
    "unsubscribe": {"v", "kind", "id", "generation", "nonce"},
    "renew": {"v", "kind", "id", "generation", "nonce"},
    "retire": {"v", "kind", "id", "nonce", "topic", "topic_id", "seen"},
    "skip": {"v", "kind", "id", "nonce", "topic", "topic_id", "partition", "begin", "end"},
}


def encode_request(request: Request, signer: Signer | None = None) -> bytes:
    """JSON form of a request, the value of a control record; signed where there is somebody who signs."""
    record: dict[str, Any] = {"v": VERSION, "kind": type(request).__name__.lower(), **vars(request)}
    for name in ("stamps_ends", "seen"):
        if name in record:
            record[name] = {str(partition): end for partition, end in record[name].items()}
    content = _ENCODER.encode(record).encode()
    if signer is None:
        return content
    return _ENCODER.encode(record | {_SIGNATURE: signer.sign(content)}).encode()


def signer_of(request: Request) -> str:
    """In whose name a request must be signed: topics are everybody's, and no subscriber retires or skips any."""
    return RETIRE if isinstance(request, Retire | Skip) else request.id


def encode_claim(claim: Claim) -> bytes:
    """JSON form of a claim, the value of a control record."""
    return _ENCODER.encode({"v": VERSION, "kind": _CLAIM, **vars(claim)}).encode()


def claim_in(value: bytes | None) -> Claim | None:
    """The claim that a control record is; None for any other record, also for one that is nearly a claim."""
    if value is None or len(value) > _MAX_CLAIM_BYTES or b'"claim"' not in value:
        return None
    try:
        record = _load(value)
        if record.keys() != _CLAIM_KEYS or record["kind"] != _CLAIM or not valid_nonce(record["owner"]):
            return None
        _integer(record, "v", VERSION, VERSION)
        return Claim(incarnation=_integer(record, "incarnation", 1, _MAX_LONG), owner=record["owner"])
    except BadRequest:
        return None


def parse_request(value: bytes, signatures: Signatures | None = None) -> Request:
    """Reads a control record's value; raises BadRequest with the reason for anything that is not exactly a request, and
    Unsigned for one that should be signed and is not. Where nothing need be signed a signature is passed over.
    """
    record = _load(value)
    signature = record.pop(_SIGNATURE, None)
    id_, nonce = record.get("id"), record.get("nonce")
    known_id = id_ if isinstance(id_, str) and valid_id(id_) else None
    known_nonce = nonce if isinstance(nonce, str) and valid_nonce(nonce) else None
    try:
        request = _parse_fields(record, known_id, known_nonce)
    except BadRequest as bad:
        raise BadRequest(bad.reason, id=known_id, nonce=known_nonce) from None
    if signatures is not None and not signatures.hold(_ENCODER.encode(record).encode(), signer_of(request), signature):
        raise Unsigned(f"not signed with {_KEY_WANTED[type(request)]}", id=known_id, nonce=known_nonce)
    return request


def may_say(word: bytes, value: bytes) -> bool:
    """Whether a control record can be of the kind of this name: most are of another one, and need not be read to see
    that. A name in JSON may be written with escapes.
    """
    return word in value or b"\\u" in value


def skips_in(values: Iterable[bytes], signatures: Signatures | None = None) -> Iterator[Skip]:
    """Those of control records that say what is lost."""
    for value in values:
        if may_say(b"skip", value):
            with suppress(BadRequest):
                request = parse_request(value, signatures)
                if isinstance(request, Skip):
                    yield request


_KEY_WANTED: dict[type[Request], str] = dict.fromkeys(
    (Subscribe, Unsubscribe, Renew), "the control key of this id (control_key)"
) | dict.fromkeys((Retire, Skip), "the domain's control key (control_key_file)")


def _load(value: bytes) -> dict[str, Any]:
    if len(value) > MAX_CONTROL_BYTES:
        raise BadRequest(f"the record has more than {MAX_CONTROL_BYTES} bytes, the limit")
    try:
        record = _DECODER.decode(value.decode("utf-8"))
    except (ValueError, RecursionError):
        raise BadRequest("the record is not JSON in UTF-8 with unique keys") from None
    if not isinstance(record, dict):
        raise BadRequest("the record is not a JSON object")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_unique_keys)
_ENCODER = json.JSONEncoder(separators=(",", ":"), sort_keys=True, ensure_ascii=False)


def _parse_fields(record: Mapping[str, Any], id_: str | None, nonce: str | None) -> Request:
    if type(record.get("v")) is not int or record["v"] != VERSION:
        raise BadRequest(f"version {_short(record.get('v'))} is unknown; this sequencer reads version {VERSION}")
    kind = record.get("kind")
    keys = _REQUEST_KEYS.get(kind) if isinstance(kind, str) else None
    if keys is None:
        raise BadRequest(f"kind {_short(kind)} is unknown; known are {', '.join(sorted(_REQUEST_KEYS))}")
    if record.keys() != keys:
        odd = sorted(record.keys() ^ keys)
        raise BadRequest(f"fields are missing or unknown: {_short(', '.join(odd))}")
    if id_ is None:
        raise BadRequest("id is not 1 to 128 of the characters A-Z a-z 0-9 . _ : @ -")
    if nonce is None:
        raise BadRequest("nonce is not 1 to 64 of the characters A-Z a-z 0-9 . _ : @ -")
    if kind in ("retire", "skip"):
        return (_retire if kind == "retire" else _skip)(record, id_, nonce)
    generation = _integer(record, "generation", 1, _MAX_LONG)
    if kind == "subscribe":
        return Subscribe(
            id=id_,
            generation=generation,
            nonce=nonce,
            topics=_topics(record["topics"]),
            lease_s=_integer(record, "lease_s", 0, MAX_LEASE_S),
            stamps_ends=_ends("stamps_ends", record["stamps_ends"], MAX_STAMPS_PARTITIONS),
        )
    return (Unsubscribe if kind == "unsubscribe" else Renew)(id=id_, generation=generation, nonce=nonce)


def _retire(record: Mapping[str, Any], id_: str, nonce: str) -> Retire:
    return Retire(
        id=id_,
        nonce=nonce,
        topic=_kafka_text(record, "topic", MAX_KAFKA_TOPIC_CHARS),
        topic_id=_kafka_text(record, "topic_id", MAX_TOPIC_ID_CHARS),
        seen=_ends("seen", record["seen"], MAX_PARTITION_NUMBER),
    )


def _skip(record: Mapping[str, Any], id_: str, nonce: str) -> Skip:
    begin = _integer(record, "begin", 0, MAX_COUNT - 1)
    return Skip(
        id=id_,
        nonce=nonce,
        topic=_kafka_text(record, "topic", MAX_KAFKA_TOPIC_CHARS),
        topic_id=_kafka_text(record, "topic_id", MAX_TOPIC_ID_CHARS),
        partition=_integer(record, "partition", 0, MAX_PARTITION_NUMBER),
        begin=begin,
        end=_integer(record, "end", begin + 1, MAX_COUNT),
    )


def _integer(record: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = record[name]
    if type(value) is not int or not least <= value <= most:
        raise BadRequest(f"{name} {_short(value)} is not an integer from {least} to {most}")
    return value


def _topics(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise BadRequest("topics is not a list with at least one name")
    if len(value) > MAX_TOPICS_PER_SUBSCRIPTION:
        raise BadRequest(f"{len(value)} topics; the limit is {MAX_TOPICS_PER_SUBSCRIPTION} for a subscription")
    for topic in value:
        if not valid_topic(topic):
            raise BadRequest(f"topic {_short(topic)} is not a usable name")
    if len(set(value)) != len(value):
        raise BadRequest("a topic stands twice in topics")
    return tuple(sorted(value))


def _kafka_text(record: Mapping[str, Any], name: str, most: int) -> str:
    value = record[name]
    if not isinstance(value, str) or not 0 < len(value) <= most or not value.isascii() or not value.isprintable():
        raise BadRequest(f"{name} {_short(value)} is not text of 1 to {most} characters of ASCII")
    return value


def _ends(name: str, value: object, most: int) -> dict[int, int]:
    odd = BadRequest(f"{name} is not an object of partition numbers and offsets")
    if not isinstance(value, dict) or len(value) > most:
        raise odd
    ends: dict[int, int] = {}
    for partition, end in value.items():
        small = partition.isascii() and partition.isdigit() and str(int(partition[:9])) == partition
        if not small or type(end) is not int or not 0 <= end <= _MAX_LONG:
            raise odd
        ends[int(partition)] = end
    return ends


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def answer_key(answer: Answer) -> bytes:
    """Key of an answer on the compacted grants topic: nothing but a grant or an end may replace a grant."""
    if isinstance(answer, Grant | Ended):
        return answer.id.encode()
    if isinstance(answer, Renewed):
        return f"renew/{answer.id}".encode()
    if isinstance(answer, Retired):
        return f"retired/{answer.topic}/{answer.topic_id}".encode()
    if isinstance(answer, Skipped):
        return f"skipped/{answer.offset}".encode()
    return f"reject/{answer.offset}".encode()


def encode_answer(answer: Answer) -> bytes:
    """JSON form of an answer, the value of a record on grants; equal answers have equal bytes."""
    record = {"v": ANSWER_VERSION, "kind": type(answer).__name__.lower(), **vars(answer)}
    if isinstance(answer, Grant):
        record["next_offsets"] = sorted([*source, offset] for source, offset in answer.next_offsets.items())
        record["stamps_ends"] = {str(partition): end for partition, end in answer.stamps_ends.items()}
    if isinstance(answer, Retired | Skipped):
        record["lost"] = {str(partition): offsets for partition, offsets in answer.lost.items()}
    return _ENCODER.encode(record).encode()


def decode_answer(value: bytes) -> Answer:
    """Reads a record of the grants topic; raises WireError for one that the sequencer cannot have written. What a later
    one says beside is passed over (docs/formats.md, "What may be added").
    """
    try:
        record = parse_json(value, MAX_ANSWER_BYTES)
        version, kind = record.pop("v"), record.pop("kind")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise WireError(f"a record on grants is not an answer ({error!r})", remedy=_FOREIGN) from None
    if version != ANSWER_VERSION:
        raise WireError(
            f"an answer on grants has version {_short(version)}; this program reads {ANSWER_VERSION}",
            remedy="Update totalorder on this side",
        )
    try:
        shape = _ANSWER_KINDS[kind]
        if kind == "grant":
            _read_grant(record)
        if kind in ("retired", "skipped"):
            record["lost"] = {int(part): _lost(*offsets) for part, offsets in record["lost"].items()}
        _check_types(record)
        answer: Answer = shape(**{name: record[name] for name in shape.__dataclass_fields__})
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise WireError(f"an answer of kind {_short(kind)} on grants is malformed: {error}", remedy=_FOREIGN) from None
    return answer


_FOREIGN = "Only the sequencer may write there; look for another writer and restrict it"


def _read_grant(record: dict[str, Any]) -> None:
    record["topics"] = tuple(record["topics"])
    record["former"] = tuple(record["former"])
    record["next_offsets"] = {Source(*source): offset for *source, offset in record["next_offsets"]}
    record["stamps_ends"] = {int(partition): end for partition, end in record["stamps_ends"].items()}
    clock = record["clock"]
    if clock.keys() != {*record["topics"], *record["former"]}:
        raise ValueError("the clock does not hold the topics of the subscription")
    if record["ids"].keys() != clock.keys():
        raise ValueError("ids are missing")
    if len(set(record["ids"].values())) < len(clock):
        raise ValueError("two topics have one id")
    if type(record["continuous"]) is not bool or record["min_subscriptions"] not in (1, 2):
        raise ValueError("continuous or min_subscriptions is out of range")
    partitions = record["stamps_partitions"]
    if type(partitions) is not int or not 1 <= partitions <= MAX_STAMPS_PARTITIONS:
        raise ValueError(f"stamps_partitions is not from 1 to {MAX_STAMPS_PARTITIONS}")


def _lost(first: object, end: object) -> tuple[int, int]:
    if type(first) is not int or type(end) is not int or not 0 <= first < end <= _MAX_LONG:
        raise ValueError("what is lost is no range of offsets")
    return first, end


_COUNTS = {"g", "offset", "generation", "batch", "incarnation", "expires_ms", "answered_g", "lease_s"}
_TEXTS = {"id", "nonce", "topic", "topic_id", "reason", "topic_by"}
_LEAST = {"offset": -1}
"""An expiry has no record."""


def _check_types(record: Mapping[str, Any]) -> None:
    for name in _COUNTS & record.keys():
        _check_count(name, record[name], _LEAST.get(name, 0))
    for name in _TEXTS & record.keys():
        _check_text(name, record[name])
    for source in record.get("next_offsets", ()):
        _check_text("the name of an event partition's topic", source.topic)
        _check_text("its id", source.topic_id)
        if type(source.partition) is not int or not 0 <= source.partition <= MAX_PARTITION_NUMBER:
            raise ValueError("the number of an event partition is out of range")
    for name in ("clock", "ids", "next_offsets", "stamps_ends"):
        counts: Iterable[object] = record[name].values() if name in record else ()
        for count in counts:
            _check_count(name, count, 0)
    for name in record.get("clock", ()):
        _check_text("a topic", name)


def _check_count(name: str, value: object, least: int) -> None:
    if type(value) is not int or not least <= value <= _MAX_LONG:
        raise ValueError(f"{name} is not an integer from {least} to {_MAX_LONG}")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    value.encode()  # ValueError for half a character, which no log and no table could take
