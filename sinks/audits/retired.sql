-- title: Nothing of a retired Kafka topic is stamped behind its end
-- proves: Behind the position at which a Kafka topic was retired none of its events has a place in the order; nothing that
--   the answer calls lost has one at all; and what is lost begins no later than the stamps of its partition end.
-- how: Events are joined to the first retirement of their Kafka topic, by name and id, and to what it calls lost; the
--   first lost offset of each partition is compared with where the batches end there.
-- limits: A partition in which no known batch ends is not compared: it may have begun at any offset.
-- subject: subscriptions
WITH retired AS (
  SELECT kafka_topic, topic_id, min(g) AS retired_g
  FROM subscriptions
  WHERE kind = 'retired'
  GROUP BY kafka_topic, topic_id
),
said AS (
  SELECT kafka_topic, topic_id, part.partition, min(part.begin_offset) AS first_lost
  FROM (SELECT kafka_topic, topic_id, explode(lost) AS part FROM subscriptions WHERE kind = 'retired')
  GROUP BY kafka_topic, topic_id, part.partition
),
ends AS (
  SELECT part.kafka_topic, part.topic_id, part.partition, max(part.next_offset) AS next_offset
  FROM (SELECT explode(next_offsets) AS part FROM (SELECT DISTINCT batch, next_offsets FROM batches))
  GROUP BY part.kafka_topic, part.topic_id, part.partition
)
SELECT retired.*, partition, offset, concat('stamped behind it, at g ', g) AS fault
FROM events JOIN retired USING (kafka_topic, topic_id)
WHERE g > retired_g
UNION ALL
SELECT retired.*, partition, offset, concat('called lost, and stamped at g ', g)
FROM events JOIN said USING (kafka_topic, topic_id, partition) JOIN retired USING (kafka_topic, topic_id)
WHERE offset >= first_lost AND g <= retired_g
UNION ALL
SELECT retired.*, partition, first_lost, concat('lost from here on only, and stamps end at ', next_offset)
FROM said JOIN ends USING (kafka_topic, topic_id, partition) JOIN retired USING (kafka_topic, topic_id)
WHERE first_lost > next_offset AND retired_g <= (SELECT through_g FROM complete)
ORDER BY kafka_topic, topic_id, partition, offset
