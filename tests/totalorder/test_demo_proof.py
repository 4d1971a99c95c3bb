"""What the demo's auditor says: the audits' results, and whoever they could not judge."""

import json
from dataclasses import asdict

from totalorder.demo.proof import Audited, Proof, judged
from totalorder.sinks.audit import Result, parse_audit

AUDIT = parse_audit("mine", "SELECT 1")
HOLDS = Result(
    audit=AUDIT, title="A title", verdict="holds", rows_examined=7, seconds=0.123, columns=(), rows=(), more=False
)


def said(*results: Result, not_judged: tuple[str, ...] = ()) -> Proof:
    """The proof as the demo has it, from JSON."""
    audits = [asdict(audit) for audit in judged(results, not_judged)]
    return Proof.of(json.loads(json.dumps({"events": 3, "deliveries": 5, "audits": audits})))


def test_results_arrive_as_they_were() -> None:
    (told,) = said(HOLDS).audits
    assert told == Audited(title="A title", verdict="holds", rows_examined=7, seconds=0.12, rows=())
    assert said(HOLDS).violated == ()


def test_a_subscriber_without_receipts_breaks_the_proof_and_is_named() -> None:
    (mute,) = said(HOLDS, not_judged=("board-jfk",)).violated
    assert mute.title == "not judged: board-jfk: granted, no receipts"
