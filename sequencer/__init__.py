"""The protocol of total notification ordering, pure: no clock, no I/O, no Spark, no Kafka.

`step` runs the topic managers over one batch; `delivery` holds the subscriber's side; everything that goes
over the wire or into state has its codec here. docs/protocol.md tells why each rule is as it is.
"""

from totalorder.sequencer.batch import Batch, Row
from totalorder.sequencer.engine import Effects, EngineConfig, initial_state, step
from totalorder.sequencer.names import DomainTopics, stamps_partition
from totalorder.sequencer.stamps import StampedBatch, StampRows

__all__ = [
    "Batch",
    "DomainTopics",
    "Effects",
    "EngineConfig",
    "Row",
    "StampRows",
    "StampedBatch",
    "initial_state",
    "stamps_partition",
    "step",
]
