"""A subscription by a pattern: which topics its domain reads, as cuts tell, and which of them are to be held."""

import logging
from collections.abc import Collection

from totalorder.errors import SettingsError
from totalorder.sequencer.wire.control import Answer, Grant, Retired
from totalorder.sequencer.wire.cuts import CutsAssembler, is_key_cut
from totalorder.sequencer.wire.limits import MAX_TOPICS_PER_SUBSCRIPTION
from totalorder.sequencer.wire.names import DomainTopics
from totalorder.sequencer.wire.stamps import KafkaTopic
from totalorder.subscriber.reading.choice import Choice
from totalorder.subscriber.stamps_log import headers_of
from totalorder.subscriber.transport import Partition, Record

_LOG = logging.getLogger("totalorder.subscriber")
_MOST_NAMED = 10


class Following:
    """The topics that a domain reads, by what its records on cuts and its answers say, in whatever order.

    A key cut names all of them. One that a dying process of the job has written late may lack some, so none takes away
    what another one names: only an answer that a topic was retired does, which is for good.
    """

    def __init__(self, domain: str) -> None:
        self.knows = False
        """Whether a key cut was read since somebody set this to false."""
        self.moved = True
        """Whether something has come since somebody set this to false."""
        self.cuts = Partition(DomainTopics(domain=domain).cuts, 0)
        self._domain, self._own = domain, DomainTopics(domain=domain).own()
        self._named: set[KafkaTopic] = set()
        self._retired: set[KafkaTopic] = set()
        self._topic_by = "topic"

    def take(self, records: list[Record]) -> None:
        """The next records of cuts. WireError for what is no cut of the domain."""
        for record in records:
            headers = headers_of(record)
            if is_key_cut(headers):
                found = CutsAssembler(domain=self._domain).add(record.value, headers)
                topics = {source.kafka_topic for cut in found for source in cut.sources} - self._retired
                self.knows = True
                self.moved |= not topics <= self._named
                self._named |= topics

    def note(self, answer: Answer) -> None:
        """The next answer on grants."""
        if isinstance(answer, Retired):
            topic = KafkaTopic(answer.topic, answer.topic_id)
            self._retired.add(topic)
            self._named.discard(topic)
        elif isinstance(answer, Grant):
            self._topic_by = answer.topic_by

    def check_by_topic(self) -> None:
        """SettingsError where an answer has said that keys or headers name the topics."""
        if self._topic_by != "topic":
            raise SettingsError(
                f"domain {self._domain!r} names topics by topic_by = {self._topic_by!r}, and a subscription's pattern "
                "is one of Kafka topics: nothing tells beforehand which keys or headers come",
                remedy="Name the topics, also those that are yet to come; a Reader takes a pattern of any topics",
            )

    def wanted(self, choice: Choice, held: Collection[str] = ()) -> tuple[str, ...]:
        """The set that is chosen, to ask for, of one that holds these; SettingsError where no subscription may be such.

        What was retired is left out, unless there is another one of its name, or nothing else to hold.
        """
        there = {topic.name for topic in self._named} - self._own
        gone = {topic.name for topic in self._retired} - there
        chosen = {name for name in {*there, *held} - gone if choice.selects(name)}
        if not chosen and held:
            return tuple(sorted(held))
        if not chosen:
            raise SettingsError(
                f"no topic that domain {self._domain!r} reads so far fits the pattern {choice.pattern!r}",
                remedy="A pattern needs one topic now, and others join later: create one that the job reads (look at "
                "`totalorder topics`, and at the job's own topics or pattern), or name topics: those may come later",
            )
        if len(chosen) > MAX_TOPICS_PER_SUBSCRIPTION:
            raise SettingsError(
                f"{len(chosen)} topics of domain {self._domain!r} fit the pattern {choice.pattern!r}; a "
                f"subscription holds {MAX_TOPICS_PER_SUBSCRIPTION}",
                remedy="Give a narrower pattern; several subscribers, each with a part, agree on the order too",
            )
        return tuple(sorted(chosen))

    def say_joined(self, grant: Grant) -> None:
        """A word on what topics had before they joined a set: that is not delivered."""
        joined = sorted(set(grant.topics) - set(grant.former)) if grant.former else []
        missed = [name for name in joined if grant.clock[name]]
        for name in missed[:_MOST_NAMED]:
            _LOG.warning(
                'topic "%s" fits the pattern and joined at g %d: what it had before, %d events, is not delivered '
                "(a Reader has it)",
                name,
                grant.g,
                grant.clock[name],
            )
        if len(missed) > _MOST_NAMED:
            _LOG.warning("the like of %d other topics", len(missed) - _MOST_NAMED)
