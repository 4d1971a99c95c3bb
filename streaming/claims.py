"""Which checkpoint a domain belongs to: the first claim on control says it (docs/adr/0013)."""

from dataclasses import dataclass

from kafka import KafkaConsumer

from totalorder import kafka_clients
from totalorder.config import Settings
from totalorder.errors import PreflightFailed
from totalorder.sequencer.control import Claim, claim_in, encode_claim
from totalorder.streaming import reading
from totalorder.streaming.record import DomainRecord


@dataclass(frozen=True, kw_only=True)
class FirstClaim:
    """The claim that holds: its owner's identity, and its offset on control."""

    owner: str
    offset: int


def first_claim(settings: Settings, incarnation: int) -> FirstClaim | None:
    """The claim of this incarnation that holds; None where nobody has claimed it yet. BrokerUnavailable."""
    with reading.reader(settings) as consumer:
        return _first(consumer, settings, incarnation)


def hold(settings: Settings, record: DomainRecord) -> FirstClaim:
    """Claims the domain for a checkpoint whose record is written already; PreflightFailed where another was first.

    What counts is the log up to the claim's own place, which is the same for everybody who reads it.
    """
    claim = Claim(incarnation=record.incarnation, owner=record.identity)
    offset = _write(settings, claim)
    with reading.reader(settings) as consumer:
        first = _first(consumer, settings, claim.incarnation, offset + 1)
    assert first is not None, "its own claim is there at the latest"
    if first.owner != record.identity:
        raise PreflightFailed(is_anothers(settings, first))
    return first


def is_anothers(settings: Settings, first: FirstClaim) -> str:
    """Why a checkpoint may not sequence a domain that was claimed by another one."""
    return (
        f"domain {settings.domain} belongs to another checkpoint than {settings.checkpoint_dir}: to the one whose "
        f"domain.json has the identity {first.owner}, by the claim at offset {first.offset} of "
        f"{settings.own_topics.control}; give that checkpoint, or another domain (where that one is lost and nothing "
        "was stamped yet: delete all topics of the domain)"
    )


def _first(
    consumer: KafkaConsumer, settings: Settings, incarnation: int, before: int | None = None
) -> FirstClaim | None:
    ((control, (begin, end)),) = reading.held(consumer, {settings.own_topics.control: 1}).items()
    ranges = {control: (begin, end if before is None else before)}
    for record in reading.records(consumer, ranges, settings.broker_timeout_s):
        claim = claim_in(record.value)
        if claim is not None and claim.incarnation == incarnation:
            return FirstClaim(owner=claim.owner, offset=record.offset)
    return None


def _write(settings: Settings, claim: Claim) -> int:
    """Its offset."""
    timeout_ms = round(settings.broker_timeout_s * 1000)
    with (
        kafka_clients.producer(
            settings.bootstrap_servers,
            settings.kafka,
            connect_timeout_s=settings.broker_timeout_s,
            delivery_timeout_ms=timeout_ms,
            request_timeout_ms=max(1, timeout_ms // 2),
            max_block_ms=timeout_ms,
        ) as producer,
        kafka_clients.kafka_errors(settings.bootstrap_servers),
    ):
        sent = producer.send(settings.own_topics.control, value=encode_claim(claim), partition=0)
        return int(sent.get(settings.broker_timeout_s).offset)
