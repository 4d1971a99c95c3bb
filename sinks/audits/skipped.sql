-- title: What was lost before it was stamped stands where it is missing
-- proves: Nothing that is called lost of a Kafka topic that goes on was stamped; of its partition, what lies before it in
--   the log stands before it in the order, and what lies behind it behind it.
-- how: Events are joined to what was passed over in their partition, and the two orders are compared.
-- limits: Whether Kafka had it no longer, only Kafka knew.
-- subject: subscriptions
WITH skipped AS (
  SELECT kafka_topic, topic_id, part.partition, part.begin_offset, part.end_offset, g AS skipped_g
  FROM (SELECT kafka_topic, topic_id, g, explode(lost) AS part FROM subscriptions WHERE kind = 'skipped')
)
SELECT kafka_topic, topic_id, partition, offset, g, skipped_g,
  CASE WHEN offset >= begin_offset AND offset < end_offset THEN 'called lost, and stamped'
    ELSE concat('not on the side of ', begin_offset, ' to ', end_offset - 1, ' on which it lies in the log') END AS fault
FROM events JOIN skipped USING (kafka_topic, topic_id, partition)
WHERE (offset >= begin_offset AND offset < end_offset) OR (offset < begin_offset) <> (g < skipped_g)
ORDER BY g, skipped_g
