"""What a Reader delivers next: π restricted to some topics, by what is public alone, for whoever never subscribed.

Pure machines, as in totalorder.subscriber.delivery, of which they use the parts. `search` finds the batch in which to
begin, `stamps` puts together what all stamps partitions say of one batch, `events` keeps what has come of event
partitions, `machine` joins them.

How it works. Each stamps partition has a record for each batch, also where it has no event in it, and π goes batch by
batch. So once every stamps partition that holds a topic's timestamps has told of a batch, all events of these topics
through that batch's last position are known, each with its g and n, whoever subscribes: sorted by g they are π. Nothing
of timestamps' entries is needed, which tell of the sets of those who have subscribed.

An event may come before its stamps: it waits until stamps are known through its offset. Then it is one of those that
are chosen, or it is let go.

Why limits on what is buffered cannot block. Let e be the π-least event that is stamped, chosen and not delivered. All
stamps are known through its batch, so what waits before it in its event partition was delivered or let go: e is the
first that waits there, or the next to be read, and then none waits and the partition is not paused. Where no such e is,
no row waits in line; of two stamps partitions the one that is further in batches may be paused, and the one behind, of
which no batch waits, is not.
"""
