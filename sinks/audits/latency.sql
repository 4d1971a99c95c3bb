-- title: How long events took
-- proves: Nothing; it shows percentiles, in milliseconds, of the way from the producer (the Kafka record's time) to the
--   stamp (the broker's time) and on to the application (the subscriber's clock): by topic, by subscriber and over all.
-- how: First deliveries without a tag, joined to their events. The clocks are those of several machines.
-- judges: never
WITH ways AS (
  SELECT deliveries.topic, deliveries.subscriber,
    unix_millis(stamped_time) - unix_millis(event_time) AS to_stamp,
    unix_millis(delivered_time) - unix_millis(stamped_time) AS stamp_to_delivery,
    unix_millis(delivered_time) - unix_millis(event_time) AS to_delivery
  FROM deliveries JOIN events ON events.kafka_topic = deliveries.kafka_topic
    AND events.partition = deliveries.partition AND events.offset = deliveries.offset
  WHERE event_time IS NOT NULL AND tag IS NULL
),
measured AS (
  SELECT topic, subscriber, count(*) AS deliveries,
    percentile_approx(to_stamp, array(0.5, 0.95, 0.99)) AS a,
    percentile_approx(stamp_to_delivery, array(0.5, 0.95, 0.99)) AS b,
    percentile_approx(to_delivery, array(0.5, 0.95, 0.99)) AS c
  FROM ways
  GROUP BY GROUPING SETS ((), (topic), (subscriber))
)
SELECT topic, subscriber, deliveries,
  a[0] AS to_stamp_p50, a[1] AS to_stamp_p95, a[2] AS to_stamp_p99,
  b[0] AS stamp_to_delivery_p50, b[1] AS stamp_to_delivery_p95, b[2] AS stamp_to_delivery_p99,
  c[0] AS to_delivery_p50, c[1] AS to_delivery_p95, c[2] AS to_delivery_p99
FROM measured
ORDER BY topic NULLS FIRST, subscriber NULLS FIRST
