"""The paper's protocol as its pseudo-code has it: slow, deterministic, and driven by hand.

This is *not* totalorder's protocol (that is `reference.py`). It is the one of "Efficient Notification Ordering for
Geo-Distributed Pub/Sub Systems", supplement figures 1 to 5, kept so that its defects can be shown and not only told.

How to drive it: an operation (`publish`, `subscribe`, ...) puts messages on links; nothing moves until the test says
so. `deliver(source, target)` hands over the oldest message of one link (links are FIFO, paper section 2), `notify(
subscriber, event)` lets the event notification service (ENS) hand one event to one subscriber. The ENS is reliable and
promises no order at all: reordering is what the paper's timestamps are for. `in_flight` and `pending` list what the
test may pick.

Topics are strings; `ranks` lists them from the highest rank down (T -> T' when T comes first). Processes are named
`TM_<topic>` for topic managers and as the test likes for publishers and subscribers.

Where the pseudo-code cannot be meant literally, the text decides, always in the paper's favour:

- isNext compares the topics that the timestamp and sub_LC share (3.4: "the corresponding ones stored locally");
  literally a subscriber of part of a sequencing group would never deliver anything;
- updateSubLC takes the timestamp's value (figure 3, lines 14 and 25 pass sub_LC's own, which would change nothing);
- LLC holds one number per topic of the sequencing group ("LLC union pair" in figure 4 would keep two);
- sub_LC has a pair for each topic of subs and no other, so UNSUBSCRIBE drops the pair (figure 5 leaves it);
- a buffered subscriptionUpdate is looked at again by its own rule (figure 3, line 20 would apply isNext to it).
"""

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Timestamp: TypeAlias = dict[str, int | None]
"""Topic to sequence number, None (the paper's bottom) until the topic's manager has filled it in."""

Rule: TypeAlias = Callable[[int, int], bool]
"""(the subscriber's number, the timestamp's number) -> may the event pass? The paper's is equality."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """A point-to-point message; `kind` is the paper's name for it, unused fields stay empty."""

    kind: str
    ts: Mapping[str, int | None] = field(default_factory=dict)
    event: str = ""
    origin: str = ""
    topic: str = ""
    topics: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Notification:
    """<e, ts>, T as the ENS carries it; `dummy` marks a subscriptionUpdate."""

    event: str
    topic: str
    ts: Mapping[str, int | None]
    dummy: bool = False


Send: TypeAlias = Callable[[str, str, Message], None]
"""(source, target, message)"""


class TopicManager:
    """TM_T, the manager of one topic (figures 1, 2b, 4b and 5b)."""

    def __init__(self, topic: str, ranks: Sequence[str], send: Send) -> None:
        self.topic = topic
        self.name = f"TM_{topic}"
        self.lc = 0
        self.llc: dict[str, int] = {}
        self.external_subs: dict[str, frozenset[str]] = {}
        self.sg: set[str] = {topic}
        self._ranks = ranks
        self._send = send

    def receive(self, message: Message) -> None:
        handler = {
            "CREATE_PUB_TS": self._create_pub_ts,
            "FILL_IN_PUB_TS": self._fill_in_pub_ts,
            "FILL_IN_SUB_TS": self._fill_in_sub_ts,
            "UPDATE_SUB": self._update_sub,
        }[message.kind]
        handler(message)

    def _create_pub_ts(self, message: Message) -> None:
        ts: Timestamp = dict.fromkeys(self.sg)
        ts.update(self.llc)
        self.lc += 1
        ts[self.topic] = self.lc
        self._pass_on("FILL_IN_PUB_TS", "EVENT_TS", message, ts)

    def _fill_in_pub_ts(self, message: Message) -> None:
        for topic, number in message.ts.items():
            if topic in self.llc and number is not None:
                self.llc[topic] = max(self.llc[topic], number)
        self._pass_on("FILL_IN_PUB_TS", "EVENT_TS", message, {**message.ts, self.topic: self.lc})

    def _fill_in_sub_ts(self, message: Message) -> None:
        self.external_subs[message.origin] = message.topics
        self.update_sequencing_group()
        for topic, number in message.ts.items():
            if topic in self.sg and number is not None and self._is_below(topic):
                self.llc[topic] = max(self.llc.get(topic, 0), number)
        self.lc += 1
        self._pass_on("FILL_IN_SUB_TS", "COMPLETED_SUB_VC", message, {**message.ts, self.topic: self.lc})

    def _update_sub(self, message: Message) -> None:
        if message.topics:
            self.external_subs[message.origin] = message.topics
        else:
            self.external_subs.pop(message.origin, None)
        self.update_sequencing_group()
        self.llc = {topic: number for topic, number in self.llc.items() if topic in self.sg}

    def update_sequencing_group(self) -> None:
        """Figure 1: T, and every topic that at least two subscriptions hold together with T."""
        together = [topic for topics in self.external_subs.values() for topic in topics]
        self.sg = {self.topic} | {topic for topic in together if together.count(topic) > 1}

    def preload(self, subscriptions: Mapping[str, frozenset[str]]) -> None:
        """Start in the state where these subscriptions have always been there and nothing was published yet."""
        self.external_subs = {name: topics for name, topics in subscriptions.items() if self.topic in topics}
        self.update_sequencing_group()
        self.llc = {topic: 0 for topic in self.sg if self._is_below(topic)}

    def _is_below(self, topic: str) -> bool:
        return self._ranks.index(self.topic) < self._ranks.index(topic)

    def _pass_on(self, step: str, end: str, message: Message, ts: Timestamp) -> None:
        """Send the timestamp to the nearest higher-ranked manager in it, or back to who asked."""
        above = [topic for topic in self._ranks[: self._ranks.index(self.topic)] if topic in ts]
        target, kind = (f"TM_{above[-1]}", step) if above else (message.origin, end)
        passed = Message(kind=kind, ts=ts, event=message.event, origin=message.origin, topics=message.topics)
        self._send(self.name, target, passed)


