-- title: The events are those that were stamped
-- proves: The value of every event that the lineage job could still read has the checksum that its timestamp carries.
-- how: crc32 is the sequencer's, read_crc32 that of the value in the log, read once more by the lineage job.
-- limits: Events that were gone when the lineage job came have no checksum of their own and are not judged.
SELECT topic, n, g, kafka_topic, topic_id, partition, offset, crc32, read_crc32
FROM events
WHERE read_crc32 <> crc32
ORDER BY g
