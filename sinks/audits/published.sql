-- title: Everything received was published, and stamped as received
-- proves: Every delivery is of an event of the domain, with the topic, n and g that the sequencer gave it: no subscriber
--   was told something else about an event than another, or than the log says.
--   What was told as lost had a stamp too, or was passed over at that position.
-- how: Deliveries are joined to events by their place in the log, and to what was passed over. A receipt that names a position beyond all that is known
--   may be ahead of stamps for a while; one that is older by an hour than stamps that are here never had a stamp. Both
--   times are the brokers', whose clocks an hour is enough for.
-- limits: What was received from before lineage began, or from where it has yet to come, is not judged.
-- subject: deliveries
WITH published AS (
  SELECT kafka_topic, topic_id, partition, offset, topic, n, g FROM events
  UNION ALL
  SELECT kafka_topic, topic_id, part.partition, part.begin_offset, kafka_topic, CAST(0 AS BIGINT), g
  FROM (SELECT kafka_topic, topic_id, g, explode(lost) AS part FROM subscriptions WHERE kind = 'skipped')
)
SELECT deliveries.subscriber, deliveries.generation, deliveries.delivery_index, deliveries.kafka_topic,
  deliveries.topic_id, deliveries.partition, deliveries.offset, deliveries.topic, deliveries.n, deliveries.g,
  published.topic AS stamped_topic, published.n AS stamped_n, published.g AS stamped_g
FROM deliveries LEFT JOIN published ON published.kafka_topic = deliveries.kafka_topic
  AND published.topic_id = deliveries.topic_id AND published.partition = deliveries.partition
  AND published.offset = deliveries.offset
WHERE (published.g IS NULL
    AND (deliveries.g <= (SELECT through_g FROM complete)
      OR deliveries.receipt_time < (SELECT known_time FROM complete) - INTERVAL 1 HOUR)
    AND NOT (deliveries.g < (SELECT min(g) FROM events) AND (SELECT began_late FROM complete)))
  OR (published.g IS NOT NULL
    AND (published.topic, published.n, published.g) <> (deliveries.topic, deliveries.n, deliveries.g))
