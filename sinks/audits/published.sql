-- title: Everything received was published, and stamped as received
-- proves: Every delivery is of an event of the domain, with the topic, n and g that the sequencer gave it: no subscriber
--   was told something else about an event than another, or than the log says.
-- how: Deliveries are joined to events by their place in the log.
-- limits: What was received from before lineage began, or from where it has yet to come, is not judged.
-- subject: deliveries
SELECT deliveries.subscriber, deliveries.generation, deliveries.delivery_index, deliveries.kafka_topic,
  deliveries.topic_id, deliveries.partition, deliveries.offset, deliveries.topic, deliveries.n, deliveries.g,
  events.topic AS stamped_topic, events.n AS stamped_n, events.g AS stamped_g
FROM deliveries LEFT JOIN events ON events.kafka_topic = deliveries.kafka_topic
  AND events.topic_id = deliveries.topic_id AND events.partition = deliveries.partition AND events.offset = deliveries.offset
WHERE (events.g IS NULL AND deliveries.g <= (SELECT through_g FROM complete) AND NOT
    (deliveries.g < (SELECT min(g) FROM events) AND (SELECT began_late FROM complete)))
  OR (events.g IS NOT NULL AND (events.topic, events.n, events.g) <> (deliveries.topic, deliveries.n, deliveries.g))
