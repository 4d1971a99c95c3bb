"""What an auditor does after a run: the lineage into Delta tables, and the audits on these, in one Spark session."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from totalorder.demo.link import Link
    from totalorder.sinks.audit import Result


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit's verdict, as `sinks.audit.Verdict` names it; `rows` are the first that it returned, as text."""

    title: str
    verdict: str
    rows_examined: int
    seconds: float
    rows: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What the tables say; `events` and `deliveries` are the rows that they hold."""

    events: int
    deliveries: int
    audits: tuple[Audited, ...]

    @classmethod
    def of(cls, said: dict[str, Any]) -> "Proof":
        """From what the process that runs `prove` said."""
        audits = tuple(Audited(**{**audit, "rows": tuple(audit["rows"])}) for audit in said["audits"])
        return cls(events=said["events"], deliveries=said["deliveries"], audits=audits)

    @property
    def violated(self) -> tuple[Audited, ...]:
        """The audits that found something."""
        return tuple(audit for audit in self.audits if audit.verdict == "violated")


def judged(results: "Sequence[Result]", not_judged: "Sequence[str]") -> list[Audited]:
    """What the audits found. Who cannot be judged is a violation here: all of the demo's subscribers send receipts."""
    found = [
        Audited(
            title=result.title,
            verdict=result.verdict,
            rows_examined=result.rows_examined,
            seconds=round(result.seconds, 2),
            rows=tuple(str(dict(zip(result.columns, row, strict=True))) for row in result.rows),
        )
        for result in results
    ]
    mute = [f"not judged: {name}: granted, no receipts" for name in not_judged]
    return found + [Audited(title=title, verdict="violated", rows_examined=0, seconds=0.0, rows=()) for title in mute]


def prove(demo: "Link") -> None:
    """Starts Spark and makes the tables; told to begin, it says how far it is and what it found; ends when told to."""
    from totalorder.sinks.audit import SQL_CONF, Auditor, choose
    from totalorder.sinks.runner import SPARK, Lineage
    from totalorder.sinks.session import QUICK, end_session, start_delta_session
    from totalorder.sinks.settings import load_lineage_settings
    from totalorder.sinks.tables import LineageTables
    from totalorder.streaming.service import configure_logging

    names = ("domain", "bootstrap_servers", "tables")
    settings = load_lineage_settings(None, {name: demo.spec[name] for name in names})
    configure_logging("console")
    spark = start_delta_session("totalorder demo", SPARK | SQL_CONF | QUICK, root=settings.root)
    try:
        LineageTables(spark, settings.root, settings.domain).open()
        demo.await_order()
        with Lineage(settings, until_caught_up=True, spark=spark) as lineage:
            lineage.wait()
        demo.say(events=lineage.written.events, deliveries=lineage.written.deliveries)
        auditor = Auditor(spark, settings.root)
        asked = [auditor.ask(audit) for audit in choose(())]
        not_judged = auditor.not_judged()
    finally:
        end_session(spark)
    demo.say(audits=[asdict(audit) for audit in judged(asked, not_judged)])
    demo.await_order()
