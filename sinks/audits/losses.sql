-- title: What was lost
-- proves: Nothing; it shows the offsets that Kafka had and that were never stamped, with Kafka topics that were retired and
--   where retention was quicker than the job ("before it was stamped"), and those that a subscriber was told of in the
--   place of an event that was stamped.
-- how: What the answers say; of a topic that was retired again, the first position and all that is lost. And the deliveries
--   with the tag "lost", once each, by subscriber.
-- limits: Offsets that hold no record, those of transactions, count too. A subscriber that stops at what is lost tells of
--   nothing, nor one that gives up all that it is owed.
-- judges: never
WITH never AS (
  SELECT kind, kafka_topic, topic_id, g, explode(lost) AS part FROM subscriptions WHERE kind IN ('retired', 'skipped')
),
told AS (
  SELECT subscriber, kafka_topic, topic_id, partition, offset, min(g) AS g
  FROM deliveries
  WHERE tag IN ('lost', 'lost again') AND n > 0
  GROUP BY subscriber, kafka_topic, topic_id, partition, offset
)
SELECT CASE kind WHEN 'retired' THEN 'with its topic' ELSE 'before it was stamped' END AS how,
  CAST(NULL AS STRING) AS subscriber, kafka_topic, topic_id, part.partition, min(part.begin_offset) AS first_lost,
  max(part.end_offset) - 1 AS last_lost, max(part.end_offset) - min(part.begin_offset) AS offsets, min(g) AS lost_g
FROM never
GROUP BY kind, kafka_topic, topic_id, part.partition, CASE kind WHEN 'skipped' THEN g END
UNION ALL
SELECT 'before it was received', subscriber, kafka_topic, topic_id, partition, min(offset), max(offset), count(*), min(g)
FROM told
GROUP BY subscriber, kafka_topic, topic_id, partition
ORDER BY lost_g, kafka_topic, topic_id, partition, subscriber
