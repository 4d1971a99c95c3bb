-- title: Nothing came twice without saying so
-- proves: Where a subscriber received an event again, or was told again that it is lost, each later delivery said so by
--   its tag, "redelivered" or "lost again".
-- how: The deliveries of each event to each subscriber are numbered in the subscriber's order; all but the first must
--   have the tag.
-- subject: deliveries
WITH numbered AS (
  SELECT *, row_number() OVER (
    PARTITION BY subscriber, kafka_topic, topic_id, partition, offset ORDER BY generation, delivery_index
  ) AS time_received
  FROM deliveries
)
SELECT subscriber, topic, n, kafka_topic, topic_id, partition, offset, time_received, generation, delivery_index
FROM numbered
WHERE time_received > 1 AND coalesce(tag, '') NOT IN ('redelivered', 'lost again')
ORDER BY subscriber, generation, delivery_index
