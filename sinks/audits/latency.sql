-- title: How long events took, in milliseconds
-- proves: Nothing; it shows percentiles of the way from the producer (the Kafka record's time) to the stamp (the broker's
--   time), and on to the application (the subscriber's clock): over all, by subscriber and by topic.
-- how: First deliveries without a tag, joined to their events. The clocks are those of several machines.
-- judges: never
WITH ways AS (
  SELECT deliveries.topic, deliveries.subscriber,
    unix_millis(stamped_time) - unix_millis(event_time) AS to_stamp,
    unix_millis(delivered_time) - unix_millis(stamped_time) AS stamp_to_delivery,
    unix_millis(delivered_time) - unix_millis(event_time) AS to_delivery
  FROM deliveries JOIN events ON events.kafka_topic = deliveries.kafka_topic
    AND events.topic_id = deliveries.topic_id AND events.partition = deliveries.partition
    AND events.offset = deliveries.offset
  WHERE event_time IS NOT NULL AND tag IS NULL
),
measured AS (
  SELECT topic, subscriber, count(*) AS deliveries, map_entries(map(
    'to_stamp', percentile_approx(to_stamp, array(0.5, 0.95, 0.99)),
    'stamp_to_delivery', percentile_approx(stamp_to_delivery, array(0.5, 0.95, 0.99)),
    'to_delivery', percentile_approx(to_delivery, array(0.5, 0.95, 0.99)))) AS parts
  FROM ways
  GROUP BY GROUPING SETS ((), (topic), (subscriber))
)
SELECT topic, subscriber, deliveries, part.key AS part, part.value[0] AS p50, part.value[1] AS p95, part.value[2] AS p99
FROM (SELECT *, posexplode(parts) AS (place, part) FROM measured)
ORDER BY topic NULLS FIRST, subscriber NULLS FIRST, place
