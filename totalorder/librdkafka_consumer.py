"""What holds for every consumer of confluent-kafka: the job's, and a subscriber's."""

from operator import methodcaller

DECIDED = {
    "group.id": "totalorder",  # confluent-kafka wants one; no group is joined, and no position saved
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
    "max.poll.interval.ms": "86400000",  # the most; it is for members of groups
    "message.max.bytes": "1000",  # of producers; fetch.max.bytes must exceed it
}
"""Settings that are not the user's."""
headers_of = methodcaller("headers")
"""A message's headers; SystemError where the name of one is not UTF-8. confluent-kafka 2.16 returns a list with a hole
then, and an error besides. Python looks for that when C calls, but not where it has compiled a call that comes often:
`message.headers()` takes the list then, and the process dies.
"""