class Subscriber:
    """s_i (figure 3, and the subscriber's side of figure 4)."""

    def __init__(self, name: str, rule: Rule) -> None:
        self.name = name
        self.subs: frozenset[str] = frozenset()
        self.sub_lc: dict[str, int] = {}
        self.to_deliver: list[Notification] = []
        self.notified: list[str] = []
        self._rule = rule

    def receive(self, notification: Notification) -> None:
        """ENSnotify: take the event in, then deliver what has become deliverable."""
        if notification.dummy or notification.topic in self.subs:
            self.to_deliver.append(notification)
        self._deliver_ready()

    def complete_subscription(self, ts: Mapping[str, int | None]) -> None:
        """COMPLETED_SUB_VC: the subscription's timestamp becomes the clock, as a whole."""
        self.sub_lc = {topic: number for topic, number in ts.items() if number is not None}
        self._deliver_ready()

    def _deliver_ready(self) -> None:
        while ready := next((held for held in self.to_deliver if self._is_ready(held)), None):
            self.to_deliver.remove(ready)
            if not ready.dummy:
                self.notified.append(ready.event)
            for topic, number in ready.ts.items():
                if topic in self.sub_lc and number is not None:
                    self.sub_lc[topic] = max(self.sub_lc[topic], number)

    def blocked(self) -> list[str]:
        """The application's events that still wait here."""
        return [held.event for held in self.to_deliver if not held.dummy]

    def _is_ready(self, held: Notification) -> bool:
        return self._dummy_is_next(held) if held.dummy else self._is_next(held)

    def _is_next(self, held: Notification) -> bool:
        for topic, number in held.ts.items():
            if topic not in self.sub_lc or number is None:
                continue
            mine = self.sub_lc[topic]
            if not (mine + 1 == number if topic == held.topic else self._rule(mine, number)):
                return False
        return held.topic in self.sub_lc

    def _dummy_is_next(self, held: Notification) -> bool:
        """Figure 3, line 02: every topic of mine but the dummy's own must stand in the timestamp, one higher."""
        return all(held.ts.get(topic) == mine + 1 for topic, mine in self.sub_lc.items() if topic != held.topic)


