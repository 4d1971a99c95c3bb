"""The subscriber's side of the protocol: which event may be handed to the application next.

A pure machine. Its inputs are the answers on grants, the batches of stamps of each stamps partition, and the events
of each event partition, each in the order of its log; the logs may come in any interleaving. Its outputs are effects.

How it works. A subscription is a chain of sets in force, changed at positions of π (`Switch`). A batch of stamps waits
until all answers on grants through its end are known (`control_g`), so that the set in force at each of its rows is
known; then what it says of that set is taken as columns (`Rows`). Stamps alone put events in order (`order`). With
m = 1 there is one line: a row is in line once

- every stamps partition of the set is complete through its g: all that comes before it is known; or
- it has the least g of all that is known, and every entry of another topic X of the set is met by what is in line:
  LC[X] >= entry. Never `==`: a clock may be past an entry. Entries tell of all that comes before, so nothing does.

What is delivered next is the front of the line, before the next switch, as far as its events have come: in each event
partition the next event that is owed must be the first that waits. That costs nothing, since within a partition π
follows offsets, and makes one offset per partition enough to resume from. Where entries cannot be trusted
(`Switch.exact` is false) only the first way into the line is open. With m = 2 an event need not wait for what nothing
puts before it: not for the line, but for its entries, and what is before it in its topic and in its event partition.

Delivering the front of the line is delivering all that may be delivered: with m = 1 each event's entries hold it back
until all that is before it in π is delivered, so whatever is behind one that has not come waits for that one.
tests/subscriber/delivery/test_plain_twin.py compares this step by step with a machine that looks at entries alone.

Why limits on what is buffered cannot block: let e be the π-least event owed. All events before e in its event
partition are delivered or discarded, so e is the first that waits there; or it is the next to be read, and then none
waits and the partition is not paused. In e's stamps partition the rows of earlier batches have a smaller g and are all
delivered; so e's row is known, or the partition has no waiting row and is not paused. Once known it is in line: its
entries are met, or, by frontiers, a stamps partition that is not complete through e has no waiting row either. An
event partition that is seen for the first time waits until all stamps are known through the batch of its first offset,
which is e's or one before: rows that wait elsewhere have a larger g than e, so what is paused for them has come through
that batch.

A Kafka topic may be deleted, and created again as another one. What is owed of one that is gone is lost; nothing owed,
nothing happens. Once stamps are complete through the position at which a topic was retired (`Retired`), whatever of it
has no stamp will have none: it is forgotten, and the topic's partitions are read no longer than something is owed.

What was lost before it was stamped has a position of its own (`Skipped`). It comes when all that is owed before that is
delivered, which frontiers tell, and nothing behind it comes earlier.
"""
