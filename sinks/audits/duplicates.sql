-- title: Nothing came twice without saying so
-- proves: Where a subscriber received an event again, each later delivery carried the tag "redelivered".
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
WHERE time_received > 1 AND tag IS DISTINCT FROM 'redelivered'
ORDER BY subscriber, generation, delivery_index
