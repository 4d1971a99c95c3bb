"""What the runner does for a source, without Spark."""

from kafka import KafkaAdminClient

from totalorder.config import Settings
from totalorder.streaming.cut.cutter import Cutter
from totalorder.streaming.cut.source_settings import SourceSettings
from totalorder.streaming.handover import Handover
from totalorder.streaming.record import DomainRecord, EventTopic


class Driver:
    """Makes topics, a record and a folder, and sources that live from them."""

    def __init__(self, settings: Settings, admin: KafkaAdminClient) -> None:
        self.settings, self.admin = settings, admin
        own = settings.own_topics
        admin.create_topics({name: {"num_partitions": 1} for name in (own.control, own.cuts)})
        admin.wait_for_topics([own.control, own.cuts])
        ids = self.ids([own.control, own.cuts, *settings.topics])
        topics = [EventTopic(name=name, topic_id=ids[name]) for name in settings.topics]
        self.record = DomainRecord.begin(settings, topics=topics, own_ids={own.control: ids[own.control]})
        self.handover = Handover.make()
        self.handover.tell(self.record)
        self.cutters: list[Cutter] = []

    def ids(self, names: list[str]) -> dict[str, str]:
        return {topic["name"]: str(topic["topic_id"]) for topic in self.admin.describe_topics(names)}

    def cutter(self) -> Cutter:
        """As a new process of the source has it."""
        self.cutters.append(Cutter(SourceSettings.of(self.settings, str(self.handover.folder))))
        return self.cutters[-1]

    def close(self) -> None:
        for cutter in self.cutters:
            cutter.close()
        self.handover.remove()
