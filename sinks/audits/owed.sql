-- view: owed
-- title: Events that subscribers were owed
-- how: Events are joined to the grants of their topic under which they were owed (after the grant's position, up to that
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
received AS (
  SELECT DISTINCT subscriber, kafka_topic, topic_id, partition, offset FROM deliveries
),
joined AS (
  SELECT held.*, events.n, events.g, events.kafka_topic, events.topic_id, events.partition, events.offset,
    received.subscriber IS NOT NULL AS was_received
  FROM held
  JOIN events ON events.topic = held.topic AND events.g > held.granted_g AND events.g <= held.until_g
    AND events.g <= (SELECT through_g FROM complete)
  LEFT JOIN received ON received.subscriber = held.subscriber AND received.kafka_topic = events.kafka_topic
    AND received.topic_id = events.topic_id AND received.partition = events.partition AND received.offset = events.offset
)
SELECT *,
  coalesce(max(CASE WHEN was_received THEN g END)
    OVER (PARTITION BY subscriber, stretch, CASE WHEN min_subscriptions = 1 THEN '' ELSE topic END), 0)
    AS last_received_g
FROM joined
