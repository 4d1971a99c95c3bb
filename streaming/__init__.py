"""The Spark job: Kafka topics in, timestamps and grants out.

The way of the data: source → rows by shard → state: sequencer.step → Kafka sink. `runner.Sequencer` runs it; what the
job decides before it starts is in `preflight`, and nothing here decides anything about the order.
"""

from totalorder.streaming.installation import check_pyspark

check_pyspark()
