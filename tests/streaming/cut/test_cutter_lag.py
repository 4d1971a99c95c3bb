"""Batches planned while a broker lags: it may not have heard of a topic yet, or still tell one that is gone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from fake_brokers import FakeBrokers
from spark_shared import settings_for
from waiting import wait_until

from totalorder.config import Settings
from totalorder.errors import BrokerUnavailable, StateError
from totalorder.streaming.cut.cutter import Cutter
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.handover import Handover
from totalorder.streaming.record import DomainRecord, EventTopic

FORMER, NOW, CONTROL = (UUID(int=number) for number in (4, 5, 6))
WAIT_S = 30.0


@pytest.fixture
def settings(tmp_path: Path, unique_name: Callable[[str], str], brokers: FakeBrokers) -> Settings:
    return settings_for(unique_name("lag"), brokers.bootstrap_servers, tmp_path, topics=("orders",))


@pytest.fixture
def brokers() -> Iterator[FakeBrokers]:
    """Two of them, each of which leads a partition of `orders`, that has three events."""
    made = FakeBrokers(2)
    made.ids["orders"] = NOW
    made.leaders = {("orders", 0): 0, ("orders", 1): 1}
    made.ends = {("orders", 0): 1, ("orders", 1): 2}
    yield made
    made.close()


class Nowhere:
    """Where cuts go: these brokers take no records, and what they tell of topics is what is tested."""

    def __init__(self, *_: object) -> None: ...

    def send(self, record: object) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def handover() -> Iterator[Handover]:
    made = Handover.make()
    yield made
    made.remove()


@pytest.fixture
def cutter(
    settings: Settings, brokers: FakeBrokers, handover: Handover, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cutter]:
    monkeypatch.setattr("totalorder.streaming.cut.cutter.Publisher", Nowhere)
    control = settings.own_topics.control
    brokers.ids[control], brokers.leaders[control, 0] = CONTROL, 0
    topics = [EventTopic(name="orders", topic_id=str(NOW))]
    handover.tell(DomainRecord.begin(settings, topics=topics, own_ids={control: str(CONTROL)}))
    made = Cutter(SourceSettings.of(settings, str(handover.folder)))
    yield made
    made.close()


def orders(end: BatchEnd) -> tuple[int, ...]:
    """How far a batch goes in the partitions of `orders`."""
    return end.ends[1]


def told(brokers: FakeBrokers, **ids: UUID) -> dict[str, UUID]:
    """What a broker tells that has these ids, and lacks `orders` where it is not given."""
    return {name: id_ for name, id_ in brokers.ids.items() if name != "orders"} | ids


@pytest.mark.parametrize("lagging", [0, 1])
@pytest.mark.parametrize("ids", [{}, {"orders": FORMER}])
def test_a_broker_that_lags_ends_nothing(
    cutter: Cutter, brokers: FakeBrokers, handover: Handover, lagging: int, ids: dict[str, UUID]
) -> None:
    brokers.stale[lagging] = told(brokers, **ids)
    begin = cutter.beginning()
    assert orders(begin) == (0, 0)
    end = cutter.end_after(begin, 100, WAIT_S)
    while orders(end) != (1, 2):
        end = cutter.end_after(end, 100, WAIT_S)
    brokers.stale[1 - lagging], _ = told(brokers, **ids), brokers.stale.pop(lagging)
    brokers.ends["orders", 0] = 9
    assert orders(cutter.end_after(end, 100, WAIT_S)) == (9, 2)
    assert not handover.take_topics_changed()


@pytest.mark.parametrize("ids", [{}, {"orders": FORMER}])
def test_a_broker_that_lags_while_a_batch_is_planned(
    cutter: Cutter, brokers: FakeBrokers, ids: dict[str, UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, awaited = cutter.beginning(), cutter._awaited

    def lagging(begin: BatchEnd, wait_s: float) -> object:
        waiting = awaited(begin, wait_s)
        brokers.stale = {0: told(brokers, **ids)}
        return waiting

    monkeypatch.setattr(cutter, "_awaited", lagging)
    for _ in range(3):  # whichever is asked first
        end = cutter.end_after(begin, 100, WAIT_S)
        assert end.cut == 1
        brokers.stale = {1: told(brokers, **ids)}


@pytest.mark.parametrize("ids", [{}, {"orders": FORMER}])
@pytest.mark.parametrize("stops", [False, True])
def test_brokers_that_all_tell_otherwise_for_a_while_are_believed(
    cutter: Cutter, brokers: FakeBrokers, handover: Handover, ids: dict[str, UUID], stops: bool
) -> None:
    begin = cutter.beginning()
    wait_until(lambda: orders(cutter.end_after(begin, 100, WAIT_S)) == (1, 2), "all that there is")
    cutter._settings = replace(cutter._settings, retires_deleted=not stops)
    brokers.ids = told(brokers, **ids)
    if stops:
        did = "deleted and created again" if ids else "deleted"
        with pytest.raises(StateError, match=f"topic orders was {did} while the job ran"):
            cutter.end_after(begin, 100, WAIT_S)
    else:
        assert cutter.end_after(begin, 100, 0.1) is begin, "nothing waits of what is there"
    assert handover.take_topics_changed() != stops


def test_a_topic_that_was_thought_to_be_gone_comes_again(
    cutter: Cutter, brokers: FakeBrokers, handover: Handover
) -> None:
    """As long as the record does not say that it is gone, nothing of it is lost."""
    begin = cutter.beginning()
    wait_until(lambda: orders(cutter.end_after(begin, 100, WAIT_S)) == (1, 2), "all that there is")
    brokers.ids, there = told(brokers), brokers.ids
    assert cutter.end_after(begin, 100, 0.1) is begin
    assert handover.take_topics_changed()
    brokers.ids = there
    wait_until(lambda: cutter.end_after(begin, 100, 0.1) is not begin, "it is planned again")
    assert orders(cutter.end_after(begin, 100, WAIT_S)) == (1, 2)


class Unheard(Nowhere):
    """As a broker that does not acknowledge a cut in time."""

    def await_acknowledged(self, timeout_s: float) -> None:
        raise BrokerUnavailable("the cut is not acknowledged", remedy="wait")


def test_nothing_is_read_before_the_cut_is_acknowledged(cutter: Cutter) -> None:
    begin = cutter.beginning()
    end = cutter.end_after(begin, 100, WAIT_S)
    cutter._publisher = Unheard()  # type: ignore[assignment]
    with pytest.raises(BrokerUnavailable, match="the cut is not acknowledged"):
        cutter.shares(begin, end)


def test_without_control_there_is_no_domain(cutter: Cutter, brokers: FakeBrokers, settings: Settings) -> None:
    """Event topics may go; requests that are not read would be lost."""
    begin, control = cutter.beginning(), settings.own_topics.control
    wait_until(lambda: orders(cutter.end_after(begin, 100, WAIT_S)) == (1, 2), "all that there is")
    brokers.ids = {name: id_ for name, id_ in brokers.ids.items() if name != control}
    with pytest.raises(StateError, match=f"topic {control} was deleted while the job ran"):
        cutter.end_after(begin, 100, WAIT_S)
