"""The source's part in the driver on a real broker: offsets, topics that come and go, shares, public cuts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cut_driver import Driver
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from spark_job import read_cuts, records
from waiting import wait_until

from totalorder import kafka_clients
from totalorder.broker import LocalBroker
from totalorder.errors import LimitExceeded, StateError, TopicChanged
from totalorder.sequencer.wire.control import Retire, Skip, parse_request
from totalorder.sequencer.wire.signing import Signatures
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming.cut import cutter as cutter_module, reading
from totalorder.streaming.cut.cutter import Cutter
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.cut.ranges import ReadPlan
from totalorder.streaming.cut.verifying import present_ids

pytestmark = pytest.mark.broker
NewTopic = Callable[..., str]
WAIT_S = 30.0


@pytest.fixture(scope="module")
def producer(broker: LocalBroker) -> Iterator[KafkaProducer]:
    with kafka_clients.producer(broker.bootstrap_servers) as found:
        yield found


def publish(producer: KafkaProducer, topic: str, count: int, *, partition: int = 0) -> None:
    for _ in range(count):
        producer.send(topic, value=b"v", partition=partition)
    producer.flush(30)


def next_end(cutter: Cutter, begin: BatchEnd, most: int = 1000) -> BatchEnd:
    end = cutter.end_after(begin, most, WAIT_S)
    assert end.cut == begin.cut + 1, "nothing came"
    return end


def counted(plans: list[ReadPlan]) -> dict[tuple[str, int], int]:
    return {(part.topic, part.partition): part.end - part.begin for plan in plans for part in plan.ranges}


def test_batches_follow_each_other_and_their_cuts_are_public(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer
) -> None:
    a, b = new_topic("a", partitions=2), new_topic("b")
    driver = drive([a, b], topic_order=(b,))
    cutter = driver.cutter()
    begin = cutter.beginning()
    assert begin.ends == {0: (0,), 1: (0, 0), 2: (0,)}
    assert cutter.end_after(begin, 1000, 0.01) is begin
    publish(producer, a, 3, partition=1)
    first = next_end(cutter, begin)
    plans = cutter.shares(begin, first)
    assert [plan.topic_order for plan in plans] == [(b,)]
    assert counted(plans)[a, 1] == first.ends[1][1]
    publish(producer, b, 2)
    second = next_end(cutter, first)
    assert cutter.shares(first, first) == []
    again = driver.cutter()  # a process that was killed behind Spark's log
    assert counted(again.shares(first, second)) == counted(cutter.shares(first, second))
    cuts = read_cuts(driver.settings)
    assert sorted(cuts) == [1, 2]
    assert cuts[1].topic_order == (b,)
    assert dict(zip([source[::2] for source in cuts[2].sources], cuts[2].ends.tolist(), strict=True)) == {
        (driver.settings.own_topics.control, 0): 0,
        (a, 0): 0,
        (a, 1): second.ends[1][1],
        (b, 0): second.ends[2][0],
    }


def test_a_restart_goes_on_where_batches_went(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer
) -> None:
    a = new_topic("a")
    driver = drive([a])
    publish(producer, a, 10)
    cutter = driver.cutter()
    first = next_end(cutter, cutter.beginning(), most=4)
    assert first.ends[1] == (4,)
    publish(producer, a, 5)
    cutter = driver.cutter()
    end, taken = first, 4
    while taken < 15:
        begin, end = end, next_end(cutter, end, most=4)
        (part,) = counted(cutter.shares(begin, end)).values()
        assert 0 < part <= 4
        taken += part
    assert end.ends[1] == (15,)


def test_topics_and_partitions_join(
    drive: Callable[..., Driver],
    new_topic: NewTopic,
    producer: KafkaProducer,
    broker: LocalBroker,
    kafka_admin: KafkaAdminClient,
) -> None:
    a = new_topic("a")
    driver = drive([a])
    cutter = driver.cutter()
    begin = cutter.beginning()
    assert cutter.end_after(begin, 1000, 0.0) is begin
    b = new_topic("b", partitions=2)
    driver.handover.tell(driver.record.admitting(driver.ids([b])))
    publish(producer, b, 2, partition=1)
    end = begin
    while end.ends.get(2) != (0, 2):
        begin, end = end, next_end(cutter, end)
    assert counted(cutter.shares(begin, end))[b, 1] <= 2
    kafka_admin.create_partitions({a: 3})
    with kafka_clients.producer(broker.bootstrap_servers) as fresh:  # the other does not know the partition yet
        publish(fresh, a, 1, partition=2)
    while end.ends[1] != (0, 0, 1):
        begin, end = end, cutter.end_after(end, 1000, WAIT_S)
    assert counted(cutter.shares(begin, end)) == {(a, 2): 1}


def test_more_partitions_than_a_domain_may_have_are_refused_at_the_start_and_later(
    drive: Callable[..., Driver],
    new_topic: NewTopic,
    kafka_admin: KafkaAdminClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a = new_topic("a", partitions=2)
    driver = drive([a])
    monkeypatch.setattr(cutter_module, "MAX_PLACES", 3)
    cutter = driver.cutter()
    begin = cutter.beginning()  # two, and control's
    assert cutter.end_after(begin, 1000, 0.0) is begin
    kafka_admin.create_partitions({a: 3})
    too_many = "have 4 partitions, and may have 3"

    def go_on() -> None:
        while cutter.end_after(begin, 1000, 0.1) is begin:
            pass

    with pytest.raises(LimitExceeded, match=too_many):
        go_on()
    with pytest.raises(LimitExceeded, match=too_many):
        driver.cutter().beginning()


def test_a_topic_is_retired_with_the_key_of_the_start(
    drive: Callable[..., Driver],
    new_topic: NewTopic,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    broker: LocalBroker,
    tmp_path: Path,
) -> None:
    """Another key in the file holds for the job from its next start on, for all of it at once."""
    a, b = new_topic("a"), new_topic("b")
    keys = tmp_path / "keys"
    keys.write_text("k" * 32)
    driver = drive([a, b], control_key_file=str(keys))
    cutter = driver.cutter()
    begin = cutter.beginning()
    keys.write_text("other" * 8)
    kafka_admin.delete_topics([a])
    publish(producer, b, 1)
    end = next_end(cutter, begin)
    driver.handover.tell(driver.record.leaving({driver.record.topic_ids[a]}, "gone"))
    publish(producer, b, 1)
    next_end(cutter, end)
    (told,) = records(broker.bootstrap_servers, driver.settings.own_topics.control)
    signed = Signatures(keys=("k" * 32,), domain=driver.settings.domain)
    assert isinstance(parse_request(told.value, signed), Retire)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_is_told_before_anything_is_planned_where_that_is_asked_for(
    drive: Callable[..., Driver],
    new_topic: NewTopic,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    broker: LocalBroker,
    again: bool,
) -> None:
    a, b = new_topic("a"), new_topic("b")
    driver = drive([a, b], on_topic_deleted="stop")
    cutter = driver.cutter()
    publish(producer, a, 3)
    end = cutter.beginning()
    while end.ends[1] != (3,):
        end = next_end(cutter, end)
    kafka_admin.delete_topics([a])
    if again:
        kafka_admin.create_topics({a: {"num_partitions": 1}})
        with kafka_clients.producer(broker.bootstrap_servers) as fresh:
            publish(fresh, a, 9)
    publish(producer, b, 1)
    words = "deleted and created again" if again else "deleted"
    with pytest.raises(StateError, match=f"topic {a} was {words} while the job ran"):
        cutter.end_after(end, 1000, WAIT_S)


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_gone_is_left_out_and_told_and_what_comes_in_its_place_is_another(
    drive: Callable[..., Driver],
    new_topic: NewTopic,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    broker: LocalBroker,
    again: bool,
) -> None:
    a, b = new_topic("a", partitions=2), new_topic("b")
    driver = drive([a, b])
    cutter = driver.cutter()
    publish(producer, a, 3)
    end = cutter.beginning()
    while end.ends[1] != (3, 0):
        end = next_end(cutter, end)
    publish(producer, a, 4)
    wait_until(lambda: cutter._looks.seen(1) == {0: 7, 1: 0}, "more of it was seen")
    kafka_admin.delete_topics([a])
    if again:
        kafka_admin.create_topics({a: {"num_partitions": 1}})
        with kafka_clients.producer(broker.bootstrap_servers) as fresh:
            publish(fresh, a, 9)
    publish(producer, b, 1)
    begin, end = end, next_end(cutter, end)
    assert end.ends == {0: end.ends[0], 1: (3, 0), 2: (1,)}
    assert counted(cutter.shares(begin, end)) == {(b, 0): 1}
    assert driver.handover.take_topics_changed()
    assert not driver.handover.take_topics_changed(), "it is said once"
    record = driver.record.leaving({driver.record.topic_ids[a]}, "gone")
    driver.handover.tell(record.admitting(driver.ids([a])) if again else record)
    publish(producer, b, 1)
    taken: dict[tuple[str, int], int] = {}
    while taken != {(driver.settings.own_topics.control, 0): 1, (b, 0): 1} | ({(a, 0): 9} if again else {}):
        begin, end = end, next_end(cutter, end)
        for place, count in counted(cutter.shares(begin, end)).items():
            taken[place] = taken.get(place, 0) + count
    assert end.ends == {0: (1,), 2: (2,)} | ({3: (9,)} if again else {})
    (told,) = records(broker.bootstrap_servers, driver.settings.own_topics.control)
    request = parse_request(told.value)
    assert isinstance(request, Retire)
    assert (request.topic, request.topic_id, request.seen) == (a, driver.record.topic_ids[a], {0: 7})
    kept = list(cutter._looks.since(end).sources)
    assert (1, 0) not in kept
    look = cutter._looker.newest()
    assert look is not None
    assert driver.record.topic_ids[a] not in {source.topic_id for source in look.sources}


def test_a_batch_that_was_planned_runs_without_what_is_gone(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer, kafka_admin: KafkaAdminClient
) -> None:
    a, b = new_topic("a"), new_topic("b")
    driver = drive([a, b])
    publish(producer, a, 3)
    publish(producer, b, 2)
    cutter = driver.cutter()
    begin = cutter.beginning()
    cutter.end_after(begin, 1000, 0.0)
    wait_until(lambda: (cutter._looks.seen(1), cutter._looks.seen(2)) == ({0: 3}, {0: 2}), "all of it was seen")
    end = next_end(cutter, begin)
    kafka_admin.delete_topics([a])
    driver.record = driver.record.leaving({driver.record.topic_ids[a]}, "gone")
    driver.handover.tell(driver.record)
    again = driver.cutter()  # the process that finds the batch in Spark's log
    assert counted(again.shares(begin, end)) == {(b, 0): 2}
    publish(producer, b, 1)
    after = next_end(again, end)
    assert 1 not in after.ends


@pytest.mark.parametrize("refilled", [0, 1, 9])
def test_what_was_planned_of_a_topic_that_is_made_again_is_never_read_as_its_own(
    drive: Callable[..., Driver],
    new_topic: NewTopic,
    producer: KafkaProducer,
    kafka_admin: KafkaAdminClient,
    broker: LocalBroker,
    refilled: int,
) -> None:
    """The new one may end before what was planned of the old one begins, or behind it."""
    a = new_topic("a")
    driver = drive([a], broker_timeout_s=3)
    cutter = driver.cutter()
    publish(producer, a, 2)
    first = cutter.beginning()
    while first.ends[1] != (2,):
        first = next_end(cutter, first)
    publish(producer, a, 3)
    end = next_end(cutter, first)
    (plan,) = cutter.shares(first, end)
    kafka_admin.delete_topics([a])
    kafka_admin.create_topics({a: {"num_partitions": 1}})
    kafka_admin.wait_for_topics([a])
    with kafka_clients.producer(broker.bootstrap_servers) as fresh:
        publish(fresh, a, refilled)
    with pytest.raises(TopicChanged, match=f"topic {a} was deleted and created again"):
        list(reading.read(plan, verify=present_ids))


def test_records_that_were_removed_before_a_batch_had_them_are_told(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer, kafka_admin: KafkaAdminClient
) -> None:
    from kafka import TopicPartition

    a = new_topic("a")
    driver = drive([a])
    publish(producer, a, 5)
    begin = driver.cutter().beginning()
    kafka_admin.delete_records({TopicPartition(a, 0): 2})
    with pytest.raises(StateError, match=f"partition 0 of topic {a} begins at offset 2 by now: 0 to 1 were removed"):
        driver.cutter().end_after(begin, 1000, 0.0)


# --- what is gone before it was read ----------------------------------------------------------------------------------


def lost_world(
    driver: Driver, producer: KafkaProducer, admin: KafkaAdminClient, a: str, b: str
) -> tuple[BatchEnd, Source]:
    """Three events of a are in batches; four more are gone, and the record says so; two of a and one of b wait."""
    cutter = driver.cutter()
    publish(producer, a, 3)
    end = cutter.beginning()
    while end.ends[1] != (3,):
        end = next_end(cutter, end)
    publish(producer, a, 6)
    publish(producer, b, 1)
    admin.delete_records({TopicPartition(a, 0): 7})
    source = Source(a, driver.record.topic_ids[a], 0)
    driver.handover.tell(driver.record.losing({source: (3, 7)}))
    return end, source


def test_a_batch_of_its_own_passes_over_what_is_lost_and_tells_control(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer, kafka_admin: KafkaAdminClient
) -> None:
    a, b = new_topic("a"), new_topic("b")
    driver = drive([a, b])
    begin, source = lost_world(driver, producer, kafka_admin, a, b)
    control = driver.settings.own_topics.control
    cutter = driver.cutter()
    end = next_end(cutter, begin)
    assert end.ends == {0: (1,), 1: (7,), 2: (0,)}
    assert counted(cutter.shares(begin, end)) == {(control, 0): 1}
    requests = [parse_request(told.value) for told in records(driver.settings.bootstrap_servers, control)]
    (request,) = requests
    assert isinstance(request, Skip)
    assert (request.topic, request.topic_id, request.partition) == source
    assert (request.begin, request.end) == (3, 7)
    assert read_cuts(driver.settings)[end.cut].ends.tolist() == [1, 7, 0]
    for process in (cutter, driver.cutter()):
        assert counted(process.shares(begin, end)) == {(control, 0): 1}, "also when it runs again"
        behind = next_end(process, end)
        found = counted(process.shares(end, behind))
        assert found.items() <= {(a, 0): 2, (b, 0): 1}.items()
        assert all(list(reading.read(plan, verify=present_ids)) for plan in process.shares(end, behind))
    again = next_end(driver.cutter(), begin)  # one that was killed in between says it once more
    assert again.ends == {0: (2,), 1: (7,), 2: (0,)}


def test_what_a_batch_takes_of_it_is_not_read(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer, kafka_admin: KafkaAdminClient
) -> None:
    a, b = new_topic("a"), new_topic("b")
    driver = drive([a, b])
    begin, _ = lost_world(driver, producer, kafka_admin, a, b)
    ends = {0: (0,), 1: (9,), 2: (1,)}
    plans = driver.cutter().shares(begin, BatchEnd(cut=begin.cut + 1, order=0, ends=ends))
    assert counted(plans) == {(a, 0): 2, (b, 0): 1}
    assert [part.slices[-1].end for plan in plans for part in plan.ranges] == [9, 1]


def test_a_partition_that_begins_behind_what_is_lost_is_whole(
    drive: Callable[..., Driver], new_topic: NewTopic, producer: KafkaProducer, kafka_admin: KafkaAdminClient
) -> None:
    """And one that begins further is not: the driver has to be told first."""
    a, b = new_topic("a"), new_topic("b")
    driver = drive([a, b])
    begin, _ = lost_world(driver, producer, kafka_admin, a, b)
    kafka_admin.delete_records({TopicPartition(a, 0): 8})
    told = rf"partition 0 of topic {a} begins at offset 8 .*: 7 to 7 were .*on_data_loss"
    with pytest.raises(StateError, match=told):
        driver.cutter().end_after(begin, 1000, WAIT_S)
