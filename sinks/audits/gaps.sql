-- title: No subscribed event was left out
-- proves: Of the topics that a subscriber held, it received every event of the positions at which it held them, up to
--   the last that it received, or was told in its place that it is lost (losses.sql shows these).
-- how: What was owed (owed.sql) and not received, though a later event of the same stretch was.
-- limits: Where a new process takes over, and where a subscription is ended by its holder, a tail may be given up on
--   purpose (start="now", dropped at once): given-up.sql shows it. A subscription is judged from its grant on: what its
--   `start` gave it of the time before has no receipts.
-- subject: deliveries
SELECT subscriber, topic, n, g, kafka_topic, topic_id, partition, offset, granted_g, last_received_g
FROM owed
WHERE NOT was_received AND g < last_received_g
ORDER BY subscriber, g
