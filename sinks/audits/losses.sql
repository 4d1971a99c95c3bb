-- title: What was lost of Kafka topics that were retired
-- proves: Nothing; it shows the offsets that Kafka had of a retired topic and that were never stamped: nobody is owed
--   them, and no subscriber can receive them.
-- how: What the answers to retirements say. Of a topic that was retired again, the first position and all that is lost.
-- judges: never
WITH said AS (
  SELECT kafka_topic, topic_id, g, explode(lost) AS part FROM subscriptions WHERE kind = 'retired'
)
SELECT kafka_topic, topic_id, part.partition, min(part.begin_offset) AS first_lost,
  max(part.end_offset) - 1 AS last_lost, max(part.end_offset) - min(part.begin_offset) AS offsets, min(g) AS retired_g
FROM said
GROUP BY kafka_topic, topic_id, part.partition
ORDER BY retired_g, kafka_topic, topic_id, partition
