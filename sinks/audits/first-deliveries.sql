-- view: first_deliveries
-- title: First delivery of each event to each subscriber, with a number of the event
-- how: `at` places a delivery in its subscriber's own order. `event` is a number of the event alone, the same wherever it
--   was received and never that of another: the least g that any receipt gives it, then its place in the log.
WITH firsts AS (
  SELECT subscriber, kafka_topic, topic_id, partition, offset, min(struct(generation, delivery_index)) AS at,
    min(g) AS g
  FROM deliveries
  GROUP BY subscriber, kafka_topic, topic_id, partition, offset
)
SELECT subscriber, at,
  struct(
    min(g) OVER (PARTITION BY kafka_topic, topic_id, partition, offset) AS g, kafka_topic, topic_id, partition, offset
  ) AS event
FROM firsts
