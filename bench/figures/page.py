"""The page beside the pictures: what the paper shows, what is shown here, and why the two differ."""

from collections.abc import Sequence

from totalorder.bench.outcome import Table, markdown

_HEAD = """# The paper's figures

Beside each figure stands only what the paper's text says in numbers. Nothing is read off its curves. The workload is
the paper's: 1,000 topics, popularity by a power law of shape 0.349 or 0.901, for subscriptions and for events.
"Subscriptions" are pairs of a subscriber and a topic.
"""

_SIZE = """## Timestamp size (figures 7 and 8)

![size](figures-size.png)

**The paper** shows the mean and the standard deviation of a timestamp's entries, which is the size of its topic's
sequencing group, for 10,000 clients. At the leftmost point, 10 topics for each client, it has 46 and 17 entries. (Its
range begins at "10k", but 10,000 clients of 10 topics are 100,000 subscriptions: the values are drawn there.)

**Here** the same is computed from subscriptions drawn with a fixed seed, over all topics, each counted once, the topic
itself included; so a topic that nobody subscribed has 1. m = 2 is the paper's definition (two subscriptions hold both
topics), m = 1 is what totalorder does unless told otherwise. "Delta" is what a stamp holds: the entries that advanced
since the last event of the same topic, a mean over events, without keyframes and without the first event of a topic.

**Why it differs.** Groups are the same in kind; the paper's draw is not known. Deltas are a mean over events, most of
which are on popular topics, where little happens between two events; sizes are a mean over topics.
"""

_LIVE = """## Delay (figures 9 and 13) and throughput (figures 10 and 14)

![delay](figures-latency.png)

![throughput](figures-throughput.png)

**The paper** measures from a publisher's request for a timestamp to the answer, on five servers, 1,000 clients, with
emulated links of 10 ms (near) and 100 ms (far). Its text says: less than 300 ms at up to 10,000 events/s when topics
are popular at one site (0.901), and a peak of more than 4,000 timestamps/s, when 5,000 a second are requested.

**Here** it is the time from the call that publishes an event to its stamp in the hands of a consumer of the stamps
topic, through the real job: one Spark session, one local broker, nothing emulated, the machine's cores for all of it
(publisher and consumer too). 1,000 keys over four Kafka partitions, 200 bytes an event, 1,000 subscribers of as many
topics each as the total says, m = 1. Each point is one phase at an even rate, after a warm-up of the domain.
Throughput counts from the first event's publishing to the last stamp, so the delay of the end is in it.

**Why it differs.** A publisher here waits for nothing: the event is out before it has a timestamp, and the delay is how
long subscribers wait. It is that of Spark's micro-batches, not of the manager's path: no link of 10 or 100 ms is in it,
and a shape or a number of subscriptions that needs more managers in the paper only makes groups larger here.
"""

_BANDWIDTH = """## Share of outgoing bandwidth (figures 11 and 12)

![bandwidth](figures-bandwidth.png)

**The paper** divides the bytes of timestamps that a server forwards to other servers by those of all timestamps that it
handles. Its text says: with 0.901 only servers 4 and 5 forward, 3 next to nothing, 1 and 2 nothing; with 0.349 all but
server 1 forward considerably more.

**Here, above,** is what its protocol would forward with our subscriptions: 1,000 clients of 10 topics, a fifth of them
at each of five sites, m = 2, 200 managers a server; each timestamp goes from its topic's manager up through all those
of its group (§3.4). It is computed from the groups, not measured, and does not depend on the event rate. The paper does
not say what counts as handled, so both are drawn: a timestamp counts once at a server, or once for each manager there.
Nor does it say how popularity differs between sites: here a site prefers the topics of its own server, then those of
the next one, and so on around, which ties server 5 to 1. Which servers forward depends on that.

**Here, below,** is totalorder, measured in the same phases as the delays. No manager forwards anything to another: one
pass makes whole timestamps. What it costs instead is the stamps, drawn as their share of all bytes that leave the
broker's log when events (200 bytes, and Kafka's own) and stamps are read once. Few events a batch make it larger.
"""


def page(tables: Sequence[Table]) -> str:
    """Markdown; the tables are those of sizes, by rate, by subscriptions, and by server."""
    size, by_rate, by_subscriptions, by_server = map(markdown, tables)
    return "\n".join([_HEAD, _SIZE, size, _LIVE, by_rate, by_subscriptions, _BANDWIDTH, by_server])
