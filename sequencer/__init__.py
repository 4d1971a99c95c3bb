"""The protocol of total notification ordering, pure: no clock, no I/O, no Spark, no Kafka.

`engine.step` runs the topic managers over one batch, `state` has the bytes of what it keeps; `wire` is what
goes over Kafka, and all that the subscriber's side has of this room. docs/protocol.md tells why each rule is as it is.
"""
