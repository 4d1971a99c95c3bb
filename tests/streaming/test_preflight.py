"""The decision whether the job may run: every rule, and every problem at once."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from totalorder.config import DAY_MS, Settings, make_settings
from totalorder.errors import PreflightFailed, StateError
from totalorder.sequencer.wire.stamps import Source
from totalorder.streaming import preflight
from totalorder.streaming.checkpoint import CheckpointFacts
from totalorder.streaming.claims import FirstClaim
from totalorder.streaming.cut.offset import BatchEnd
from totalorder.streaming.preflight import Facts, TopicFacts
from totalorder.streaming.record import DomainRecord, EventTopic, Recovered
from totalorder.streaming.topics import owned_by_domains
from totalorder.streaming.written import Tail, Written

SAFE = {"cleanup.policy": "delete"}
NEW = CheckpointFacts(record=None, planned=-1, committed=-1, next_offsets={}, planned_offsets={}, planned_ms=0)
NOTHING = Written()
CONTROL = Source("d.control", "id-d.control", 0)
SOURCES = (Source("a", "id-a", 0), Source("b", "id-b", 0), Source("b", "id-b", 1), CONTROL)
READ = dict.fromkeys(SOURCES, 5)


def settings(**more: object) -> Settings:
    return make_settings(**{"domain": "d", "topics": ("a", "b"), "checkpoint_dir": "/ckpt", **more})


def topic(topic_id: str, earliest: int = 0, latest: int = 0, parts: int = 1, **configs: str) -> TopicFacts:
    return TopicFacts(
        topic_id=topic_id,
        earliest=dict.fromkeys(range(parts), earliest),
        latest=dict.fromkeys(range(parts), latest),
        configs={**SAFE, **{key.replace("_", "."): value for key, value in configs.items()}},
    )


def own(given: Settings, latest: int = 0) -> dict[str, TopicFacts]:
    return {
        made.name: TopicFacts(
            topic_id=f"id-{made.name}",
            earliest=dict.fromkeys(range(made.partitions), 0),
            latest=dict.fromkeys(range(made.partitions), latest),
            configs=made.configs,
        )
        for made in preflight.own_topics(given)
    }


def events() -> dict[str, TopicFacts]:
    return {"a": topic("id-a", latest=10), "b": topic("id-b", latest=10, parts=2)}


def begun(given: Settings, **more: object) -> CheckpointFacts:
    """A checkpoint of the domain that has read 5 records of each partition, and plans to read 7."""
    own_ids = {name: facts.topic_id for name, facts in own(given).items()}
    topics = [EventTopic(name=name, topic_id=facts.topic_id) for name, facts in events().items()]
    record = DomainRecord.begin(given, topics=topics, own_ids=own_ids)
    facts = CheckpointFacts(
        record=record,
        planned=3,
        committed=2,
        next_offsets={**READ, CONTROL: 0},
        planned_offsets=dict.fromkeys(SOURCES, 7),
        planned_ms=1004,
    )
    return replace(facts, **more)  # type: ignore[arg-type]


def wrote(batch: int, read: int = 5, answered: tuple[int, int] = (0, -1)) -> Written:
    """Stamps of batches up to this one, of which each took a millisecond; `read` records of each event partition."""
    tails = {part: Tail(batch=batch, time_ms=1000 + batch, digest="d") for part in range(4)}
    return Written(tails=tails, next_offsets=dict.fromkeys(SOURCES[:3], read), answered=answered)


def problems(
    given: Settings,
    topics: Mapping[str, TopicFacts],
    checkpoint: CheckpointFacts = NEW,
    written: Written = NOTHING,
    claim: FirstClaim | None = None,
) -> str:
    facts = Facts(topics=topics, checkpoint=checkpoint, written=written, claim=claim)
    try:
        preflight.check(given, facts)
    except PreflightFailed as failed:
        return str(failed)
    return ""


def test_a_first_start_creates_the_domains_topics() -> None:
    given = settings()
    facts = Facts(topics=events(), checkpoint=NEW, written=NOTHING, claim=None)
    preflight.check(given, facts)
    made = {new.name: new for new in preflight.missing_own(given, facts)}
    assert sorted(made) == ["d.control", "d.cuts", "d.grants", "d.positions", "d.receipts", "d.stamps", "d.state"]
    assert made["d.control"].configs["retention.ms"] == made["d.state"].configs["retention.ms"] == "-1"
    assert made["d.grants"].configs["cleanup.policy"] == "compact"
    assert int(made["d.grants"].configs["min.compaction.lag.ms"]) >= int(made["d.stamps"].configs["retention.ms"])
    assert made["d.stamps"].partitions == given.stamps_partitions
    assert made["d.receipts"] == replace(made["d.stamps"], name="d.receipts")
    assert made["d.cuts"] == replace(made["d.stamps"], name="d.cuts", partitions=1)


def test_a_later_start_is_quiet() -> None:
    given = settings()
    assert problems(given, {**own(given, latest=9), **events()}, begun(given), wrote(3)) == ""


def test_stamps_kept_for_ever_are_never_outlived_by_compaction() -> None:
    given = settings(topic_settings={"stamps_retention_ms": -1})
    (grants,) = [made for made in preflight.own_topics(given) if made.name == "d.grants"]
    assert int(grants.configs["min.compaction.lag.ms"]) > 100 * 365 * DAY_MS


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_starts_become_concrete(starting: str) -> None:
    given = settings(starting_offsets=starting)
    first = preflight.first_topics(given, Facts(topics=events(), checkpoint=NEW, written=NOTHING, claim=None))
    record = DomainRecord.begin(given, topics=first, own_ids={})
    assert record.starts == ({} if starting == "earliest" else dict.fromkeys(SOURCES[:3], 10))
    assert record.topic_ids == {"a": "id-a", "b": "id-b"}


def test_all_problems_at_once() -> None:
    said = problems(settings(), {"a": topic("id-a", cleanup_policy="compact,delete")})
    assert "2 problems" in said
    assert "topic a has cleanup.policy=compact,delete" in said
    assert "topic b does not exist" in said


def test_unfit_topics_are_left_out_unless_none_is_left() -> None:
    given = settings()
    compacted = topic("id-b", cleanup_policy="compact")
    facts = Facts(topics={**events(), "b": compacted}, checkpoint=NEW, written=NOTHING, claim=None)
    preflight.check(given, facts)
    names, unfit = preflight.fit(given, facts)
    assert names == ("a",)
    assert "cleanup.policy=compact" in unfit["b"][0]
    assert [first.name for first in preflight.first_topics(given, facts)] == ["a"]
    assert "topic b has cleanup.policy=compact" in problems(settings(topics=("b",)), {"b": compacted})


def test_a_topic_that_is_read_and_became_compacted_is_refused() -> None:
    given = settings()
    topics = {**own(given), **events(), "a": topic("id-a", latest=10, cleanup_policy="compact")}
    assert "topic a has cleanup.policy=compact" in problems(given, topics, begun(given))


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("d.stamps", {"cleanup.policy": "compact"}, "must have delete"),
        ("d.grants", {"cleanup.policy": "delete"}, "must have compact"),
        ("d.receipts", {"cleanup.policy": "compact"}, "must have delete"),
        ("d.cuts", {"cleanup.policy": "compact"}, "must have delete"),
        ("d.control", {"retention.ms": "604800000"}, "must keep everything"),
        ("d.control", {"cleanup.policy": "compact"}, "must have delete"),
        ("d.state", {"retention.bytes": "1000"}, "must keep everything"),
        ("d.state", {"cleanup.policy": "compact"}, "must have delete"),
    ],
)
def test_own_topics_with_other_settings(name: str, changed: dict[str, str], says: str) -> None:
    given = settings()
    topics = {**own(given), **events()}
    topics[name] = replace(topics[name], configs={**topics[name].configs, **changed})
    assert says in problems(given, topics)


def test_own_topics_with_other_partitions() -> None:
    given = settings()
    topics = {**own(settings(stamps_partitions=2)), **events()}
    assert "d.stamps has 2 partitions and must have 4" in problems(given, topics)


def test_a_lost_checkpoint_never_restarts_the_clocks() -> None:
    given = settings()
    assert "clocks would start at 1" in problems(given, {**own(given, latest=7), **events()}, written=wrote(3))


def test_a_checkpoint_of_something_else() -> None:
    given = settings()
    assert "no domain.json" in problems(given, events(), replace(NEW, planned=4))


def test_a_checkpoint_of_another_domain() -> None:
    other = settings(domain="e")
    said = problems(settings(), {**own(settings()), **events()}, begun(other))
    assert "domain is 'd' and the checkpoint was made with 'e'" in said
    assert "1 problem" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [("shards", 2), ("min_subscriptions", 2), ("topic_by", "key"), ("keyframe_every", 7), ("stamps_partitions", 8)],
)
def test_fixed_settings(name: str, value: object) -> None:
    was = settings()
    said = problems(settings(**{name: value}), {**own(was), **events()}, begun(was))
    assert f"{name} is {value!r} and the checkpoint was made with" in said


def test_a_recreated_topic_even_one_grown_past_its_old_end() -> None:
    given = settings(on_topic_deleted="stop")
    topics = {**own(given), **events(), "a": topic("another", latest=500)}
    assert "topic a was deleted and created again" in problems(given, topics, begun(given))


def test_own_topics_lost_or_recreated() -> None:
    given = settings()
    topics = {**own(given), **events()}
    del topics["d.stamps"]
    topics["d.grants"] = replace(topics["d.grants"], topic_id="another")
    said = problems(given, topics, begun(given))
    assert "topic d.stamps of the checkpoint does not exist any more" in said
    assert "topic d.grants was deleted and created again" in said


def test_a_topic_taken_out_of_the_settings_or_deleted() -> None:
    given = settings()
    topics = {**own(given), **events()}
    assert "topic b was taken out" in problems(settings(topics=("a",)), topics, begun(given))
    del topics["b"]
    stopping = settings(on_topic_deleted="stop")
    assert "topic b of the checkpoint does not exist" in problems(stopping, topics, begun(stopping))


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_gone_is_let_go(again: bool) -> None:
    given, topics = settings(), {**own(settings()), **events()}
    del topics["a"]
    if again:
        topics["a"] = topic("another", latest=2)
    checkpoint = begun(given)
    assert problems(given, topics, checkpoint) == ""
    assert checkpoint.record is not None
    present = {name: facts.topic_id for name, facts in topics.items()}
    (left,) = preflight.gone(checkpoint.record, present)
    assert left.topic_id == "id-a"
    record = checkpoint.record.leaving({"id-a"}, "gone")
    assert preflight.gone(record, present) == ()
    facts = Facts(topics=topics, checkpoint=replace(checkpoint, record=record), written=NOTHING, claim=None)
    assert preflight.fit(given, facts) == (("a",) if again else (), {})


def test_what_was_stamped_of_a_topic_that_is_gone_is_not_asked_for() -> None:
    """Later batches have it not, so that no plan goes as far as stamps do."""
    given, topics = settings(), {**own(settings(), latest=9), **events()}
    checkpoint = begun(given, planned_offsets=dict.fromkeys(SOURCES[1:], 7), next_offsets=dict.fromkeys(SOURCES[1:], 5))
    assert "an old copy" in problems(given, topics, checkpoint, wrote(3))
    assert checkpoint.record is not None
    del topics["a"]
    left = replace(checkpoint, record=checkpoint.record.leaving({"id-a"}, "retired"))
    assert problems(given, topics, left, wrote(3)) == ""


def test_a_topic_that_was_retired_may_be_there_and_not_be_selected() -> None:
    given, topics = settings(topics=("a",)), {**own(settings()), **events()}
    checkpoint = begun(settings())
    assert checkpoint.record is not None
    left = replace(checkpoint, record=checkpoint.record.leaving({"id-b"}, "retired"))
    assert problems(given, topics, left) == ""
    facts = Facts(topics=topics, checkpoint=left, written=NOTHING, claim=None)
    assert preflight.fit(settings(), facts) == ((), {}), "it is never admitted again"


def test_retention_passed_the_checkpoint() -> None:
    given = settings()
    topics = {**own(given), **events(), "a": topic("id-a", earliest=8, latest=10)}
    assert "topic a, partition 0: offsets 5 to 7 were removed" in problems(given, topics, begun(given))
    topics["a"] = topic("id-a", earliest=5, latest=10)
    assert problems(given, topics, begun(given)) == ""


@pytest.mark.parametrize("name", ["a", "d.control"])
def test_retention_is_borne_where_that_was_asked_for_but_not_that_of_control(name: str) -> None:
    given = settings(on_data_loss="record")
    topics = {**own(given), **events()}
    topics[name] = replace(topic(f"id-{name}", earliest=8, latest=10), configs=topics[name].configs)
    said = problems(given, topics, begun(given))
    assert ("offsets" in said) == (name == "d.control")


def test_what_is_lost_goes_from_where_the_next_batch_begins() -> None:
    """Of topics that are read, and only what the record does not know yet."""
    given = settings()
    checkpoint = begun(given)
    assert checkpoint.record is not None
    topics = {"a": topic("id-a", earliest=8, latest=10), "b": topic("id-b", earliest=5, latest=10, parts=3)}
    a, new = SOURCES[0], Source("b", "id-b", 2)
    lost = preflight.losses(checkpoint.record, topics, checkpoint.next_offsets)
    assert lost == {a: (5, 8), new: (0, 5)}
    record = checkpoint.record.losing(lost)
    assert preflight.losses(record, topics, checkpoint.next_offsets) == {}
    topics["a"] = topic("id-a", earliest=9, latest=10)
    more = preflight.losses(record, topics, checkpoint.next_offsets)
    assert more == {a: (8, 9)}
    assert record.losing(more).lost == {a: (5, 9), new: (0, 5)}
    begun_later = record.losing({a: (20, 22)})
    assert begun_later.lost[a] == (20, 22)
    topics["a"] = topic("another", earliest=9, latest=10)
    assert preflight.losses(record, topics, checkpoint.next_offsets) == {}
    facts = {**own(given), **events(), "a": topic("id-a", earliest=8, latest=10)}
    assert problems(given, facts, replace(checkpoint, record=record)) == "", "what is known is no reason to stop"


@pytest.mark.parametrize("begins", [5, 6, 7])
def test_a_planned_batch_that_takes_what_is_lost_is_planned_anew(begins: int) -> None:
    given = settings()
    checkpoint = begun(given)
    assert checkpoint.record is not None

    def anew(written: Written, planned: int = 3) -> bool:
        lost = {SOURCES[0]: (begins, 9)}
        facts = replace(checkpoint, planned=planned)
        return preflight.must_plan_anew(given, checkpoint.record, lost, facts, written)  # type: ignore[arg-type]

    takes = begins < 7
    assert anew(wrote(2)) == takes
    assert not anew(wrote(2), planned=2)
    for half_written in (wrote(3, read=6), wrote(2, answered=(3, 0))):
        if takes:
            with pytest.raises(StateError, match=rf"a\[0\]: offsets {begins} to 8 .* half written.*totalorder recover"):
                anew(half_written)
        else:
            assert not anew(half_written)


def test_retention_before_the_first_batch_counts_from_the_start() -> None:
    given = settings()
    checkpoint = begun(given, committed=-1, planned=-1, next_offsets={})
    assert checkpoint.record is not None
    begins_later = EventTopic(name="a", topic_id="id-a", starts={0: 3})
    record = replace(checkpoint.record, topics=(begins_later, *checkpoint.record.topics[1:]))
    checkpoint = replace(checkpoint, record=record)
    topics = {**own(given), **events(), "a": topic("id-a", earliest=3, latest=10)}
    assert problems(given, topics, checkpoint) == ""
    topics["a"] = topic("id-a", earliest=4, latest=10)
    assert "offsets 3 to 3 were removed" in problems(given, topics, checkpoint)


def test_a_topic_that_was_cut_short() -> None:
    given = settings()
    topics = {**own(given), **events(), "a": topic("id-a", latest=4)}
    assert "ends at offset 4, and 5 were already read" in problems(given, topics, begun(given))


def test_control_is_watched_like_events() -> None:
    given = settings()
    topics = {**own(given, latest=9), **events()}
    topics["d.control"] = replace(topics["d.control"], earliest={0: 6})
    assert "topic d.control, partition 0: offsets 0 to 5 were removed" in problems(given, topics, begun(given))


def test_a_new_topic_must_be_whole() -> None:
    given = settings(topics=("a", "b", "c"))
    topics = {**own(given), **events(), "c": topic("id-c", earliest=2, latest=9)}
    facts = Facts(topics=topics, checkpoint=begun(settings()), written=NOTHING, claim=None)
    preflight.check(given, facts)
    names, unfit = preflight.fit(given, facts)
    assert names == ()
    assert "topic c is new to the domain, and its partition 0 begins at offset 2" in unfit["c"][0]
    facts = replace(facts, topics={**topics, "c": topic("id-c", latest=9)})
    assert preflight.fit(given, facts) == (("c",), {})
    assert list(preflight.vet_new("c", topic("id-c", cleanup_policy="compact")))


@pytest.mark.parametrize("batch", [1, 4])
def test_sparks_part_of_the_checkpoint_is_missing(batch: int) -> None:
    given = settings()
    checkpoint = begun(given, committed=-1, planned=-1, next_offsets={}, planned_offsets={}, planned_ms=0)
    topics = {**own(given, latest=9), **events()}
    assert "Spark's part of the checkpoint" in problems(given, topics, checkpoint, wrote(batch))
    assert "totalorder recover" in problems(given, topics, checkpoint, wrote(batch))
    assert problems(given, topics, checkpoint) == ""


def recovered(given: Settings, batch: int, **more: object) -> CheckpointFacts:
    """A checkpoint that was made anew behind a batch, and reads on from 5."""
    checkpoint = begun(given, **more)
    assert checkpoint.record is not None
    begin = BatchEnd(cut=9, order=0, ends={0: (5,), 1: (5,), 2: (5, 5)})
    record = replace(checkpoint.record, recovered=Recovered(batch=batch, begin=begin, seeds=("x",)))
    return replace(checkpoint, record=record)


def test_a_recovered_checkpoint_begins_behind_what_is_stamped_and_no_earlier() -> None:
    given = settings()
    topics = {**own(given, latest=9), **events()}
    fresh = {"committed": -1, "planned": -1, "next_offsets": READ, "planned_offsets": READ, "planned_ms": 0}
    assert problems(given, topics, recovered(given, 40, **fresh), wrote(40)) == ""
    assert "Spark's part of the checkpoint" in problems(given, topics, recovered(given, 40, **fresh), wrote(41))
    assert problems(given, topics, recovered(given, 40), wrote(44)) == "", "Spark counts from 0 again"
    assert "ends before it" in problems(given, topics, recovered(given, 40), wrote(45))
    assert "totalorder recover" in problems(given, topics, recovered(given, 40), wrote(45))


PLANNED: dict[str, object] = {"next_offsets": READ}
COMMITTED: dict[str, object] = {**PLANNED, "planned": 2, "planned_offsets": READ, "planned_ms": 1003}
"""The checkpoint with a batch that was not finished, and without one; its numbers are one less than on stamps."""


@pytest.mark.parametrize(
    ("checkpoint", "written"),
    [
        (COMMITTED, NOTHING),
        (COMMITTED, wrote(3, read=5)),
        (COMMITTED, wrote(2, read=4)),  # Spark counts batches without a record too
        (COMMITTED, wrote(3, read=5, answered=(3, 4))),
        (PLANNED, wrote(3, read=5)),
        (PLANNED, wrote(3, read=5, answered=(4, 6))),  # its answers are there, and none of its stamps
        (PLANNED, wrote(4, read=7)),
        (PLANNED, wrote(4, read=7, answered=(4, 6))),
        (PLANNED, wrote(4, read=5, answered=(4, 6))),  # it has control records alone
    ],
)
def test_what_was_written_comes_from_the_batches_that_were_planned(
    checkpoint: dict[str, object], written: Written
) -> None:
    given = settings()
    assert problems(given, {**own(given, latest=9), **events()}, begun(given, **checkpoint), written) == ""


@pytest.mark.parametrize(
    ("checkpoint", "written"),
    [
        (COMMITTED, wrote(4, read=6)),
        (COMMITTED, wrote(9, read=6)),
        (COMMITTED, wrote(3, read=6)),
        (COMMITTED, wrote(3, read=5, answered=(3, 5))),
        (COMMITTED, wrote(3, read=5, answered=(4, 5))),  # of the lost batch only its answers are there
        (PLANNED, wrote(5, read=7)),
        (PLANNED, wrote(4, read=8)),
        (PLANNED, wrote(4, read=5, answered=(4, 7))),
        (PLANNED, wrote(0, answered=(4, 7))),
        (COMMITTED, Written(answered=(3, 5))),  # stamps have expired
    ],
)
def test_a_checkpoint_that_is_behind_what_was_written(checkpoint: dict[str, object], written: Written) -> None:
    given = settings()
    said = problems(given, {**own(given, latest=9), **events()}, begun(given, **checkpoint), written)
    assert "1 problem" in said
    assert "/ckpt ends before it: it is an old copy" in said


@pytest.mark.parametrize("written", [wrote(4, read=6), wrote(4, read=5, answered=(4, 5))])
def test_a_checkpoint_that_would_run_a_batch_again_otherwise(written: Written) -> None:
    """As an old copy does that was started once."""
    given = settings()
    checkpoint = begun(given, next_offsets=READ, planned_ms=2000)
    said = problems(given, {**own(given, latest=9), **events()}, checkpoint, written)
    assert "batch 4 is on d.stamps with the time 1004, and the checkpoint /ckpt would run it again with 2000" in said


def test_a_domain_that_another_checkpoint_claimed() -> None:
    given = settings()
    topics = {**own(given, latest=0), **events()}
    anothers = FirstClaim(owner="another", offset=2)
    says = "identity another, by the claim at offset 2 of d.control; give that checkpoint"
    assert says in problems(given, topics, claim=anothers)
    begun_too = begun(given, committed=-1, planned=-1, next_offsets={}, planned_offsets={}, planned_ms=0)
    said = problems(given, topics, begun_too, wrote(9), anothers)  # which the other one wrote
    assert says in said
    assert "1 problem" in said
    assert begun_too.record is not None
    its_own = FirstClaim(owner=begun_too.record.identity, offset=2)
    assert problems(given, topics, begun_too, claim=its_own) == ""


def test_the_topic_that_was_probably_meant_is_named() -> None:
    facts = Facts(topics=events(), checkpoint=NEW, written=NOTHING, claim=None, there=("a", "b", "orders", "d.stamps"))
    with pytest.raises(PreflightFailed) as failed:
        preflight.check(settings(topics=("a", "ordres")), facts)
    assert "topic ordres does not exist. Did you mean 'orders'? Create it, or take it out of topics" in str(
        failed.value
    )
    with pytest.raises(PreflightFailed) as failed:
        preflight.check(settings(topics=("a", "xyz")), facts)
    assert "topic xyz does not exist. Create it, or take it out of topics" in str(failed.value)


def test_topics_of_other_domains_are_no_events() -> None:
    names = ["orders", "e.stamps", "e.control", "e.grants", "lone.control", "f.stamps.x", "control", ".stamps"]
    assert owned_by_domains(names) == {"e.stamps", "e.control", "e.grants"}
