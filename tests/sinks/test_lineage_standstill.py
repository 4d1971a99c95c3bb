"""A lineage job that stands still: where it says that it is, and how it ends."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from totalorder.errors import Error
from totalorder.sinks.runner import Lineage
from totalorder.sinks.settings import LineageSettings
from totalorder.streaming.watchdog import Status

VERDICT = Error("the job stood still for 300 s in a batch")


@pytest.fixture
def job(tmp_path: Path) -> Lineage:
    return Lineage(LineageSettings(tables=str(tmp_path)))


@pytest.mark.parametrize(
    ("status", "step"),
    [
        (Status(), None),
        (Status(message="Waiting for next trigger", is_active=False), None),
        (Status(message="Getting offsets from KafkaV2", is_active=True), "a batch, its planning"),
        (Status(message="Processing new data", is_active=True), "a batch, which is read and written"),
        (Status(message="Processing new data", is_active=True, stages=((1, 0),)), "a batch, which is read and written"),
    ],
)
def test_where_it_is(job: Lineage, status: Status, step: str | None) -> None:
    assert job.step(status) == step


def test_at_its_end_it_is_there_whatever_the_query_says(job: Lineage) -> None:
    job.stop()
    assert job.step(Status()) == "its end"


def test_tasks_of_a_cluster_are_not_judged(tmp_path: Path) -> None:
    job = Lineage(LineageSettings(tables=str(tmp_path), master="yarn"))
    assert not job.may_end(Status(stages=((1, 0),)))
    assert job.may_end(Status())
    assert Lineage(LineageSettings(tables=str(tmp_path))).may_end(Status(stages=((1, 0),)))


class Query:
    """One whose Java was killed, since it did not answer."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        raise Py4JNetworkError("Answer from Java side is empty")


def test_a_standstill_is_the_cause_of_what_fails_with_it(job: Lineage) -> None:
    job._query = Query()  # type: ignore[assignment]
    job._watchdog.verdict = VERDICT
    with pytest.raises(Error, match="stood still") as told:
        job.wait(1)
    assert told.value is VERDICT


def test_it_ends_by_a_verdict_while_the_query_runs(job: Lineage) -> None:
    class Running:
        isActive = True  # noqa: N815

    job._query = Running()  # type: ignore[assignment]
    job._watchdog.verdict = VERDICT
    with pytest.raises(Error, match="stood still"):
        job.wait(1)


def test_one_that_stood_still_at_its_end_did_not_end_well(job: Lineage) -> None:
    job.stop()
    job.check_end()
    job._watchdog.verdict = VERDICT
    with pytest.raises(Error, match="stood still"):
        job.check_end()


def test_who_started_it_is_told_when_it_is_given_up(tmp_path: Path) -> None:
    told: list[Error] = []
    job = Lineage(LineageSettings(tables=str(tmp_path)), on_abandoned=told.append)
    job.abandon(VERDICT)
    assert told == [VERDICT]
    with pytest.raises(Error, match="stood still"):
        job.wait(1)