class PaperModel:
    """Topic managers, publishers, subscribers, the links between them and the ENS."""

    def __init__(self, ranks: Iterable[str], *, rule: Rule = operator.eq) -> None:
        self.ranks = list(ranks)
        self.managers = {topic: TopicManager(topic, self.ranks, self._send) for topic in self.ranks}
        self.subscribers: dict[str, Subscriber] = {}
        self.timestamps: dict[str, dict[str, int | None]] = {}
        self._rule = rule
        self._outgoing: dict[str, str] = {}
        self._links: dict[tuple[str, str], deque[Message]] = {}
        self._ens: dict[str, dict[str, Notification]] = {}

    def preload(self, **subscriptions: Iterable[str]) -> None:
        """Let these subscriptions have been there for ever, with all clocks at 0 (the paper's static case)."""
        held = {name: frozenset(topics) for name, topics in subscriptions.items()}
        for name, topics in held.items():
            subscriber = self._subscriber(name)
            subscriber.subs, subscriber.sub_lc = topics, dict.fromkeys(topics, 0)
        for manager in self.managers.values():
            manager.preload(held)

    def publish(self, event: str, topic: str, publisher: str = "p") -> None:
        """PUBLISH (figure 2a): ask TM_T for a timestamp; the event goes out when EVENT_TS comes back."""
        self._outgoing[event] = topic
        request = Message(kind="CREATE_PUB_TS", event=event, origin=publisher, topic=topic)
        self._send(publisher, f"TM_{topic}", request)

    def subscribe(self, name: str, topic: str) -> None:
        """SUBSCRIBE (figure 4a); the ENS subscription itself is active at once."""
        subscriber = self._subscriber(name)
        subscriber.subs |= {topic}
        lowest = max(subscriber.subs, key=self.ranks.index)
        ts: Timestamp = dict.fromkeys(subscriber.subs)
        request = Message(kind="FILL_IN_SUB_TS", ts=ts, origin=name, topics=subscriber.subs)
        self._send(name, f"TM_{lowest}", request)

    def unsubscribe(self, name: str, topic: str) -> None:
        """UNSUBSCRIBE (figure 5a)."""
        subscriber = self.subscribers[name]
        subscriber.subs -= {topic}
        del subscriber.sub_lc[topic]
        for kept in sorted(subscriber.subs):
            self._send(name, f"TM_{kept}", Message(kind="UPDATE_SUB", origin=name, topics=subscriber.subs))
        self._send(name, f"TM_{topic}", Message(kind="UPDATE_SUB", origin=name))

    def in_flight(self) -> list[tuple[str, str]]:
        """The links with a message on them, in the order of their first use."""
        return [link for link, messages in self._links.items() if messages]

    def deliver(self, *hops: str) -> None:
        """Deliver the oldest message of the link hops[0] -> hops[1], then of hops[1] -> hops[2], and so on."""
        for source, target in itertools.pairwise(hops):
            message = self._links[source, target].popleft()
            if target.startswith("TM_"):
                self.managers[target.removeprefix("TM_")].receive(message)
            elif message.kind == "EVENT_TS":
                self._ens_publish(message.event, self._outgoing.pop(message.event), message.ts, dummy=False)
            else:
                self._complete_subscription(target, message)

    def settle(self) -> None:
        """Deliver every message on every link (not the ENS's events), oldest link first."""
        while links := self.in_flight():
            self.deliver(*links[0])

    def pending(self, name: str) -> list[str]:
        """The events that the ENS still owes this subscriber, in the order of their publication."""
        return list(self._ens.get(name, {}))

    def notify(self, name: str, *events: str) -> None:
        """ENSnotify: hand these events to the subscriber, in this order; all that it is owed if none is named."""
        for event in events or self.pending(name):
            self.subscribers[name].receive(self._ens[name].pop(event))

    def _subscriber(self, name: str) -> Subscriber:
        return self.subscribers.setdefault(name, Subscriber(name, self._rule))

    def _send(self, source: str, target: str, message: Message) -> None:
        self._links.setdefault((source, target), deque()).append(message)

    def _complete_subscription(self, name: str, message: Message) -> None:
        subscriber = self.subscribers[name]
        subscriber.complete_subscription(message.ts)
        for topic in sorted(subscriber.subs):
            self._ens_publish(f"dummy of {name} on {topic}", topic, message.ts, dummy=True)

    def _ens_publish(self, event: str, topic: str, ts: Mapping[str, int | None], *, dummy: bool) -> None:
        self.timestamps[event] = dict(ts)
        for name, subscriber in self.subscribers.items():
            if topic in subscriber.subs:
                notification = Notification(event=event, topic=topic, ts=ts, dummy=dummy)
                self._ens.setdefault(name, {})[event] = notification
