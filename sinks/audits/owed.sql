-- view: owed
-- title: What subscribers were owed
-- how: Events, and what was lost before it was stamped (n = 0, owed to who held a topic of the Kafka topic's name), are joined to the grants of their topic under which they were owed (after the grant's position, up to that
--   of the subscriber's next change, inclusive), and those to what was received. A stretch ends where a process may
--   have given up a tail: a new process took over, or the holder ended its subscription. last_received_g is the last
--   position received in the stretch; with min_subscriptions = 2 of the event's topic, since only there is the order
--   common to all.
WITH changes AS (
  SELECT *,
    lead(g, 1, 9223372036854775807) OVER changed AS until_g,
    coalesce(reason = 'unsubscribed' OR nonce <> lag(nonce) OVER changed, false) AS begins_anew
  FROM subscriptions
  WHERE kind IN ('granted', 'ended')
  WINDOW changed AS (PARTITION BY subscriber ORDER BY g)
),
stretches AS (
  SELECT *, sum(int(begins_anew)) OVER (PARTITION BY subscriber ORDER BY g) AS stretch FROM changes
),
held AS (
  SELECT subscriber, explode(topics) AS topic, g AS granted_g, until_g, stretch, last_stretch, min_subscriptions
  FROM (SELECT *, max(stretch) OVER (PARTITION BY subscriber) AS last_stretch FROM stretches)
  WHERE kind = 'granted'
),
owing AS (
  SELECT topic, n, g, kafka_topic, topic_id, partition, offset FROM events
  UNION ALL
  SELECT kafka_topic, CAST(0 AS BIGINT), g, kafka_topic, topic_id, part.partition, part.begin_offset
  FROM (SELECT kafka_topic, topic_id, g, explode(lost) AS part FROM subscriptions WHERE kind = 'skipped')
),
received AS (
  SELECT DISTINCT subscriber, kafka_topic, topic_id, partition, offset FROM deliveries
),
joined AS (
  SELECT held.*, owing.n, owing.g, owing.kafka_topic, owing.topic_id, owing.partition, owing.offset,
    received.subscriber IS NOT NULL AS was_received
  FROM held
  JOIN owing ON owing.topic = held.topic AND owing.g > held.granted_g AND owing.g <= held.until_g
    AND owing.g <= (SELECT through_g FROM complete)
  LEFT JOIN received ON received.subscriber = held.subscriber AND received.kafka_topic = owing.kafka_topic
    AND received.topic_id = owing.topic_id AND received.partition = owing.partition AND received.offset = owing.offset
)
SELECT *,
  coalesce(max(CASE WHEN was_received THEN g END)
    OVER (PARTITION BY subscriber, stretch, CASE WHEN min_subscriptions = 1 THEN '' ELSE topic END), 0)
    AS last_received_g
FROM joined
