"""Which checkpoint a domain belongs to: the first claim on control says it (docs/adr/0013)."""

from collections.abc import Iterator
from dataclasses import dataclass

from kafka import KafkaConsumer

from totalorder.config import Settings
from totalorder.errors import PreflightFailed
from totalorder.sequencer.wire.control import Claim, claim_in, encode_claim
from totalorder.streaming import reading, writing
from totalorder.streaming.record import DomainRecord


@dataclass(frozen=True, kw_only=True)
class FirstClaim:
    """The claim that holds: its owner's identity, and its offset on control."""

    owner: str
    offset: int


def first_claim(settings: Settings, incarnation: int) -> FirstClaim | None:
    """The claim of this incarnation that holds; None where nobody has claimed it yet. BrokerUnavailable."""
    with reading.reader(settings) as consumer:
        return _known(consumer, settings).get(incarnation)


def known(settings: Settings) -> dict[int, FirstClaim]:
    """The claim that holds, by incarnation, of all that were claimed yet. BrokerUnavailable."""
    with reading.reader(settings) as consumer:
        return _known(consumer, settings)


def hold(settings: Settings, record: DomainRecord) -> FirstClaim:
    """Claims the domain for a checkpoint whose record is written already; PreflightFailed where another was first.

    What counts is the log up to the claim's own place, which is the same for everybody who reads it.
    """
    claim = _claim_of(record)
    offset = repeat(settings, record)
    with reading.reader(settings) as consumer:
        first = _known(consumer, settings, offset + 1).get(claim.incarnation)
    if first is None:
        raise PreflightFailed(f"the claim of incarnation {claim.incarnation} does not follow one that holds")
    if first.owner != record.identity:
        raise PreflightFailed(is_anothers(settings, first))
    return first


def repeat(settings: Settings, record: DomainRecord) -> int:
    """Writes the checkpoint's claim, and returns its offset. Of one that holds the domain already, it asks its workers
    for a snapshot.
    """
    return writing.write(settings, settings.own_topics.control, encode_claim(_claim_of(record)))


def _claim_of(record: DomainRecord) -> Claim:
    return Claim(incarnation=record.incarnation, owner=record.identity)


def successor(settings: Settings, record: DomainRecord, behind: int) -> FirstClaim | None:
    """The claim, from offset `behind` of control on, by which a recovered checkpoint has taken the domain over; None
    where there is none. The job stops when it meets such a claim, so batches that are over had none.
    """
    own = -1 if record.claim is None else record.claim
    with reading.reader(settings) as consumer:
        for offset, claim in _claims(consumer, settings, max(behind, own + 1), None):
            if claim.incarnation == record.incarnation + 1:
                return FirstClaim(owner=claim.owner, offset=offset)
    return None


def is_anothers(settings: Settings, first: FirstClaim) -> str:
    """Why a checkpoint may not sequence a domain that was claimed by another one."""
    return (
        f"domain {settings.domain} belongs to another checkpoint than {settings.checkpoint_dir}: to the one whose "
        f"domain.json has the identity {first.owner}, by the claim at offset {first.offset} of "
        f"{settings.own_topics.control}; give that checkpoint, or another domain (where that one is lost, `totalorder "
        "recover` makes it anew; where nothing was stamped yet, delete all topics of the domain)"
    )


def _known(consumer: KafkaConsumer, settings: Settings, before: int | None = None) -> dict[int, FirstClaim]:
    """Those on control below offset `before`. A claim of an incarnation counts behind one of the incarnation before:
    else a foreign one could take what nobody has come to yet.
    """
    found: dict[int, FirstClaim] = {}
    for offset, claim in _claims(consumer, settings, 0, before):
        if claim.incarnation == len(found) + 1:
            found[claim.incarnation] = FirstClaim(owner=claim.owner, offset=offset)
    return found


def _claims(
    consumer: KafkaConsumer, settings: Settings, behind: int, before: int | None
) -> Iterator[tuple[int, Claim]]:
    """Those on control from offset `behind` on, below `before`, and the offset of each."""
    ((control, (begin, end)),) = reading.held(consumer, {settings.own_topics.control: 1}).items()
    ranges = {control: (max(begin, behind), end if before is None else before)}
    for record in reading.records(consumer, ranges, settings.broker_timeout_s):
        if (claim := claim_in(record.value)) is not None:
            yield record.offset, claim
