"""What the driver and the source's process tell each other."""

from totalorder.config import make_settings
from totalorder.streaming.handover import Handover
from totalorder.streaming.record import DomainRecord


def test_records_and_the_first_trigger() -> None:
    driver = Handover.make()
    source = Handover(str(driver.folder))
    try:
        record = DomainRecord.begin(make_settings(topics=("a",), checkpoint_dir="x"), topics=[], own_ids={})
        driver.tell(record)
        assert source.record() == record
        before = source.version()
        assert source.version() == before
        driver.tell(record.admitting({"a": "id-a"}))
        assert source.version() != before
        assert source.record().event_topics == {"a"}
        assert not driver.is_first_trigger_over
        source.say_first_trigger_over()
        assert driver.is_first_trigger_over
        assert driver.looks() == {}
        source.say_looks({"longest_ms": 7})
        source.say_looks({"longest_ms": 8})
        assert driver.looks() == {"longest_ms": 8}
    finally:
        driver.remove()
    assert not driver.folder.exists()
    driver.remove()
