"""The protocol of total notification ordering, pure: no clock, no I/O, no Spark, no Kafka.

`engine.step` runs the topic managers over one batch; `delivery` holds the subscriber's side; everything that goes over
the wire or into state has its codec here. docs/protocol.md tells why each rule is as it is.
"""
