-- title: Every event was stamped in the batch whose cut took it
-- proves: The order of batches is that of the cuts, which were public before anything of them was stamped: no event was
--   stamped in an earlier or a later batch than that of its cut, and none that no cut took.
-- how: Each event must lie in a part of its batch's cut.
-- limits: Batches whose cut is not in the tables (yet, or any more) are not judged.
-- subject: cuts
WITH numbered AS (
  SELECT batch, max(cut) AS cut FROM batches WHERE cut IN (SELECT cut FROM cuts) GROUP BY batch
),
stamped AS (
  SELECT events.g, events.batch, numbered.cut, events.topic, events.kafka_topic, events.topic_id,
    events.partition, events.offset
  FROM events JOIN numbered ON numbered.batch = events.batch
)
SELECT stamped.*
FROM stamped LEFT ANTI JOIN taken ON taken.cut = stamped.cut AND taken.kafka_topic = stamped.kafka_topic
  AND taken.topic_id = stamped.topic_id AND taken.partition = stamped.partition
  AND stamped.offset >= taken.begin_offset AND stamped.offset < taken.end_offset
ORDER BY g
