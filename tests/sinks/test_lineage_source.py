"""Where the job begins in each partition."""

from dataclasses import replace

import pytest

from totalorder.errors import EventsLost, PreflightFailed, StateError
from totalorder.sinks.decode import ChainEnd, LogRecord
from totalorder.sinks.source import Backlog, check_present, starts
from totalorder.sinks.writer import Marks
from totalorder.streaming.preflight import TopicFacts

KINDS = ("cuts", "stamps", "grants", "receipts")


def facts(earliest: int, latest: int) -> TopicFacts:
    return TopicFacts(topic_id="id", earliest={0: earliest, 1: earliest}, latest={0: latest, 1: latest}, configs={})


def marks(offset: int) -> Marks:
    end = ChainEnd(batch=1, digest="", g=1, incarnation=1, next_offset=offset)
    return Marks(
        chains={0: end},
        deliveries={},
        answered_g=0,
        grants_offset=offset,
        receipts_offsets={0: offset},
        newest_cut=1,
        cuts_offset=offset,
        cuts_end=offset,
    )


def all_topics(found: TopicFacts) -> dict[str, TopicFacts]:
    return {f"d.{kind}": found for kind in KINDS}


def test_it_begins_where_the_tables_end_and_elsewhere_at_the_log_s_beginning() -> None:
    assert starts("d", marks(5), all_topics(facts(3, 9))) == {
        f"d.{kind}": {0: 5, 1: 3} for kind in KINDS if kind != "cuts"
    } | {"d.cuts": {0: 5}}


def test_cuts_are_read_again_from_a_key_cut_on() -> None:
    again = replace(marks(5), cuts_offset=2)
    assert starts("d", again, all_topics(facts(0, 9)))["d.cuts"] == {0: 2}
    assert starts("d", again, all_topics(facts(3, 9)))["d.cuts"] == {0: 3}, "whether one is missing, its number tells"
    with pytest.raises(StateError, match=r"d\.cuts\[0\] up to offset 5, and it ends at 4"):
        starts("d", again, all_topics(facts(0, 9)) | {"d.cuts": facts(0, 4)})


def test_stamps_may_be_gone_before_the_mark_since_their_numbers_tell() -> None:
    found = all_topics(facts(0, 9)) | {"d.stamps": facts(7, 9)}
    assert starts("d", marks(5), found)["d.stamps"] == {0: 7, 1: 7}


def test_receipts_that_are_gone_are_named() -> None:
    found = all_topics(facts(0, 9)) | {"d.receipts": facts(7, 9)}
    with pytest.raises(EventsLost, match=r"the receipts of d\.receipts\[0\] from offset 5 to 7"):
        starts("d", marks(5), found)
    assert starts("d", marks(0), found)["d.receipts"] == {0: 7, 1: 7}


def test_a_topic_that_is_shorter_than_the_tables_say_was_created_anew() -> None:
    with pytest.raises(StateError, match=r"d\.grants\[0\] up to offset 5, and it ends at 4"):
        starts("d", marks(5), all_topics(facts(0, 9)) | {"d.grants": facts(0, 4)})


def test_a_missing_topic_is_named() -> None:
    found = all_topics(facts(0, 9))
    check_present("d", found)
    del found["d.receipts"]
    with pytest.raises(PreflightFailed, match=r"domain d has no topic d\.receipts"):
        check_present("d", found)


def test_the_backlog_is_what_was_there_at_the_start() -> None:
    found = {"d.stamps": facts(3, 9)}
    backlog = Backlog({"d.stamps": {0: 5, 1: 3}}, found)
    assert (backlog.total, backlog.left) == (4 + 6, 4 + 6)
    backlog.advance({"d.stamps": [record(partition=1, offset=7)]})
    assert backlog.left == 4 + 1
    backlog.advance({"d.stamps": [record(partition=1, offset=11), record(partition=0, offset=5)]})
    assert (backlog.total, backlog.left) == (10, 3)


def record(*, partition: int, offset: int) -> LogRecord:
    return LogRecord(partition=partition, offset=offset, time_ms=0, value=None, headers={})
