"""The cut: where each batch ends, in what slices, and what Kafka holds in it (docs/protocol.md, "The cut").

A PySpark data source of our own in the place of Spark's Kafka source. In one long-lived process of the driver a thread
asks the brokers for the ends of all partitions, again and again: looks. A batch's offset, which Spark writes to its
write-ahead log, is the list of looks since the batch before it. The workers read exactly those ranges.
"""
